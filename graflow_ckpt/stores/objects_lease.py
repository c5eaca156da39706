"""Leases and journals in an object store: one owner per session, by conditional puts, and its frames.

Promise: of several who acquire a session at once exactly one gets it: a claim is a change of the head.
Before `acquire` returns, everything a former owner may still be at is closed to it (objects_orphans.py).
An owner is told by epoch and claim: a head that was put back to an older state gives an epoch out once more.
No clock decides who may write. The bucket's clock and the watcher's patience decide only whether a
silent owner on another machine may be taken over: a thread touches `alive/{id}/{epoch}` every third of
the lease's time, and whoever is not seen to do so for that time counts as dead. An owner on this machine
is judged by its process.

Journal segments in an object store: one object per frame, since nothing there can be appended to.

    sessions/{id}                        the head says which segments there are
    alive/{id}/{epoch}-{after}-{claim}   that it was begun
    journal/{id}/{epoch}-{after}-{claim}/{n}      a frame; an empty one closes the segment for good

Promise: a frame is in the bucket when `append` returns, once: it is created under the next number, and
the bucket refuses a number that is taken. The next owner takes the next number of each open segment for
an empty frame before it begins, so a former owner's append is refused: also of those that the head does not
know (any more), because it was put back. Two owners never have a segment in common, even if they have the
same epoch: its name has the claim in it. After a failure nothing more is appended, ever.

What it costs: each append is a request (tens of milliseconds at the large services, and a price), so
`durability="journal"` suits sessions of slow tasks here. Dropping a segment leaves its empty frame.
Not here: what is in a frame, and which frames count (checkpoint/journal.py).
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from graflow_ckpt.core.errors import ServerError, ServerGone
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import is_gone, is_near, myself
from graflow_ckpt.stores.fencing import FencedLease, FencedSegment, Watch, used
from graflow_ckpt.stores.objects_bucket import Bucket, Patience, patiently
from graflow_ckpt.stores.objects_head import Change, Head, Heads, Seen, Span
from graflow_ckpt.stores.objects_names import alive_key, begun_key, segment_key, segment_name

LEASE = 30.0


class ObjectLease(FencedLease):
    """One in a bucket."""

    def __init__(
        self, bucket: Bucket, heads: Heads, session: str, seen: Seen, taken_from: Owner | None
    ) -> None:
        self._bucket = bucket
        self._heads = heads
        self._seen: Seen | None = seen
        self._done: set[str] = set()  # announced writes that are over: the next change says so
        self._mutex = threading.Lock()
        head = seen.head
        super().__init__(bucket.address, session, head.epoch, head.claim, taken_from, head.seconds)

    @property
    def head(self) -> Head:
        """As it was when last looked at."""
        seen = self._seen or self._heads.read(self.session)
        return seen.head

    def check(self) -> None:
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

    def _let_go(self) -> None:
        self.change(lambda head: replace(head, owner=None))
        self._bucket.delete([alive_key(self.session, self.epoch)])

    def _renew(self) -> bool:
        self._bucket.put(alive_key(self.session, self.epoch), os.urandom(8))
        return True

    def _still_ours(self, head: Head) -> None:
        if (head.epoch, head.claim) == (self.epoch, self.claim):
            return
        raise self.lost_to(None if head.epoch < self.epoch else head.epoch, head.owner)

    def _tidied(self, head: Head) -> Head:
        left = {mark: write for mark, write in head.announced.items() if mark not in self._done}
        return replace(head, announced=left)


class Leases:
    """The leases of the sessions in one bucket."""

    def __init__(self, bucket: Bucket, heads: Heads, seconds: float) -> None:
        self._bucket = bucket
        self._heads = heads
        self._seconds = seconds

    def claim(self, session: str, *, take_over: bool) -> ObjectLease:
        """Become the owner in the head; what a former owner is still at is not closed to it yet."""
        nonce, me = uuid.uuid4().hex, myself()
        patience, watch = Patience(), Watch(session)
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

    def _is_dead(self, session: str, seen: Seen, watch: Watch) -> bool:
        """Whether the owner may be taken over; False: look again. SessionBusy: it lives."""
        owner = seen.head.owner
        assert owner is not None
        if is_gone(owner):
            return True
        if watch.since is None and not is_near(owner) and self._silent(session, seen):
            return True
        return watch.silent(owner, self._mark(session, seen), seen.head.seconds)

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


# --- journals ------------------------------------------------------------------------------


_AT_ONCE = 16  # frames that are read at once


class ObjectSegment(FencedSegment):
    """One in a bucket."""

    mend = "store"

    def __init__(self, bucket: Bucket, lease: ObjectLease, key: str) -> None:
        super().__init__(lease, key)
        self._bucket = bucket

    def _write(self, frame: bytes) -> bool:
        found = create_frame(self._bucket, frame_key(self.key, self._count), frame)
        if not found:
            self._owner.check()
        return found == frame


def open_segment(bucket: Bucket, lease: ObjectLease, after: int) -> ObjectSegment:
    """A new segment for the records after `after`."""
    lease.not_released()
    segment, name = (lease.epoch, after), segment_name(lease.epoch, after, lease.claim)
    key = segment_key(lease.session, name)

    def begin(head: Head) -> Head | None:
        if segment in head.segments:
            return None
        return replace(head, segments={**head.segments, segment: Span(claim=lease.claim)})

    is_new = _create(bucket, begun_key(lease.session, name))  # before the head says so: see close_behind
    lease.change(begin)
    if not is_new and any(True for _ in bucket.list(key)):
        lease.check()
        raise used(lease.session, key)
    return ObjectSegment(bucket, lease, key)


def close_segment(bucket: Bucket, session: str, name: str) -> int:
    """Take the next number, so that nobody else does; which one it is."""
    key = segment_key(session, name)
    number = sum(1 for _ in bucket.list(key))
    if number and (last := bucket.get(frame_key(key, number - 1))) is not None and not last.data:
        return number - 1  # who was at it before us has ended in the middle
    while create_frame(bucket, frame_key(key, number), b""):
        number += 1  # the former owner was faster
    return number


def read_segments(bucket: Bucket, heads: Heads, session: str) -> Iterator[tuple[int, int, bytes]]:
    """(epoch, after, bytes) in that order."""
    head = heads.read(session).head
    for epoch, after in sorted(head.segments):
        entries = bucket.list(segment_key(session, head.named((epoch, after))))
        keys = [entry.key for entry in entries if entry.size]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="journal") as pool:
            found = list(pool.map(bucket.get, keys))
        # one that is gone was dropped meanwhile; if not, the chain of seals says so
        yield epoch, after, b"".join(frame.data for frame in found if frame is not None)


def drop_segments(bucket: Bucket, heads: Heads, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    gone: dict[tuple[int, int], str] = {}

    def forget(head: Head) -> Head | None:
        found = [segment for segment, (_, ended) in pairwise(sorted(head.segments)) if ended <= before]
        gone.update({segment: head.named(segment) for segment in found})
        if not any(segment in head.segments for segment in gone):
            return None
        return replace(head, segments={s: span for s, span in head.segments.items() if s not in gone})

    heads.update(session, forget)
    for name in gone.values():
        # an empty frame stays: a former owner that wakes up must still find its number taken
        entries = bucket.list(segment_key(session, name))
        bucket.delete([begun_key(session, name), *(entry.key for entry in entries if entry.size)])


def frame_key(segment: str, number: int) -> str:
    return f"{segment}/{number:010d}"


def _create(bucket: Bucket, key: str) -> bool:
    """False: it was there already; or this is the second try, whose first one nobody has heard of."""
    return patiently(lambda: bucket.create(key, b"") is not None)


def create_frame(bucket: Bucket, key: str, frame: bytes) -> bytes:
    """What is there now: the frame, unless somebody else has taken the number."""

    def ask() -> bytes:
        while bucket.create(key, frame) is None:
            if (found := bucket.get(key)) is not None:
                return found.data
        return frame

    return patiently(ask)
