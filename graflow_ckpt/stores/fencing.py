"""Leases and journal segments of stores that fence: what they have in common.

An owner is known by epoch and claim: by both, since a place that was put back to an older state gives an
epoch out once more. What a store compares them with, and how, is its own.

Promise: a thread renews a lease until it is released, and raises nothing if that fails: the next write does.
After a failed append nothing more is appended to that segment, ever; nor after a Ctrl-C in the middle of one.
Not here: a folder, whose owner keeps it for life (ownership.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from graflow_ckpt.core.errors import CheckpointError, Fenced, GraflowError, JournalFailed, ServerError
from graflow_ckpt.core.protocols import Lease, Owner
from graflow_ckpt.links.processes import is_near, named
from graflow_ckpt.stores.claims import busy, forgotten, lost, released

_logger = logging.getLogger(__name__)
_POLL = 0.1


class FencedLease:
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
        """Release the session. What cannot be written then does not matter: the lease runs out."""
        if self._released or self._process != os.getpid():
            return
        self._over.set()
        try:
            self._let_go()
        except GraflowError as error:
            _logger.info("session %s let go without a word: %s", self.session, error)
        finally:
            self._released = True

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise released(self.session, self.epoch)

    def lost_to(self, epoch: int | None, owner: Owner | None) -> Fenced:
        """Return what to raise where another claim was found. `epoch`: its epoch; None: nothing is known."""
        self._over.set()
        if epoch is None:
            return forgotten(self.where, self.session, self.epoch)
        return lost(self.session, self.epoch, epoch, owner)

    def _let_go(self) -> None:
        """Write down that it has no owner, if it is still ours."""
        raise NotImplementedError

    def _renew(self) -> bool:
        """Show that the owner lives; False: the session is another's by now."""
        raise NotImplementedError

    def _keep(self) -> None:
        """Renew, in the keeper's thread: whatever goes wrong in one pass, the next one tries again."""
        while not self._over.wait(self._seconds / 3):
            try:
                kept = self._renew()
            except Exception as error:  # noqa: BLE001  a keeper's pass
                _logger.warning("cannot renew session %s: %s", self.session, error)
                continue
            if not kept:
                return  # the next write raises it, where the program sees it


@contextmanager
def clearing(lease: Lease) -> Iterator[None]:
    """Log what a new owner cannot clear away of former ones; that stays. After any other error the
    session is released."""
    try:
        yield
    except (ServerError, OSError) as error:
        said = {"session": lease.session}
        _logger.warning("leftovers of session %s stay: %s", lease.session, error, extra=said)
    except BaseException:
        lease.release()
        raise


class OwnerWatch:
    """The time for which an owner of another machine or container has shown no life since the first look."""

    def __init__(self, session: str) -> None:
        self.since: float | None = None  # the first look
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

    def __init__(self, lease: FencedLease, key: str) -> None:
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
            except (ServerError, CheckpointError) as error:
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

    def _failed(self, why: str) -> JournalFailed:
        return cannot_append(self._owner.session, self.key, why, self.mend)


def cannot_append(session: str, key: str, why: str, mend: str) -> JournalFailed:
    return JournalFailed(
        f"Cannot append to the journal of session {session!r} ({key}): {why}.",
        hint=f"The session stops here; what was appended before is safe. Mend the {mend} and resume.",
        session=session,
        path=key,
    )


def used(session: str, key: str) -> JournalFailed:
    """Return what to raise where a segment that is to be begun has frames."""
    return JournalFailed(
        f"The journal segment {key} has records already.",
        hint="Two writers of one epoch cannot be; resume the session to open a new epoch.",
        session=session,
        path=key,
    )
