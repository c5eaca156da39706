"""Writing a trio: what is large goes into pieces, what is small into the record, and one put commits it.

    W1 announce (other names only)   W2 write the pieces   W3 put the record in place of what was seen

Parts of up to SMALL bytes go with the record, up to INLINE bytes in one object: so a small checkpoint is
one request, and the head of a session that keeps many of them stays one that is quickly sent.
Promise: that of objects_trio.py. Whoever fails before W3 takes away what it has written; after W3 has begun,
only if it is sure that it was refused: a put that was sent may be carried out, even later, and then it must
point at something. Whatever is left is removed by the session's next owner.
Not here: who may write (objects_lease.py).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from graflow_ckpt.core.errors import CheckpointError, Fenced, GraflowError, SaveOutcomeUnknown, ServerGone
from graflow_ckpt.core.protocols import Buffer, PartWriter
from graflow_ckpt.stores.names import contents_in_order
from graflow_ckpt.stores.objects_bucket import Bucket, Patience
from graflow_ckpt.stores.objects_chunks import PieceSink
from graflow_ckpt.stores.objects_head import Announced, Head, Heads
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_named import Names
from graflow_ckpt.stores.objects_names import PARTS, Target, path_of
from graflow_ckpt.stores.objects_record import Extent, Held, Record
from graflow_ckpt.stores.objects_saving import Holding, ObjectSaving

META = PARTS[-1]
SMALL = 16 << 10
INLINE = 128 << 10


@dataclass(frozen=True, slots=True)
class Put:
    """One write: of what, by whom, and under which name of its own.

    `saving`: of its contents; a writer of a part may have begun it.
    """

    target: Target
    lease: ObjectLease | None
    stage: str
    saving: Callable[[], ObjectSaving | None] = lambda: None
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)

    def record(self) -> Record:
        return Record(self.target.tag, self.lease.epoch if self.lease else 0, self.nonce, self.stage)


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
            done = Committed(holding.given(record.adopting(kept), kept, head), kept)
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
                full = holding.given(record.adopting(seen.record), seen.record, Head())
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
    bucket: Bucket, heads: Heads, names: Names, put: Put, parts: Sequence[tuple[str, PartWriter]], folder: str
) -> Committed:
    """Write a trio, or as much of one as is given; the last of `parts` is its meta."""
    given = [part for part, _ in parts]
    if not set(given) <= set(PARTS) or given[-1] != META:
        raise ValueError(f"parts are some of {PARTS}, {META} last; not {given}")
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
            raise _unknown(path_of(folder, put.target.base), error) from error
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
    inline, meta = bytearray(), _Collector()
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
    session = field_in(meta.data, "session_id")
    record = replace(
        record,
        parts=extents,
        data={record.mark: sink.size} if sink.size else {},
        inline=bytes(inline),
        session=session if isinstance(session, str) else "",
    )
    return record, contents_in_order(bytes(meta.data))


def _unknown(path: str, error: ServerGone) -> SaveOutcomeUnknown:
    return SaveOutcomeUnknown(
        f"The checkpoint {path} was sent, but not confirmed: {error.message}",
        hint="It is there or its predecessor is. Look when the server is back.",
        path=path,
    )


def field_in(raw: bytes | bytearray, name: str) -> object:
    """What a meta says that nobody has verified."""
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return meta.get(name) if isinstance(meta, dict) else None


class _Collector:
    """A sink in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: Buffer, /) -> int:
        self.data += data
        return len(data)
