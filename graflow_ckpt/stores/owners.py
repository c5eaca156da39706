"""Owners of sessions: as a store has written them, as those that hold them show it, and what is said of them.

An owner is known by epoch and claim: by both, since a place that was put back to an older state gives an
epoch out once more. What a store compares them with, and how, is its own.

Promise: an owner that is read back is what a store can have written, or `CheckpointCorrupt`, whatever was
written since: not another error, and no owner whose fields are not what they say. A thread renews a lease
until it is released, and raises nothing if that fails: the next write does. If the release cannot be written
the thread tries that again, and nothing waits for it in this process. After a failed append nothing more is
appended to that segment, ever; nor after a Ctrl-C in the middle of one.
Not here: which process owns the session; a folder, whose owners are never fenced (ownership.py).
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Lease, Line, Owner
from graflow_ckpt.links.processes import is_myself, is_near, named

_logger = logging.getLogger(__name__)

_FIELDS: Final = tuple(field.name for field in fields(Owner))
_RANKS: Final = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_PIDS: Final = range(1, 2**31)
_NUMBERS: Final = range(2**63)
_POLL = 0.1
GRACE = 2.0  # seconds in which an owner that could not reach its store shows that it lives
_SOON = 0.5  # seconds until what failed is tried again

abandoned: set[str] = set()
"""Claims that this process has given up, and that may be in their store still: dead, though it lives."""


def parsed(said: str | bytes, where: str) -> Any:
    """Return JSON, whatever it holds."""
    try:
        return json.loads(said)
    except (ValueError, RecursionError) as error:
        raise nonsense(where) from error


def owner_of(found: Any, where: str) -> Owner:
    """Return the owner that was written, as its JSON has held it."""
    try:
        owner = Owner(**{name: found[name] for name in _FIELDS})
    except (TypeError, LookupError) as error:
        raise nonsense(where) from error
    texts = (getattr(owner, name) for name in _FIELDS if name != "pid")
    if type(owner.pid) is not int or owner.pid not in _PIDS or not all(type(text) is str for text in texts):
        raise nonsense(where)
    return owner


def lines_of(found: Any, where: str) -> tuple[Line, ...]:
    """Return pairs of an epoch and a sequence, from lists or from a text."""
    try:
        lines = tuple(Line(number(epoch, where), number(sequence, where)) for epoch, sequence in found)
    except (TypeError, ValueError) as error:
        raise nonsense(where) from error
    return lines


def number(found: Any, where: str) -> int:
    """Return a count of this package: not negative, and of no size that nothing ever reaches."""
    try:
        count = int(found) if type(found) is not float else -1
    except (TypeError, ValueError) as error:
        raise nonsense(where) from error
    if count not in _NUMBERS or type(found) is bool:
        raise nonsense(where)
    return count


def nonsense(where: str) -> errors.CheckpointCorrupt:
    return errors.CheckpointCorrupt(
        f"What is written of the owners of a session in {where} was not written by this package.",
        hint="Find out who else can write there. The checkpoints are not in it: each can still be looked at, "
        "and another session can be forked from it.",
        where=where,
    )


# --- what is said of them ------------------------------------------------------------------


def lost(session: str, epoch: int, found: int, owner: Owner | None) -> errors.Fenced:
    """Return the error for a store that has another claim than that of this owner. `found`: its epoch."""
    if found > epoch:
        said = f"Session {session!r} was taken over by {named(owner)}."
    elif found == epoch:
        said = (
            f"Session {session!r} belongs to {named(owner)} under the same epoch, {epoch}: "
            "the store has forgotten this owner (a restored backup, a failover), and gave it out once more."
        )
        _logger.warning("a write was refused: %s", said, extra={"session": session})
    else:
        said = (
            f"The store has forgotten epoch {epoch} of session {session!r}, and knows {found} as the last: "
            "it is in an older state (a restored backup, a failover)."
        )
    hint = "Nothing that this process does counts any more; it should end."
    return errors.Fenced(said, hint=hint, session=session, epoch=epoch, owner=owner)


def busy(session: str, owner: Owner | None) -> errors.SessionBusy:
    if owner is not None and is_myself(owner):
        whom, hint = f"this process itself (since {owner.since})", "Leave or release it there first."
    else:
        whom, hint = named(owner), "Wait for it, end it, or take the session over (--take-over)."
    return errors.SessionBusy(
        f"Session {session!r} is in use by {whom}.",
        hint=_rank_hint(session, [name for name in _RANKS if name in os.environ]) or hint,
        session=session,
        owner=owner,
    )


def no_take_over(session: str, url: str) -> errors.SessionBusy:
    """Return the error of a store of files: its owners cannot be fenced, only ended, after a question."""
    command = f"graflow-ckpt resume {session} --take-over --store {shlex.quote(url)}"
    return errors.SessionBusy(
        f"take_over=True is not possible for session {session!r}: in a folder an owner keeps it for life.",
        hint=f"End the owner, or run this command, which names it and asks first: {command}",
        session=session,
        owner=None,
    )


def _rank_hint(session: str, ranks: Sequence[str]) -> str:
    if not ranks and "WORLD_SIZE" not in os.environ:
        return ""
    name = ranks[0] if ranks else "RANK"
    rank = os.environ.get(name, "")
    example = f' (here "{session}-rank{rank}")' if rank else ""
    return (
        f"{name} is set, so this program seems to run once per rank: give each its own session, "
        f'session_id=f"{session}-rank{{r}}" with r from {name}{example}.'
    )


def released(session: str, epoch: int) -> errors.Fenced:
    """Return what to raise where a lease is used after its release, or in a forked child."""
    return errors.Fenced(
        f"Session {session!r} is not owned by this process (any more): the lease was released, "
        "or the process was forked from its owner.",
        hint="Acquire it first.",
        session=session,
        epoch=epoch,
    )


NO_MORE: Final = "Nothing more is written, because another process could own the session now."


def forgotten(server: str, session: str, epoch: int) -> errors.Fenced:
    """Return what to raise where a server does not know the session of its owner."""
    return errors.Fenced(
        f"{server} has forgotten session {session!r}: its data was lost, removed or replaced.",
        hint=NO_MORE,
        session=session,
        epoch=epoch,
    )


# --- leases and segments -------------------------------------------------------------------


class HeldLease:
    """A session that this process owns until it releases it, dies, or is fenced.

    A subclass sets what it needs before it calls `__init__`, which starts the keeper, unless silence says
    nothing here: `seconds` is 0.
    """

    def __init__(
        self, where: str, session: str, epoch: int, claim: str, taken_from: Owner | None, seconds: float = 0
    ) -> None:
        self.session = session
        self.epoch = epoch
        self.claim = claim
        self.taken_from = taken_from
        self.where = where
        self._seconds = seconds
        self._process = os.getpid()
        self._released = False
        self._over = threading.Event()  # nothing is left to renew
        if seconds:
            threading.Thread(target=self._keep, name=f"lease-{session}", daemon=True).start()

    def check(self) -> None:
        """Raise `Fenced` unless the session is still ours: the place itself is asked."""
        raise NotImplementedError

    def release(self) -> None:
        """Release the session. What cannot be written then, the keeper writes later."""
        if self._released or self._process != os.getpid():
            return
        try:
            self._end()
        except (errors.GraflowError, OSError) as error:
            _logger.info("session %s let go without a word: %s", self.session, error)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the session up, whatever its store says of it; the keeper releases it there."""
        if not self._released:
            abandoned.add(self.claim)
            self._released = True

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise released(self.session, self.epoch)

    def lost_to(self, epoch: int | None, owner: Owner | None) -> errors.Fenced:
        """Return what to raise where another claim was found. `epoch`: its epoch; None: nothing is known."""
        self._over.set()
        if epoch is None:
            return forgotten(self.where, self.session, self.epoch)
        return lost(self.session, self.epoch, epoch, owner)

    def _let_go(self) -> None:
        """Write down that it has no owner, if it is still ours."""
        raise NotImplementedError

    def _end(self) -> None:
        self._let_go()
        self._over.set()
        abandoned.discard(self.claim)
        self._released = True

    def _renew(self) -> bool:
        """Show that the owner lives; False: the session is another's by now."""
        raise NotImplementedError

    def _keep(self) -> None:
        """Renew, in the keeper's thread, and release at last: whatever goes wrong in one pass, the next one
        tries again."""
        often = pause = self._seconds / 3
        while not self._over.wait(pause):
            try:
                if self._released:
                    self._end()
                elif not self._renew():
                    return  # the next write raises it, where the program sees it
                pause = often
            except Exception as error:  # noqa: BLE001  a keeper's pass
                if pause == often:
                    _logger.warning("cannot renew or release session %s: %s", self.session, error)
                pause = often if self._released else min(often, _SOON)


@contextmanager
def clearing(lease: Lease) -> Iterator[None]:
    """Log what a new owner cannot clear away of former ones; that stays. After any other error the
    session is released."""
    try:
        yield
    except (errors.ServerError, OSError) as error:
        said = {"session": lease.session}
        _logger.warning("leftovers of session %s stay: %s", lease.session, error, extra=said)
    except BaseException:
        lease.release()
        raise


class OwnerWatch:
    """The time for which an owner of another machine or container has shown no life since the first look."""

    def __init__(self, session: str) -> None:
        self.since: float | None = None  # the first look
        self.over = False  # by the place's clock, at that look
        self._session = session
        self._mark: object = None

    def silent(self, owner: Owner, mark: object, seconds: float) -> bool:
        """Wait a moment; return whether the owner was silent for longer. `SessionBusy`: it lives, for it is
        near, or its `mark` is another one than at the first look."""
        if is_near(owner) or (self.since is not None and mark != self._mark):
            raise busy(self._session, owner)
        if self.since is None:
            _logger.info("waiting to see whether %s is alive", named(owner), extra={"session": self._session})
            self._mark, self.since = mark, time.monotonic()
        lasted = time.monotonic() - self.since
        time.sleep(_POLL)
        return lasted > seconds


class FencedSegment:
    """One open segment. `key`: what it is called there; `mend`: what to repair if an append fails."""

    mend = "server"

    def __init__(self, lease: HeldLease, key: str) -> None:
        self.key = key
        self._owner = lease
        self._count = 0  # of frames that are there
        self._open = True
        self._mutex = threading.Lock()

    def append(self, frame: bytes, /) -> None:
        """Append; durable on return. JournalFailed closes the segment; so does Ctrl-C in the middle."""
        with self._mutex:
            if not self._open:
                raise self._failed("it was closed")
            self._owner.not_released()
            self._open = False  # until it is known that nothing went wrong
            try:
                appended = self._write(frame)
            except (errors.ServerError, errors.CheckpointError) as error:
                raise self._failed(error.message.rstrip(".")) from error
            if not appended:
                raise self._failed("another writer has appended to it")
            self._count += 1
            self._open = True

    def close(self) -> None:
        self._open = False

    def _write(self, frame: bytes) -> bool:
        """Write as the owner, after `_count` others; False: there are more. Raise `Fenced`, if it is lost."""
        raise NotImplementedError

    def _failed(self, why: str) -> errors.JournalFailed:
        return cannot_append(self._owner.session, self.key, why, self.mend)


def cannot_append(session: str, key: str, why: str, mend: str) -> errors.JournalFailed:
    return errors.JournalFailed(
        f"Cannot append to the journal of session {session!r} ({key}): {why}.",
        hint=f"The session stops here; what was appended before is safe. Mend the {mend} and resume.",
        session=session,
        path=key,
    )


def used(session: str, key: str) -> errors.JournalFailed:
    """Return what to raise where a segment that is to be begun has frames."""
    return errors.JournalFailed(
        f"The journal segment {key} has records already.",
        hint="Two writers of one epoch cannot be; resume the session to open a new epoch.",
        session=session,
        path=key,
    )
