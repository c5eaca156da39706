"""Failing: the failed tasks of a fleet's sessions as rows, and having them run again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from graflow_ckpt.core.errors import KeyTaken, SessionDamaged, SessionError
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.failures import Failure, failures
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.status import UNKNOWN, Status, read_all
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.connecting import session_at
from graflow_ckpt.interfaces.cli.fleet_rows import shortened
from graflow_ckpt.interfaces.cli.manner import Document


@dataclass(frozen=True, slots=True)
class Row:
    """One failed task, and its session."""

    failure: Failure
    status: Status

    @property
    def then(self) -> str:
        return "requeue" if self.failure.set_aside else "gone"

    def cells(self) -> tuple[object, ...]:
        f, ended = self.failure, self.status.ended
        since = words.age(max(0.0, time.time() - ended)) if ended else "-"
        return f.session, f.task, f.type, f.attempts or "-", since, self.then, shortened(f.message)

    def lines(self) -> Iterator[str]:
        f = self.failure
        crashes = f", {words.counted(f.crashes, 'crash')}" if f.crashes else ""
        attempts = f" (attempt {f.attempts}{crashes})" if f.attempts else ""
        yield f"{f.session}  {f.task}{attempts}: {f.type}{': ' if f.type else ''}{f.message}"
        yield from (f"  {line}" for line in f.traceback.rstrip().splitlines())

    def document(self, traceback: bool) -> Document:
        found = asdict(self.failure)
        if not traceback:
            del found["traceback"]
        return {
            **found,
            "workflow": self.status.workflow,
            "status": self.status.status,
            "ended": self.status.ended,
            "then": self.then,
        }


def failed_at(client: Client, session: str | None, task: str | None, limit: int) -> tuple[list[Row], bool]:
    """So many of them at most, and whether there are more."""
    if session is not None:
        session_at(client, session)
    rows: list[Row] = []
    for status in read_all(client.link, client.sessions() if session is None else [session]):
        for failure in _of(client, status, session is None):
            if task in (None, failure.task):
                if len(rows) == limit:
                    return rows, True
                rows.append(Row(failure, status))
    return rows, False


def _of(client: Client, status: Status, many: bool) -> Iterator[Failure]:
    """Those of one session; among many, one that cannot be read is a row with the reason."""
    try:
        if status.status != UNKNOWN:
            yield from failures(client.link, status.session)
    except (SessionDamaged, KeyTaken) as error:
        if not many:
            raise
        yield Failure(status.session, "-", type(error).__name__, error.message, "", None, 0, None, False)


def requeued(client: Client, handle: Handle, tasks: Sequence[str]) -> Document:
    """All that was set aside runs again."""
    found = {failure.task: failure for failure in failures(client.link, handle.session)}
    aside = sorted(name for name, failure in found.items() if failure.set_aside)
    for task in tasks:
        if task not in found:
            raise SessionError(
                f"Task {task!r} of session {handle.session} has not failed.",
                hint=f"Failed have: {', '.join(found) or 'none'}.",
                session=handle.session,
                task=task,
            )
        if task not in aside:
            raise SessionError(
                f"Task {task!r} of session {handle.session} has failed, and the session went on without it: "
                "what it was called with is not kept.",
                hint="Submit it again.",
                session=handle.session,
                task=task,
            )
    left = [name for name in aside if tasks and name not in tasks]
    if left:
        raise SessionError(
            f"Session {handle.session} goes on with all that was set aside, also with: {', '.join(left)}.",
            hint="Name these, too, or no task at all.",
            session=handle.session,
            tasks=left,
        )
    if not aside:
        raise SessionError(
            f"Session {handle.session} has no failed task that could run again.",
            hint=f"See: {words.fleet_command('failed', 'list', '--session', handle.session)}.",
            session=handle.session,
        )
    handle.resume()
    return {"session": handle.session, "requeued": aside, "status": handle.status().status}
