"""Buckets that keep contents badly. Each has one thing wrong, which its docstring says; the rest is sound."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores import objects_put
from graflow_ckpt.stores.objects import ObjectContents, ObjectStore
from graflow_ckpt.stores.objects_head import Head, Held, Record
from graflow_ckpt.stores.objects_put import Holding, ObjectSaving, keys_of
from tests.conformance.broken_trios import Parts


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


class DeletesWithTheFirst(ObjectStore):
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


class CommitsWithout(ObjectStore):
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
