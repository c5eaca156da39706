"""Journal segments in an object store: one object per frame, since nothing there can be appended to.

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

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

from graflow_ckpt.core.errors import JournalFailed, ServerError, ServerGone
from graflow_ckpt.stores.objects_bucket import Bucket, Patience
from graflow_ckpt.stores.objects_head import Head, Heads, Span
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_names import begun_key, segment_key, segment_name

_AT_ONCE = 16  # frames that are read at once


class ObjectSegment:
    """One open segment."""

    def __init__(self, bucket: Bucket, lease: ObjectLease, key: str) -> None:
        self.key = key
        self._bucket = bucket
        self._lease = lease
        self._count = 0
        self._open = True
        self._mutex = threading.Lock()

    def append(self, frame: bytes, /) -> None:
        """Durable when it returns. JournalFailed closes the segment; so does Ctrl-C in the middle."""
        with self._mutex:
            if not self._open:
                raise self._failed("it was closed")
            self._lease.not_released()
            self._open = False  # until it is known that nothing went wrong
            try:
                found = create_frame(self._bucket, frame_key(self.key, self._count), frame)
            except ServerError as error:
                raise self._failed(error.message.rstrip(".")) from error
            if not found:
                self._lease.check()
            if found != frame:
                raise self._failed("another writer has appended to it")
            self._count += 1
            self._open = True

    def close(self) -> None:
        self._open = False

    def _failed(self, why: str) -> JournalFailed:
        return JournalFailed(
            f"Cannot append to the journal of session {self._lease.session!r} ({self.key}): {why}.",
            hint="The session stops here; what was appended before is safe. Mend the store and resume.",
            session=self._lease.session,
            path=self.key,
        )


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
        raise JournalFailed(
            f"The journal segment {key} has records already.",
            hint="Two writers of one epoch cannot be; resume the session to open a new epoch.",
            session=lease.session,
            path=key,
        )
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
    patience = Patience()
    while True:
        try:
            return bucket.create(key, b"") is not None
        except ServerGone:
            if patience.over():
                raise


def create_frame(bucket: Bucket, key: str, frame: bytes) -> bytes:
    """What is there now: the frame, unless somebody else has taken the number."""
    patience = Patience()
    while True:
        try:
            if bucket.create(key, frame) is not None:
                return frame
            found = bucket.get(key)
            if found is not None:
                return found.data
        except ServerGone:
            if patience.over():
                raise
