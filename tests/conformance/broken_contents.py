"""Stores that keep contents badly. Each has one thing wrong, which its docstring says; the rest is sound."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores import memory, objects_put
from graflow_ckpt.stores.memory import (
    Content,
    MemoryContents,
    MemorySaving,
    MemoryStore,
    Room,
    Trio,
)
from graflow_ckpt.stores.names import contents_in
from graflow_ckpt.stores.objects import ObjectContents, ObjectStore
from graflow_ckpt.stores.objects_head import Head, Held, Record
from graflow_ckpt.stores.objects_put import Holding, ObjectSaving, keys_of
from graflow_ckpt.stores.pieces import BytesSource
from tests.conformance.broken_trios import Parts

_kept: list[Content] = []  # what a store should have let go of


class Contents(MemoryContents):
    """Sound, but that it makes the savings of a broken store."""

    kind: type[MemorySaving] = MemorySaving

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> MemorySaving:
        return self.kind(self._room, path, self._check)


class Broken(MemoryStore):
    """A store with such contents."""

    made: type[Contents] = Contents

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._contents = self.made(self._room, self._trio, self._check_bytes)


# --- keeping ---------------------------------------------------------------------------


class _KeepingSaving(MemorySaving):
    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        super().add(name, size, pieces)
        _kept.append(self._held[name])


class KeepsForEver(Broken):
    """What nobody holds any more stays, and is found."""

    made = type("Made", (Contents,), {"kind": _KeepingSaving})


class DeletesWithTheFirst(Broken):
    """Who deletes a checkpoint takes away its contents, whoever else holds them."""

    def delete(self, path: str) -> bool:
        there = self._room.trios.get(self._base(path))
        for content in there.contents.values() if there else ():
            content.data = b""
        return super().delete(path)


class ForgetsWhatItReplaces(Broken):
    """A checkpoint that is replaced goes on holding what it held."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        former = self._room.trios.get(self._base(path))
        _kept.extend(former.contents.values() if former else ())
        super().put(path, parts, lease=lease, stage=stage)


class _Unheld(MemorySaving):
    def hold(self, names: Sequence[str], /) -> Collection[str]:
        there = super().hold(names)
        self._held.clear()
        return list(there)


class LooksAndDoesNotHold(Broken):
    """What a save has found may go before its commit."""

    made = type("Made", (Contents,), {"kind": _Unheld})


class _NeverEnds(MemorySaving):
    def end(self) -> None:
        _kept.extend(self._held.values())


class KeepsFailedSaves(Broken):
    """What a failed save has added stays."""

    made = type("Made", (Contents,), {"kind": _NeverEnds})


class _Early(MemorySaving):
    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        data = b""
        for piece in pieces:
            data += piece
            self._held[name] = self._room.contents[name] = Content(data)


class ShowsHalves(Broken):
    """A content is found before it is whole, and when it never will be."""

    made = type("Made", (Contents,), {"kind": _Early})


class _Leaving(MemorySaving):
    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        data = bytearray()
        try:
            for piece in pieces:
                data += piece
        finally:
            self._held[name] = self._room.contents[name] = Content(bytes(data))
            _kept.append(self._held[name])


class LeavesHalves(Broken):
    """A content whose writing has failed stays as far as it came."""

    made = type("Made", (Contents,), {"kind": _Leaving})


class _Short(MemorySaving):
    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        super().add(name, size, list(pieces)[:1])


class StoresOnePiece(Broken):
    """A large content has its first piece only."""

    made = type("Made", (Contents,), {"kind": _Short})


# --- committing and reading --------------------------------------------------------------


class CommitsWithout(Broken):
    """A meta may name what is not there."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        def careless(room: Room, path: str, meta: bytes, former: Trio | None) -> dict[str, Content]:
            names = contents_in(meta)
            return {name: room.contents[name] for name in names if name in room.contents}

        sound, memory.hold = memory.hold, careless
        try:
            super().put(path, parts, lease=lease, stage=stage)
        finally:
            memory.hold = sound


class LosesContentsOfResealed(Broken):
    """A meta that is put alone holds nothing."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=lease, stage=stage)
        if len(parts) == 1:
            self._room.trios[self._base(path)].contents.clear()


class _AnyName(Contents):
    def open(self, path: str, name: str, stage: str) -> BytesSource:
        self._trio(path)
        return BytesSource(self._room.contents[name].data)


class ReadsWhatOthersHold(Broken):
    """Any content is read by way of any checkpoint."""

    made = _AnyName


class _Trusting(Contents):
    def distrust(self, path: str, name: str, stage: str) -> None:
        """Nothing comes of it."""


class HoldsDamaged(Broken):
    """What was found to be damaged is held again."""

    made = _Trusting


# --- buckets ----------------------------------------------------------------------------


class _LooksOnly(ObjectContents):
    def saving(self, path: str, *, lease: Lease | None, stage: str) -> ObjectSaving:
        saving = super().saving(path, lease=lease, stage=stage)
        hold = saving.hold

        def look(names: Sequence[str], /) -> Collection[str]:
            there = hold(names)
            saving._change(lambda head: head.without_pins(saving.mark))
            return there

        saving.hold = look  # type: ignore[method-assign]
        return saving


class LooksAndDoesNotPin(ObjectStore):
    """What a save has found may go before its commit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.contents.__class__ = _LooksOnly


class DeletesFromABucket(ObjectStore):
    """Who deletes a checkpoint removes its contents, whoever else holds them."""

    def delete(self, path: str) -> bool:
        target, opened = self._target(path), self._all
        record = opened.trios.record(target)
        held: Iterable[Held] = record.held() if record is not None else ()
        opened.bucket.delete(list(keys_of(opened.bucket, target.tag, held)))
        return super().delete(path)


class _Careless(Holding):
    def given(self, record: Record, former: Record | None, head: Head) -> Record:
        try:
            return super().given(record, former, head)
        except CheckpointError:
            return record


class CommitsWithoutInABucket(ObjectStore):
    """A meta may name what is not there."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        sound, objects_put.Holding = objects_put.Holding, _Careless  # type: ignore[misc]
        try:
            super().put(path, parts, lease=lease, stage=stage)
        finally:
            objects_put.Holding = sound  # type: ignore[misc]


class SweepsWhatIsBeingWritten(ObjectStore):
    """What no checkpoint holds is swept, whoever is writing it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.contents.sweep = self._sweep_all

    def _sweep_all(self) -> int:
        opened = self._all
        held = {held.data for held in opened.heads.read("s").head.held()}
        keys = [entry.key for entry in opened.bucket.list("data/s")]
        opened.bucket.delete([key for key in keys if "/".join(key.split("/")[2:4]) not in held])
        return 0
