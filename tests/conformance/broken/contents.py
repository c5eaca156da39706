"""Keyed stores that keep contents badly. Each has one thing wrong, as its docstring says; the rest is sound.

on(MemoryStore, KeepsForEver)       that one, in memory
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores import names
from graflow_ckpt.stores.contents import KeyedContents, KeyedSaving
from graflow_ckpt.stores.head import Head, Held, scope_of
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import Step
from graflow_ckpt.stores.streams import RangeReader
from tests import things
from tests.conformance.broken.trios import Parts


class Contents(KeyedContents):
    """Sound, but that it makes the savings of a broken store."""

    kind: type[KeyedSaving] = KeyedSaving

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> KeyedSaving:
        return self.kind(self._store, self._store.target(path, lease, stage))


class Broken(KeyedStore):
    """A store with such contents, in any place."""

    made: type[Contents] = Contents

    @property
    def contents(self) -> Contents:
        return self.made(self)

    def free(self, scope: str, held: Iterable[Held]) -> None:
        """They are found, whoever holds them."""
        freed = frozenset(held)
        self.heads.change(scope, lambda head: Step(head._replace(freed=head.freed | freed)))

    def held(self, path: str) -> tuple[Held, ...]:
        base = self._name(path)
        record = self.heads.read(scope_of(base)).head.get(base)
        return record.contents if record is not None else ()


def on(place: type[KeyedStore], broken: type[Broken]) -> type[KeyedStore]:
    return type(broken.__name__, (broken, place), {})


# --- keeping ---------------------------------------------------------------------------


class KeepsForEver(Broken):
    """What nobody holds any more stays, and is found."""

    def letting_go(self, scope: str, after: Head, went: Any, *args: Any, **options: Any) -> Step:
        step = super().letting_go(scope, after, went, *args, **options)
        freed = frozenset(after.loose([*went, *after.freed]))
        drops = set(step.drops) - set(self.keys_of(scope, freed))
        return step._replace(head=step.head._replace(freed=freed), drops=sorted(drops))


class DeletesWithTheFirst(Broken):
    """Who deletes a checkpoint takes away its contents, whoever else holds them."""

    def delete(self, path: str) -> bool:
        self.drop(self.keys_of(self.scope(path), self.held(path)))
        return super().delete(path)


class ForgetsWhatItReplaces(Broken):
    """A checkpoint that is replaced goes on holding what it held."""

    def letting_go(
        self, scope: str, after: Head, went: Any, mine: Any, puts: Any = (), drops: Any = (), needs: Any = ()
    ) -> Step:
        step = super().letting_go(scope, after, went, mine, puts, drops, needs)
        if not puts:
            return step
        freed = frozenset(after.loose([*went, *after.freed]))
        drops = set(step.drops) - set(self.keys_of(scope, freed))
        return step._replace(head=step.head._replace(freed=freed), drops=sorted(drops))


class _Unheld(KeyedSaving):
    def hold(self, names: Sequence[str], /) -> Collection[str]:
        there = list(super().hold(names))
        self._found.clear()
        if self._owner is None:
            self._store.heads.change(self._to.scope, lambda head: Step(head.without_pin(self.mark)))
        return there


class LooksAndDoesNotHold(Broken):
    """What a save has found may go before its commit."""

    made = type("Made", (Contents,), {"kind": _Unheld})

    def letting_go(self, scope: str, *args: Any, **options: Any) -> Step:
        step = super().letting_go(scope, *args, **options)
        drops = [*step.drops, *self.keys_of(scope, step.head.freed)]
        return step._replace(head=step.head._replace(freed=frozenset()), drops=drops)


class _NeverEnds(KeyedSaving):
    def end(self) -> None:
        self._store.free(self._to.scope, self.added.values())  # type: ignore[attr-defined]


class KeepsFailedSaves(Broken):
    """What a failed save has added stays."""

    made = type("Made", (Contents,), {"kind": _NeverEnds})


class _Early(KeyedSaving):
    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        self._store.free(self._to.scope, [Held(name, self.mark, size)])  # type: ignore[attr-defined]
        super().add(name, size, pieces)


class ShowsHalves(Broken):
    """A content is found before it is whole, and when it never will be."""

    made = type("Made", (Contents,), {"kind": _Early})


class _Leaving(KeyedSaving):
    begun: Sequence[Held] = ()

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        self.begun = [Held(name, self.mark, size)]
        super().add(name, size, pieces)
        self.begun = []

    def end(self) -> None:
        super().end()
        self._store.free(self._to.scope, self.begun)  # type: ignore[attr-defined]


class LeavesHalves(Broken):
    """A content whose writing has failed stays as far as it came."""

    made = type("Made", (Contents,), {"kind": _Leaving})


class _Short(KeyedSaving):
    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        first = list(pieces)[:1]
        super().add(name, sum(map(len, first)), first)


class StoresOnePiece(Broken):
    """A large content has its first piece only."""

    made = type("Made", (Contents,), {"kind": _Short})


class _SweepsAll(Contents):
    def sweep(self) -> int:
        held = things.held(self._store)
        gone = [key for key in things.keys_of_contents(self._store) if tuple(key.split("/")[1:4]) not in held]
        self._store.drop(gone)
        return len(gone)


class SweepsWhatIsBeingWritten(Broken):
    """What no checkpoint holds is swept, whoever is writing it."""

    made = _SweepsAll


# --- committing and reading --------------------------------------------------------------


class CommitsWithout(Broken):
    """A meta may name what is not there."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        sound, names.contents_in = names.contents_in, lambda meta: ()  # type: ignore[assignment]
        try:
            super().put(path, parts, lease=lease, stage=stage)
        finally:
            names.contents_in = sound


class LosesContentsOfResealed(Broken):
    """A meta that is put alone holds nothing."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=lease, stage=stage)
        if len(parts) == 1:
            base = self._name(path)

            def change(head: Head) -> Step:
                record = head.records[base]
                bare = head.holding(record._replace(contents=()))
                return self.letting_go(self.scope(path), bare, record.contents, None)

            self.heads.change(scope_of(base), change)


class _AnyName(Contents):
    def open(self, path: str, name: str, stage: str) -> RangeReader:
        scope = self.scope(path)
        self._store.meta(path)
        (held,) = (held for held in self._store.heads.read(scope).head.held() if held.name == name)
        return RangeReader(self._store.driver, self._store.keys_of(scope, [held]), 0, held.size, path)


class ReadsWhatOthersHold(Broken):
    """Any content is read by way of any checkpoint."""

    made = _AnyName


class _Trusting(Contents):
    def distrust(self, path: str, name: str, stage: str) -> None:
        """Nothing comes of it."""


class HoldsDamaged(Broken):
    """What was found to be damaged is held again."""

    made = _Trusting
