"""The trio in an object store: pieces that a record points at, and one small conditional put.

    sessions/{id}    the head: the records of the session's own checkpoints are in it
    names/{name}     {write, record}: a checkpoint under any other name; no record: it was deleted

    W1 announce (other names only)   W2 write the pieces   W3 put the record in place of what was seen

Promise: before W3 a reader finds the previous checkpoint, after it this one, whole. W3 is refused if
the writer has lost its session: its own checkpoints are committed in the head, which a claim changes;
other names are announced in the head, and the next owner changes the objects of all announced names
before it begins (objects_fence.py), so that a late W3 finds something else than it has seen.
A reader whose pieces go while it reads finds out, and that meta has changed.
Not here: who may write (objects_lease.py), and what a path names (objects_names.py).
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    GraflowError,
    SaveOutcomeUnknown,
    ServerGone,
)
from graflow_ckpt.core.protocols import Buffer, PartWriter
from graflow_ckpt.stores.objects_bucket import Bucket, Patience, Tag
from graflow_ckpt.stores.objects_chunks import PieceSink, PieceSource, piece_keys
from graflow_ckpt.stores.objects_head import Announced, Head, Heads, Record, document_of, record_of
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_names import PARTS, Target, decoded, path_of

META = PARTS[-1]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Put:
    """One write: of what, by whom, and under which name of its own."""

    target: Target
    lease: ObjectLease | None
    stage: str
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)

    def record(self) -> Record:
        return Record(self.target.tag, self.lease.epoch if self.lease else 0, self.nonce, self.stage, {})


@dataclass(frozen=True, slots=True)
class NameSeen:
    """What a name points at. `tag`: None if it never did."""

    record: Record | None = None
    tag: Tag | None = None


class Trios:
    """The checkpoints of one store. `folder`: what their paths start with."""

    def __init__(self, bucket: Bucket, heads: Heads, folder: str) -> None:
        self._bucket = bucket
        self._heads = heads
        self._folder = folder

    # --- writing -----------------------------------------------------------------------

    def write(self, put: Put, parts: Sequence[tuple[str, PartWriter]]) -> None:
        """Write a trio; the last of `parts` is its meta."""
        names = [part for part, _ in parts]
        if not set(names) <= set(PARTS) or names[-1] != META:
            raise ValueError(f"parts are some of {PARTS}, {META} last; not {names}")
        # what a late writer has seen must be from before its session was taken over
        seen = NameSeen() if put.target.session else self.name(put.target)
        if put.lease is not None and not put.target.session:
            self._announce(put, put.lease, seen.record)
        sink = PieceSink(self._bucket, put.record().data)
        try:
            record = self._fill(put, sink, parts)
            try:
                former = self._commit(put, record, seen)
            except ServerGone as error:
                raise self._unknown(put.target, error) from error
        except SaveOutcomeUnknown:
            raise  # it may stand: nothing of it is to be taken away
        except BaseException:
            sink.abandon()
            raise
        finally:
            if put.lease is not None:
                put.lease.forget(put.record().mark)
        self._remove(former)

    def _announce(self, put: Put, lease: ObjectLease, former: Record | None) -> None:
        """W1."""
        mark, write = put.record().mark, Announced(put.target.base, former.mark if former else "")
        lease.change(lambda head: replace(head, announced={**head.announced, mark: write}))

    def _fill(self, put: Put, sink: PieceSink, parts: Sequence[tuple[str, PartWriter]]) -> Record:
        """W2."""
        places: dict[str, tuple[int, int]] = {}
        for part, writer in parts[:-1]:
            start = sink.size
            writer(sink)
            places[part] = (start, sink.size - start)
        meta = _Collector()
        parts[-1][1](meta)
        places[META] = (sink.size, len(meta.data))
        sink.write(meta.data)
        sink.finish()
        session = field_in(meta.data, "session_id")
        return replace(put.record(), parts=places, session=session if isinstance(session, str) else "")

    def _commit(self, put: Put, record: Record, seen: NameSeen) -> Record | None:
        """W3. What stood there before."""
        if put.target.session is None:
            return self._commit_name(put, record, seen)
        former: list[Record] = []

        def change(head: Head) -> Head | None:
            kept = head.commits.get(put.target.base)
            if kept is not None and kept.nonce == record.nonce:
                return None  # the reply was lost
            former[:] = [kept] if kept else []
            return head.committed(put.target.base, record)

        if put.lease is not None:
            put.lease.change(change)
        else:
            self._heads.update(put.target.session, change)
        return former[0] if former else None

    def _commit_name(self, put: Put, record: Record, seen: NameSeen) -> Record | None:
        patience = Patience()
        while True:
            try:
                if self._swap_name(put.target, record, seen):
                    return seen.record
                former, seen = seen.record, self.name(put.target)
                if seen.record is not None and seen.record.nonce == record.nonce:
                    return former  # the reply was lost
                if put.lease is not None:
                    put.lease.check()  # after looking: what is seen now is from before any later claim
            except ServerGone:
                if patience.over():
                    raise

    def _swap_name(self, target: Target, record: Record | None, seen: NameSeen) -> bool:
        said = {"write": uuid.uuid4().hex, "name": target.base, "record": record and document_of(record)}
        data = json.dumps(said, separators=(",", ":")).encode()
        return self._bucket.swap(target.key, data, seen.tag) is not None

    def touch(self, target: Target) -> Record | None:
        """Change the object of a name and not what it says: who has seen it before can no longer write."""
        while True:
            seen = self.name(target)
            if self._swap_name(target, seen.record, seen):
                return seen.record

    def _unknown(self, target: Target, error: ServerGone) -> SaveOutcomeUnknown:
        path = path_of(self._folder, target.base)
        return SaveOutcomeUnknown(
            f"The checkpoint {path} was sent, but not confirmed: {error.message}",
            hint="It is there or its predecessor is. Look when the server is back.",
            path=path,
        )

    # --- reading -----------------------------------------------------------------------

    def find(self, target: Target) -> Record:
        record = self.record(target)
        if record is None:
            path = path_of(self._folder, target.base)
            raise CheckpointNotFound(f"Checkpoint {path} not found. It may have been deleted.", path=path)
        return record

    def open_part(self, target: Target, part: str, stage: str) -> PieceSource:
        record = self.find(target)
        path = path_of(self._folder, target.base)
        if part not in record.parts or record.stage != stage:
            raise CheckpointCorrupt(
                f"The checkpoint {path} has no {part} that belongs to its meta.",
                hint="It was written anew meanwhile, or by something else.",
                path=path,
                part=part,
            )
        return self.source(target.base, record, part)

    def meta(self, target: Target) -> bytes:
        record = self.find(target)
        while True:
            try:
                return self.source(target.base, record, META).all()
            except CheckpointCorrupt:
                newer = self.find(target)
                if newer.nonce == record.nonce:
                    raise
                record = newer

    def name(self, target: Target) -> NameSeen:
        found = self._bucket.get(target.key)
        return NameSeen() if found is None else NameSeen(named(target.key, found.data)[1], found.tag)

    # --- deleting ----------------------------------------------------------------------

    def delete(self, target: Target) -> bool:
        former = (
            self._delete_own(target.session, target.base) if target.session else self._delete_name(target)
        )
        self._remove(former)
        return former is not None

    def _delete_own(self, session: str, base: str) -> Record | None:
        gone: list[Record] = []

        def change(head: Head) -> Head | None:
            if base not in head.commits:
                return None
            gone[:] = [head.commits[base]]
            return head.without(base)

        self._heads.update(session, change)
        return gone[0] if gone else None

    def _delete_name(self, target: Target) -> Record | None:
        """The object stays and says that nothing is there: without it a late writer could not be told."""
        patience = Patience()
        gone: Record | None = None
        while True:
            try:
                seen = self.name(target)
                if seen.record is None or (gone is not None and seen.record.nonce != gone.nonce):
                    return gone  # also if the reply was lost
                gone = seen.record
                if self._swap_name(target, None, seen):
                    return gone
                gone = None  # somebody else was faster
            except ServerGone:
                if patience.over():
                    raise

    def _remove(self, record: Record | None) -> None:
        """The data of what nothing points at any more. Left behind, it is in nobody's way."""
        if record is None:
            return
        try:
            self._bucket.delete(piece_keys(record.data, record.size))
        except GraflowError as error:
            _logger.warning("data of a former checkpoint stays: %s", error)

    # --- within ------------------------------------------------------------------------

    def record(self, target: Target) -> Record | None:
        """What the path points at now."""
        if target.session is None:
            return self.name(target).record
        return self._heads.read(target.session).head.commits.get(target.base)

    def source(self, base: str, record: Record, part: str) -> PieceSource:
        start, size = record.parts[part]
        return PieceSource(self._bucket, record.data, start, size, path_of(self._folder, base))


def field_in(raw: bytes | bytearray, name: str) -> object:
    """What a meta says that nobody has verified."""
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return meta.get(name) if isinstance(meta, dict) else None


def named(key: str, raw: bytes) -> tuple[str, Record | None]:
    """The name, and what it points at."""
    try:
        said = json.loads(raw)
        return said["name"], said["record"] and record_of(said["record"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        base = decoded(key.rpartition("/")[2])
        raise CheckpointCorrupt(
            f"What says where the checkpoint {base!r} is, is damaged ({key}): {error!r}.",
            hint="Remove that object, or restore it from a version or a backup of the bucket.",
            path=base,
        ) from error


class _Collector:
    """A sink in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: Buffer, /) -> int:
        self.data += data
        return len(data)
