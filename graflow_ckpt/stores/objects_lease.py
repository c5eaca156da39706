"""Leases in an object store: one owner per session, under an epoch that only grows, by conditional puts.

Promise: of several who acquire a session at once exactly one gets it: a claim is a change of the head.
Before `acquire` returns, everything a former owner may still be at is closed to it (objects_fence.py).
An owner is told by epoch and claim: a head that was put back to an older state gives an epoch out once more.
No clock decides who may write. The bucket's clock and the watcher's patience decide only whether a
silent owner on another machine may be taken over: a thread touches `alive/{id}/{epoch}` every third of
the lease's time, and whoever is not seen to do so for that time counts as dead. An owner on this machine
is judged by its process.
Not here: what the epoch guards (objects_trio.py, objects_journal.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from graflow_ckpt.core.errors import GraflowError, ServerError, ServerGone
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import is_gone, is_near, myself, named
from graflow_ckpt.stores.claims import busy, forgotten, lost, released
from graflow_ckpt.stores.objects_bucket import Bucket, Patience
from graflow_ckpt.stores.objects_head import Change, Head, Heads, Seen
from graflow_ckpt.stores.objects_names import alive_key

LEASE = 30.0

_POLL = 0.2
_logger = logging.getLogger(__name__)


class ObjectLease:
    """A session that this process owns until it releases it, dies, or is fenced."""

    def __init__(
        self, bucket: Bucket, heads: Heads, session: str, seen: Seen, taken_from: Owner | None
    ) -> None:
        self.session = session
        self.epoch = seen.head.epoch
        self.claim = seen.head.claim
        self.taken_from = taken_from
        self._bucket = bucket
        self._heads = heads
        self._seen: Seen | None = seen
        self._seconds = seen.head.seconds
        self._done: set[str] = set()  # announced writes that are over: the next change says so
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._released = False
        self._over = threading.Event()  # nothing is left to keep alive
        self._keeper = threading.Thread(target=self._keep, name=f"lease-{session}", daemon=True)
        self._keeper.start()

    @property
    def head(self) -> Head:
        """As it was when last looked at."""
        seen = self._seen or self._heads.read(self.session)
        return seen.head

    def check(self) -> None:
        """Raise `Fenced` unless the session is still ours: the bucket is asked."""
        self.not_released()
        with self._mutex:
            self._seen = self._heads.read(self.session)
        self._still_ours(self._seen.head)

    def change(self, change: Change) -> Seen:
        """Change the head as its owner; `Fenced` if it is another's by now."""
        self.not_released()

        def ours(head: Head) -> Head | None:
            self._still_ours(head)
            changed = change(head)
            return None if changed is None else self._tidied(changed)

        with self._mutex:
            known, self._seen = self._seen, None  # after a failure nothing is known
            seen = self._seen = self._heads.update(self.session, ours, known)
            self._done.intersection_update(seen.head.announced)
        if seen is known:  # there was nothing to write, so nobody could refuse it
            self.check()
        return seen

    def forget(self, *marks: str) -> None:
        """Announced writes that are over, one way or the other."""
        self._done.update(marks)

    def release(self) -> None:
        """Let the session go. What cannot be written then does not matter: the lease runs out."""
        if self._process != os.getpid() or self._released:
            return
        try:
            self.change(lambda head: replace(head, owner=None))
            self._bucket.delete([alive_key(self.session, self.epoch)])
        except GraflowError as error:
            _logger.info("session %s let go without a word: %s", self.session, error)
        finally:
            self._released = True
            self._over.set()

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise released(self.session, self.epoch)

    def _still_ours(self, head: Head) -> None:
        if (head.epoch, head.claim) == (self.epoch, self.claim):
            return
        self._over.set()
        if head.epoch < self.epoch:
            raise forgotten(self._bucket.address, self.session, self.epoch)
        raise lost(self.session, self.epoch, head.epoch, head.owner)

    def _tidied(self, head: Head) -> Head:
        left = {mark: write for mark, write in head.announced.items() if mark not in self._done}
        return replace(head, announced=left)

    def _keep(self) -> None:
        """The keeper's thread: whatever goes wrong in one pass, the next one tries again."""
        while not self._over.wait(self._seconds / 3):
            try:
                self._bucket.put(alive_key(self.session, self.epoch), os.urandom(8))
            except Exception as error:  # noqa: BLE001  a keeper's pass
                _logger.warning("cannot say that session %s is alive: %s", self.session, error)


class Leases:
    """The leases of the sessions in one bucket."""

    def __init__(self, bucket: Bucket, heads: Heads, seconds: float) -> None:
        self._bucket = bucket
        self._heads = heads
        self._seconds = seconds

    def claim(self, session: str, *, take_over: bool) -> ObjectLease:
        """Become the owner in the head; what a former owner is still at is not closed to it yet."""
        nonce, me = uuid.uuid4().hex, myself()
        patience, watch = Patience(), _Watch()
        former: Owner | None = None
        meant: str | None = None  # the claim that may be taken over without a question
        while True:
            try:
                seen = self._heads.read(session)
                head = seen.head
                if head.claim == nonce:  # the reply to it was lost
                    return ObjectLease(self._bucket, self._heads, session, seen, former)
                former = head.owner
                meant = head.claim if meant is None else meant
                asks = not take_over or head.claim != meant  # else somebody else was faster
                if former is not None and asks and not self._is_dead(session, seen, watch):
                    time.sleep(_POLL)
                    continue
                highest = self._highest_epoch(session) if seen.tag is None else head.epoch
                epoch = highest + 1
                pins = [mark for mark in head.pins if not mark.startswith("0-")]  # of owners: they end here
                claimed = replace(head, epoch=epoch, claim=nonce, owner=me, seconds=self._seconds)
                claimed = claimed.without_pins(*pins)
                written = self._heads.try_write(session, seen, claimed)
            except ServerGone:
                if patience.over():
                    raise
                continue
            if written is not None:
                return ObjectLease(self._bucket, self._heads, session, written, former)

    def owner(self, session: str) -> Owner | None:
        """The living owner, without taking anything."""
        seen = self._heads.read(session)
        owner = seen.head.owner
        if owner is None or is_gone(owner):
            return None
        if is_near(owner) or not self._silent(session, seen):
            return owner
        return None

    def _is_dead(self, session: str, seen: Seen, watch: _Watch) -> bool:
        """Whether the owner may be taken over; False: look again. SessionBusy: it lives."""
        owner = seen.head.owner
        assert owner is not None
        if is_gone(owner):
            return True
        if is_near(owner):
            raise busy(session, owner)
        mark = self._mark(session, seen)
        if watch.first is None:
            if self._silent(session, seen):
                return True
            _logger.info("waiting to see whether %s is alive", named(owner), extra={"session": session})
            watch.begin(mark)
        elif mark != watch.first:
            raise busy(session, owner)
        return watch.lasted(seen.head.seconds)

    def _mark(self, session: str, seen: Seen) -> tuple[object, ...]:
        """Something else each time that the owner shows itself."""
        beat = self._bucket.get(alive_key(session, seen.head.epoch))
        return seen.head.claim, beat and beat.data

    def _silent(self, session: str, seen: Seen) -> bool:
        """Whether nothing was heard of the owner for too long, by the bucket's clock."""
        beat = self._bucket.written_at(alive_key(session, seen.head.epoch))
        heard = max((at for at in (beat, seen.at) if at is not None), default=None)
        try:
            now = self._bucket.now()
        except ServerError:  # we may only read there
            now = datetime.now(UTC)
        # A whole second more: that is how exact the clock of a bucket is.
        return heard is not None and now - heard > timedelta(seconds=seen.head.seconds + 1)

    def _highest_epoch(self, session: str) -> int:
        """From the keys of what else the session has, should its head have been lost."""
        found = (self._bucket.list(f"{kind}/{session}") for kind in ("data", "journal", "alive"))
        names = [entry.key.split("/")[2] for entries in found for entry in entries]
        epochs = (name.partition("-")[0] for name in names)
        return max((int(epoch) for epoch in epochs if epoch.isdecimal()), default=0)


class _Watch:
    """How long somebody has shown no life while one looked."""

    def __init__(self) -> None:
        self.first: tuple[object, ...] | None = None
        self._since = 0.0

    def begin(self, mark: tuple[object, ...]) -> None:
        self.first, self._since = mark, time.monotonic()

    def lasted(self, seconds: float) -> bool:
        return time.monotonic() - self._since > seconds
