"""Journal segments in Redis: lists that frames are appended to, one after each cut.

    graflow:ck:{id}:journal                  set of epoch:after
    graflow:ck:{id}:journal:{epoch}:{after}  list of frames

Promise: a frame has been confirmed when `append` returns, once, and it was appended by the session's
owner. After a failure nothing more is appended, ever.
Not here: that what is confirmed is on a disk (redis.py asks), what is in a frame, and which frames
count (checkpoint/journal.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from graflow_ckpt.core.errors import JournalFailed, ServerError
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument
from graflow_ckpt.stores.redis_lease import RedisLease
from graflow_ckpt.stores.redis_names import Keys
from graflow_ckpt.stores.redis_scripts import Scripts

_PAGE = 1000  # frames that are read at once


class RedisSegment:
    """One open segment."""

    def __init__(self, lease: RedisLease, scripts: Scripts, after: int) -> None:
        self.key = lease.keys.segment(lease.epoch, after)
        self._lease = lease
        self._scripts = scripts
        self._count = 0
        self._open = True
        self._mutex = threading.Lock()

    def append(self, frame: bytes, /) -> None:
        """Confirmed when it returns. JournalFailed closes the segment; so does Ctrl-C in the middle."""
        with self._mutex:
            if not self._open:
                raise self._failed("it was closed")
            self._lease.not_released()
            self._open = False  # until it is known that nothing went wrong
            keys = [self._lease.keys.lease, self.key]
            try:
                found = self._scripts.sure("append", keys, [*self._lease.fenced, self._count, frame])
            except ServerError as error:
                raise self._failed(error.message.rstrip(".")) from error
            if found == 0:
                self._lease.check()
            if found != 1:
                raise self._failed("another writer has appended to it")
            self._count += 1
            self._open = True

    def close(self) -> None:
        self._open = False

    def _failed(self, why: str) -> JournalFailed:
        return JournalFailed(
            f"Cannot append to the journal of session {self._lease.session!r} ({self.key}): {why}.",
            hint="The session stops here; what was appended before is safe. Mend the server and resume.",
            session=self._lease.session,
            path=self.key,
        )


def open_segment(lease: RedisLease, scripts: Scripts, after: int) -> RedisSegment:
    """A new segment for the records after `after`."""
    lease.not_released()
    keys, key = lease.keys, lease.keys.segment(lease.epoch, after)
    args: list[Argument] = [*lease.fenced, f"{lease.epoch}:{after}"]
    begun = scripts.sure("begin", [keys.lease, keys.journal, key], args)
    if begun == 0:
        lease.check()
    if begun != 1:
        raise JournalFailed(
            f"The journal segment {key} has records already.",
            hint="Two writers of one epoch cannot be; resume the session to open a new epoch.",
            session=lease.session,
            path=key,
        )
    return RedisSegment(lease, scripts, after)


def read_segments(link: RedisLink, session: str) -> Iterator[tuple[int, int, bytes]]:
    """(epoch, after, bytes) in that order."""
    keys = Keys(session)
    for epoch, after in _segments(link, session):
        frames: list[bytes] = []
        key = keys.segment(epoch, after)
        with translated(link.address):
            client: Any = link.client
            while page := client.lrange(key, len(frames), len(frames) + _PAGE - 1):
                frames += page
        yield epoch, after, b"".join(frames)


def drop_segments(link: RedisLink, scripts: Scripts, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    keys = Keys(session)
    gone = [segment for segment, (_, ended) in pairwise(_segments(link, session)) if ended <= before]
    if gone:
        names = [keys.segment(*segment) for segment in gone]
        scripts.sure("drop", [keys.journal, *names], [f"{epoch}:{after}" for epoch, after in gone])


def _segments(link: RedisLink, session: str) -> list[tuple[int, int]]:
    key = Keys(session).journal
    with translated(link.address):
        client: Any = link.client  # its types allow replies that never come here
        found = client.smembers(key)
    pairs = (member.decode().split(":") for member in found)
    return sorted((int(epoch), int(after)) for epoch, after in pairs)
