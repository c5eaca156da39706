"""Steering: sessions of a fleet are submitted, paused, cancelled, resumed, deleted; failed tasks run again.

What a verb cannot do to a session in its state is an error, except where it is already what the verb
would make of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from graflow_ckpt.cli import words
from graflow_ckpt.cli.client import FINISHED, document, session_at, shortened
from graflow_ckpt.cli.run.dry_run import reached_by
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import (
    GraphError,
    KeyTaken,
    SessionBusy,
    SessionDamaged,
    SessionError,
    SessionExists,
)
from graflow_ckpt.fleet.accepting import Terms
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.status import UNKNOWN, Failure, Status, failures, read_all
from graflow_ckpt.frontends.dsl import Workflow
from graflow_ckpt.frontends.overrides import Planned, overrides


def submitted(
    manner: Manner, client: Client, target: str, arguments: Sequence[str], terms: Terms,
    inputs: Mapping[str, Any], *, quiet: bool,
) -> Handle:  # fmt: skip
    """Make the graph of a program a session of a fleet, which has accepted it when this returns.

    What the program would have given the workflow (start, inputs, its session id) counts, where the command
    line does not say otherwise. The id is printed, and nothing but it; `quiet`: not even that.
    """
    reached = _submitted(target, arguments)
    workflow: Workflow = reached.workflow
    terms = replace(
        terms, session=terms.session or workflow.wanted_session, ledger=workflow.ledger,
        max_steps=terms.max_steps if terms.max_steps is not None else reached.max_steps,
    )  # fmt: skip
    inputs = {**reached.inputs, **inputs}
    try:
        handle = client.submit(workflow.graph, workflow.settings, reached.starts, inputs, terms)
    except SessionExists as error:
        error.hint = "Give another id (--session), or use that one (--existing return or again)."
        raise
    status = handle.status()
    if quiet:
        manner.note(f"session {handle.session} ({status.workflow}) at {client.link.address}: {status.status}")
    elif manner.json:
        manner.document(document(status, client.link.address))
    else:
        follow = words.fleet_command("wait", handle.session)
        manner.note(f"{status.workflow} at {client.link.address}: {status.status}; follow it: {follow}")
        click.echo(handle.session)
    return handle


def _submitted(target: str, arguments: Sequence[str]) -> Planned:
    """Return where the program would have run a workflow; of one that only writes it down, the only one."""
    reached, status = reached_by(target, arguments)
    if reached is not None:
        return reached
    if status not in (None, 0):
        raise GraphError(f"{target} ended with status {status} before it executed a workflow.")
    met: list[Workflow] = list(overrides.met)
    if len(met) != 1:
        names = ", ".join(sorted({workflow.name for workflow in met})) or "none"
        raise GraphError(
            f"{target} executes no workflow, and has {'several' if met else 'none'} (it has: {names}).",
            hint="Call execute() of the one that is meant, or: graflow-ckpt submit MODULE:WORKFLOW.",
        )
    return Planned(met[0], tuple(met[0].graph.roots()))


def paused(handle: Handle, reason: str) -> Status:
    """Pause: nothing more is claimed; what runs is finished."""
    status = handle.status()
    if status.status == "paused":
        return status
    if status.status != "running":
        raise _cannot(status, "be paused")
    handle.pause(reason)
    return handle.status()


def cancelled(handle: Handle, reason: str, *, hard: bool) -> Status:
    """Cancel for good."""
    status = handle.status()
    if status.status == "cancelled" and not (hard and status.running):
        return status
    if status.status == "completed":
        raise _cannot(status, "be cancelled")
    handle.cancel(reason, hard=hard)
    return handle.status()


def gone_on(
    handle: Handle, max_steps: int | None, answers: Mapping[str, str] | None = None
) -> tuple[Status, Status]:
    """Resume after a pause, a failure, or max_steps; return how it was, and how it is."""
    before = handle.status()
    if before.status == "completed" and not before.ready:
        return before, before
    if not before.fleet:
        raise SessionError(
            f"Session {before.session} is in Redis, and no fleet's: programs run it, not workers.",
            hint="Run its program again, or go on with ExecutionContext.resume(path).",
            session=before.session,
        )
    handle.resume(max_steps, answers=answers)
    return before, handle.status()


def purged(client: Client, sessions: Sequence[str], *, yes: bool) -> list[Document]:
    """Delete all of them, or none if one of them is refused."""
    found = [_found(client, session) for session in dict.fromkeys(sessions)]
    unfinished = [status for _, status in found if status.status not in FINISHED]
    if unfinished and not yes:
        names = ", ".join(f"{status.session} ({status.status})" for status in unfinished)
        raise SessionBusy(
            f"Not finished, so nothing was purged: {names}.",
            hint="They could still go on. To give them up: --yes.",
            sessions=[status.session for status in unfinished],
        )
    for handle, status in found:
        if status.status not in (*FINISHED, UNKNOWN):
            handle.cancel("purged", hard=True)  # a worker of it has lost its token before the keys go
        handle.purge()
    return [{"session": status.session, "status": status.status, "purged": True} for _, status in found]


def _found(client: Client, session: str) -> tuple[Handle, Status]:
    """Return a session that is to be deleted, also one that cannot be read."""
    try:
        handle = session_at(client, session)
        return handle, handle.status()
    except SessionDamaged:
        return client.session(session), next(read_all(client.link, [session]))


def _cannot(status: Status, what: str) -> SessionError:
    going_on = status.status not in (*FINISHED, "running", "init")
    return SessionError(
        f"Session {status.session} is {status.status}; it cannot {what}.",
        hint=f"To go on with it: {words.fleet_command('resume', status.session)}." if going_on else "",
        session=status.session,
        status=status.status,
    )


@dataclass(frozen=True, slots=True)
class FailedRow:
    """One failed task, and its session."""

    failure: Failure
    status: Status

    @property
    def then(self) -> str:
        return "requeue" if self.failure.set_aside else "gone"

    def cells(self) -> tuple[object, ...]:
        f, ended = self.failure, self.status.ended
        since = words.age(words.seconds_ago(ended)) if ended else "-"
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


def failed_at(
    client: Client, session: str | None, task: str | None, limit: int
) -> tuple[list[FailedRow], bool]:
    """Return so many of them at most, and whether there are more."""
    if session is not None:
        session_at(client, session)
    rows: list[FailedRow] = []
    for status in read_all(client.link, client.sessions() if session is None else [session]):
        for failure in _of(client, status, session is None):
            if task in (None, failure.task):
                if len(rows) == limit:
                    return rows, True
                rows.append(FailedRow(failure, status))
    return rows, False


def _of(client: Client, status: Status, many: bool) -> Iterator[Failure]:
    """Yield those of one session; among many, one that cannot be read is a row with the reason."""
    try:
        if status.status != UNKNOWN:
            yield from failures(client.link, status.session)
    except (SessionDamaged, KeyTaken) as error:
        if not many:
            raise
        yield Failure(status.session, "-", type(error).__name__, error.message, "", None, 0, None, False)


def requeued(client: Client, handle: Handle, tasks: Sequence[str]) -> Document:
    """Run again all that was set aside."""
    session = handle.session
    found = {failure.task: failure for failure in failures(client.link, session)}
    aside = sorted(name for name, failure in found.items() if failure.set_aside)
    for task in tasks:
        if task not in found:
            message, hint = "has not failed.", f"Failed have: {', '.join(found) or 'none'}."
        elif task not in aside:
            message = "has failed, and the session went on without it: what it was called with is not kept."
            hint = "Submit it again."
        else:
            continue
        message = f"Task {task!r} of session {session} {message}"
        raise SessionError(message, hint=hint, session=session, task=task)
    left = [name for name in aside if tasks and name not in tasks]
    if left:
        raise SessionError(
            f"Session {session} goes on with all that was set aside, also with: {', '.join(left)}.",
            hint="Name these, too, or no task at all.",
            session=session,
            tasks=left,
        )
    if not aside:
        raise SessionError(
            f"Session {session} has no failed task that could run again.",
            hint=f"See: {words.fleet_command('failed', 'list', '--session', session)}.",
            session=session,
        )
    handle.resume()
    return {"session": session, "requeued": aside, "status": handle.status().status}
