"""Writing a trio: what is large goes into pieces, what is small into the record, and one put commits it.

    W1 announce (other names only)   W2 write the pieces   W3 put the record in place of what was seen

Parts of up to SMALL bytes go with the record, up to INLINE bytes in one object: so a small checkpoint is
one request, and the head of a session that keeps many of them stays one that is quickly sent.
Promise: that of objects_trio.py. Whoever fails before W3 takes away what it has written; after W3 has begun,
only if it is sure that it was refused: a put that was sent may be carried out, even later, and then it must
point at something. Whatever is left is removed by the session's next owner.

The contents of one save were found in the head of its session and pinned there, or are written before the
commit.

    data/{id or @}/{mark}/{name}/{n}     what a save has written; `mark`: epoch and nonce of that save
    sessions/{id}: pins {mark: …}        what it has found, until it commits or ends

Promise: what a save has found or written stays for it. The head alone decides: a commit holds what a
checkpoint or this save's pin holds there, or what this save has written; else it is refused (`gone`). A mark
is never used again, so what no head names any more may go, and nothing brings it back.
A save without a lease is pinned before it writes, also if it has found nothing: by that, what it writes is
told from what the dead have left. One with a lease is told by its epoch.

Checkpoints under names that are not a session's have contents of their own: there is one record in their
objects. So has one for whose contents there is no room in the head.
Not here: who may write (objects_lease.py), and who removes what the dead have left (objects_orphans.py).
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from graflow_ckpt.core.errors import CheckpointError, Fenced, GraflowError, ServerGone
from graflow_ckpt.core.protocols import PartWriter
from graflow_ckpt.stores.names import (
    META,
    Collected,
    check_parts,
    contents_in_order,
    gone,
    replaced,
    session_in,
    unconfirmed,
)
from graflow_ckpt.stores.objects_bucket import Bucket, Patience
from graflow_ckpt.stores.objects_chunks import CHUNK, PieceSink, piece_key, piece_keys
from graflow_ckpt.stores.objects_head import (
    LISTED,
    ROW,
    Announced,
    Change,
    Extent,
    Head,
    Heads,
    Held,
    Names,
    Pin,
    Record,
    Seen,
)
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_names import Target, data_key

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


# --- the trio ------------------------------------------------------------------------------


SMALL = 16 << 10
INLINE = 128 << 10


@dataclass(frozen=True, slots=True)
class Put:
    """One write: of what, by whom, and under which name of its own.

    `saving`: of its contents; a writer of a part may have begun it.
    """

    target: Target
    path: str
    lease: ObjectLease | None
    stage: str
    saving: Callable[[], ObjectSaving | None] = lambda: None
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)

    def record(self) -> Record:
        return Record(self.target.tag, self.lease.epoch if self.lease else 0, self.nonce, self.stage)

    def over(self, former: Record | None, record: Record) -> Record:
        """`record` in the place of a former one: with those of its parts that a meta alone goes with."""
        if former is not None and former.stage != self.stage and {*record.parts} == {META} < {*former.parts}:
            raise replaced(self.path)
        return record.adopting(former)


@dataclass(frozen=True, slots=True)
class Committed:
    """What a path points at now, and what it pointed at before. `freed`: contents that nobody holds now."""

    record: Record
    former: Record | None
    freed: Collection[Held] = ()


class InHead:
    """A session's own checkpoint: its record is in the head."""

    def __init__(self, heads: Heads, put: Put) -> None:
        assert put.target.session is not None
        self._heads, self._put, self._session = heads, put, put.target.session
        self._seen = heads.read(self._session) if put.lease is None else None
        head = self._seen.head if self._seen is not None else put.lease.head  # type: ignore[union-attr]
        self.room = INLINE - head.inline(beside=put.target.base)

    def commit(self, record: Record, holding: Holding) -> Committed:
        base, done = self._put.target.base, Committed(record, None)
        pins = () if holding.saving is None else (holding.saving.mark,)
        before = set[Held]()

        def change(head: Head) -> Head | None:
            nonlocal done
            before.update(head.held())
            kept = head.commits.get(base)
            if kept is not None and kept.nonce == record.nonce:
                return None  # the reply was lost
            done = Committed(holding.given(self._put.over(kept, record), kept, head), kept)
            return head.committed(base, done.record).without_pins(*pins)

        if self._put.lease is not None:
            if holding.names and not pins:
                self._put.lease.check()  # likewise
            seen = self._put.lease.change(change)
        else:
            # what is refused is refused for what the head says now: a pin is younger than what was seen
            seen = self._heads.update(self._session, change, None if holding.names else self._seen)
        return replace(done, freed=before - seen.head.held())

    def now(self) -> Record | None:
        """What is committed."""
        return self._heads.read(self._session).head.commits.get(self._put.target.base)


class InName:
    """A checkpoint under any other name: its record has an object of its own."""

    room = INLINE

    def __init__(self, names: Names, put: Put) -> None:
        self._names, self._put = names, put
        # what a late writer has seen must be from before its session was taken over
        self._seen = names.read(put.target)
        if put.lease is not None:
            self._announce(put.lease)

    def _announce(self, lease: ObjectLease) -> None:
        """W1."""
        former = self._seen.record
        marks = (*former.data, former.alone) if former is not None else ()
        write = Announced(self._put.target.base, tuple(mark for mark in marks if mark))
        mark = self._put.record().mark
        lease.change(lambda head: replace(head, announced={**head.announced, mark: write}))

    def commit(self, record: Record, holding: Holding) -> Committed:
        target, lease, seen = self._put.target, self._put.lease, self._seen
        patience = Patience()
        while True:
            try:
                full = holding.given(self._put.over(seen.record, record), seen.record, Head())
                former = set(seen.record.held()) if seen.record is not None else set()
                done = Committed(full, seen.record, former - set(full.held()))
                if self._names.swap(target, full, seen):
                    return done
                seen = self._names.read(target)
                if seen.record is not None and seen.record.nonce == record.nonce:
                    return done  # the reply was lost
                if lease is not None:
                    lease.check()  # after looking: what is seen now is from before any later claim
            except ServerGone:
                if patience.over():
                    raise

    def now(self) -> Record | None:
        """What is committed."""
        return self._names.read(self._put.target).record


def write(
    bucket: Bucket, heads: Heads, names: Names, put: Put, parts: Sequence[tuple[str, PartWriter]]
) -> Committed:
    """Write a trio, or as much of one as is given; the last of `parts` is its meta."""
    check_parts([part for part, _ in parts])
    place = InHead(heads, put) if put.target.session is not None else InName(names, put)
    blank = put.record()
    sink = PieceSink(bucket, blank.key(blank.mark))
    over = False
    try:
        try:
            record, named = _fill(blank, sink, parts, place.room)
        except BaseException:
            over = sink.abandon()
            raise
        saving = put.saving()
        if saving is not None:
            saving.sent()
        try:
            done = place.commit(record, Holding(bucket, put.target, saving, named))
            over = True
            if saving is not None:
                saving.decided(done.record, committed=True)
        except ServerGone as error:
            raise unconfirmed(put.path, error) from error
        except (Fenced, CheckpointError):
            # what it was to replace has changed since, or was never asked: nothing on its way can arrive
            with suppress(GraflowError):
                now = place.now()
                over = (now is None or record.mark not in now.data) and sink.abandon()
                if saving is not None:
                    saving.decided(now, committed=False)
            raise
        return done
    finally:
        if over and put.lease is not None:
            put.lease.forget(blank.mark)


def _fill(
    record: Record, sink: PieceSink, parts: Sequence[tuple[str, PartWriter]], room: int
) -> tuple[Record, Sequence[str]]:
    """W2: the record, and the contents that its meta names. `room`: how much may go with the record."""
    extents: dict[str, Extent] = {}
    inline, meta = bytearray(), Collected()
    for part, writer in parts:
        start = sink.size
        if part == META:
            writer(meta)
            sink.write(meta.data)
        else:
            writer(sink)
        size = sink.size - start
        taken = sink.take_back(size) if size <= min(SMALL, max(0, room - len(inline))) else None
        if taken is None:
            extents[part] = Extent(record.mark, start, size)
        else:
            extents[part] = Extent("", len(inline), size)
            inline += taken
    sink.finish()
    session = session_in(meta.data)
    record = replace(
        record,
        parts=extents,
        data={record.mark: sink.size} if sink.size else {},
        inline=bytes(inline),
        session=session if isinstance(session, str) else "",
    )
    return record, contents_in_order(bytes(meta.data))
