"""Steering: sessions of a fleet are paused, cancelled, gone on with, and taken away.

What a verb cannot do to a session in its state is an error, except where it is already what the verb
would make of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graflow_ckpt.core.errors import SessionBusy, SessionDamaged, SessionError
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.status import UNKNOWN, Status, read_all
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.connecting import session_at
from graflow_ckpt.interfaces.cli.fleet_rows import FINISHED
from graflow_ckpt.interfaces.cli.manner import Document


def paused(handle: Handle, reason: str) -> Status:
    """Nothing more is handed out; what runs is finished."""
    status = handle.status()
    if status.status == "paused":
        return status
    if status.status != "running":
        raise _cannot(status, "be paused")
    handle.pause(reason)
    return handle.status()


def cancelled(handle: Handle, reason: str, *, hard: bool) -> Status:
    """For good."""
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
    """After a pause, a failure, or max_steps; how it was, and how it is."""
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
    """All of them, or none if one of them is refused."""
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
            handle.cancel("purged", hard=True)  # who runs a task of it has lost its token before the keys go
        handle.purge()
    return [{"session": status.session, "status": status.status, "purged": True} for _, status in found]


def _found(client: Client, session: str) -> tuple[Handle, Status]:
    """A session that is to be deleted, also one that cannot be read."""
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
