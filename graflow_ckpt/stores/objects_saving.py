"""The contents of one save: found in the head of its session and pinned there, or written before the commit.

    data/{id or @}/{mark}/{name}/{n}     what a save has written; `mark`: epoch and nonce of that save
    sessions/{id}: pins {mark: …}        what it has found, until it commits or ends

Promise: what a save has found or written stays for it. The head alone decides: a commit holds what a
checkpoint or this save's pin holds there, or what this save has written; else it is refused (`gone`). A mark
is never used again, so what no head names any more may go, and nothing brings it back.
A save without a lease is pinned before it writes, also if it has found nothing: by that, what it writes is
told from what the dead have left. One with a lease is told by its epoch.

Checkpoints under names that are not a session's have contents of their own: there is one record in their
objects. So has one for whose contents there is no room in the head.
Not here: who removes what the dead have left (objects_orphans.py).
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from graflow_ckpt.core.errors import Fenced, GraflowError
from graflow_ckpt.stores.names import gone
from graflow_ckpt.stores.objects_bucket import Bucket
from graflow_ckpt.stores.objects_chunks import CHUNK, PieceSink, piece_key, piece_keys
from graflow_ckpt.stores.objects_head import LISTED, ROW, Announced, Change, Head, Heads, Pin, Seen
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_names import Target, data_key
from graflow_ckpt.stores.objects_record import Held, Record

_logger = logging.getLogger(__name__)
_AT_ONCE = 3  # contents that are on their way while another one is prepared


class ObjectSaving:
    """`over`: told when it has ended."""

    def __init__(
        self,
        bucket: Bucket,
        heads: Heads,
        target: Target,
        lease: ObjectLease | None,
        over: Callable[[], object],
    ) -> None:
        self.mark = f"{lease.epoch if lease is not None else 0}-{uuid.uuid4().hex}"
        self.added: dict[str, Held] = {}
        self.lease = lease
        self._target, self._bucket, self._heads, self._over = target, bucket, heads, over
        self._begun = False  # the head of its session says that it is under way
        self._sent = False  # a commit may be carried out that nobody has heard of
        self._pool: ThreadPoolExecutor | None = None
        self._going: deque[Future[None]] = deque()

    def hold(self, names: Sequence[str], /) -> Collection[str]:
        if self._target.session is None:
            return ()
        at = None if self._begun or self.lease is not None else self._bucket.now()
        found: dict[str, Held] = {}

        def pin(head: Head) -> Head | None:
            nonlocal found
            mine = head.pins.get(self.mark)
            if mine is None and self._begun:  # swept as a dead one's
                raise gone(self._target.base, names)
            found = head.find(names) if head.listed() <= LISTED else {}
            has = mine.held if mine is not None else ()
            more = [held for held in found.values() if held not in has]
            if not more and (mine is not None or self.lease is not None):
                return None
            pinned = Pin(mine.at if mine is not None else at, (*has, *more))
            return replace(head, pins={**head.pins, self.mark: pinned})

        self._begun = self.mark in self._change(pin).head.pins
        return found.keys()

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        self._begin()
        held = Held(self.mark, name, size)
        self.added[name] = held  # before anything of it is there
        key = data_key(self._target.tag, held.data)
        if size <= CHUNK:
            self._send(piece_key(key, 0), b"".join(pieces))
            return
        sink = PieceSink(self._bucket, key)
        try:
            for piece in pieces:
                sink.write(piece)
            sink.finish()
        except BaseException:
            sink.abandon()
            raise

    def settle(self) -> None:
        while self._going:
            self._going.popleft().result()

    def end(self) -> None:
        """What was not committed goes, unless that is not known: then the next owner sees to it."""
        self._over()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._sent:
            return
        let_go(self._bucket, self._target.tag, self.added.values())
        if self._begun and self._target.session is not None:
            with suppress(Fenced):  # then its pin has ended, too
                self._change(lambda head: head.without_pins(self.mark) if self.mark in head.pins else None)
        if self.lease is not None:
            self.lease.forget(self.mark)

    def sent(self) -> None:
        self._sent = True

    def decided(self, record: Record | None, *, committed: bool) -> None:
        """What the path points at is known now, and nothing is on its way any more."""
        kept = set(record.held()) if record is not None else set[Held]()
        every = Held(self.mark, "", 0) in kept
        self.added = {name: held for name, held in self.added.items() if not (every or held in kept)}
        self._sent = False
        self._begun = self._begun and not committed  # the commit has ended the pin

    def _begin(self) -> None:
        if self._begun or (self.lease is not None and self._target.session is not None):
            return
        if self.lease is None:
            self.hold(())
            return
        write = Announced(self._target.base, ())
        self.lease.change(lambda head: replace(head, announced={**head.announced, self.mark: write}))
        self._begun = True

    def _send(self, key: str, data: bytes) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="contents")
        if len(self._going) == _AT_ONCE:
            self._going.popleft().result()
        self._going.append(self._pool.submit(self._bucket.put, key, data))

    def _change(self, change: Change) -> Seen:
        """Of the head; what is let go by it is removed."""
        session, before = self._target.tag, set[Held]()

        def noted(head: Head) -> Head | None:
            before.update(head.held())
            return change(head)

        if self.lease is not None:
            seen = self.lease.change(noted)
        else:
            seen = self._heads.update(session, noted)
        let_go(self._bucket, session, before - seen.head.held())
        return seen


@dataclass(frozen=True, slots=True)
class Holding:
    """What a checkpoint that is put is to hold: the contents that its meta names."""

    bucket: Bucket
    target: Target
    saving: ObjectSaving | None
    names: Sequence[str]  # in the order in which they are read

    def given(self, record: Record, former: Record | None, head: Head) -> Record:
        """The record with what it holds; CheckpointError if something is not there."""
        if not self.names:
            return record
        own = former if former is not None and former.stage == record.stage else None
        found = head.find(self.names) | (dict(own.contents) if own is not None else {}) | self._pinned(head)
        added = self._added(head)
        missing = set(self.names) - found.keys() - added.keys()
        alone = own.alone if own is not None and missing else ""
        if missing and not (alone and missing <= names_under(self.bucket, self.target.tag, alone)):
            raise gone(self.target.base, missing)
        if added and (self.target.session is None or head.listed() + ROW * len(added) > LISTED):
            if alone:  # of two saves, which nobody makes
                raise gone(self.target.base, missing)
            alone = next(iter(added.values())).mark
            found = {name: held for name, held in found.items() if name not in added}
        else:
            found |= added
        return replace(record, contents={n: found[n] for n in self.names if n in found}, alone=alone)

    def _pinned(self, head: Head) -> dict[str, Held]:
        pin = head.pins.get(self.saving.mark) if self.saving is not None else None
        return {held.name: held for held in pin.held} if pin is not None else {}

    def _added(self, head: Head) -> dict[str, Held]:
        """What this save has written, if it is sure to be there still."""
        if self.saving is None:
            return {}
        swept = self.target.session is not None and self.saving.lease is None
        if swept and self.saving.mark not in head.pins:
            return {}
        return {name: held for name, held in self.saving.added.items() if name in self.names}


def names_under(bucket: Bucket, tag: str, mark: str) -> set[str]:
    """Of the contents that a save has written."""
    return {entry.key.split("/")[3] for entry in bucket.list(data_key(tag, mark))}


def let_go(bucket: Bucket, tag: str, contents: Collection[Held]) -> None:
    """Remove what nothing names any more, and nothing ever will. Left behind, it is in nobody's way."""
    try:
        if contents:
            bucket.delete(list(keys_of(bucket, tag, contents)))
    except GraflowError as error:
        _logger.warning("contents that nobody holds stay: %s", error)


def keys_of(bucket: Bucket, tag: str, contents: Iterable[Held]) -> Iterator[str]:
    """What is to be removed with them."""
    for held in contents:
        key = data_key(tag, held.data)
        if held.name:
            yield from piece_keys(key, held.size)
        else:
            yield from (entry.key for entry in bucket.list(key))
