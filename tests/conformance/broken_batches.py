"""Stores that choose and delete many badly. Each has one thing wrong; the rest is sound."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores import batches
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.names import facts_in
from tests.conformance.broken_trios import Parts

Listed = Sequence[tuple[str, bytes]]


# --- choosing --------------------------------------------------------------------------


class ChoosesSessionBySession(MemoryStore):
    """Takes the newest from a listing that goes from one session to the next."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        listing = sorted(self.list(session), key=lambda found: found[0].partition("_step_")[0])
        return batches.first(listing, limit, **wanted)


class ChoosesByTheClock(MemoryStore):
    """The newest is what has the latest time, whoever's time that is."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        listing = sorted(self.list(session), key=lambda found: _created(found[1]), reverse=True)
        return batches.first(listing, limit, **wanted)


class FiltersAfterTheLimit(MemoryStore):
    """Looks for what is wanted among the newest few."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        return batches.first(islice(self.list(session), max(limit, 0)), limit, **wanted)


class RemembersTheFirstStatus(MemoryStore):
    """An index that is written when a name appears, and not again when it is written anew."""

    _known: dict[str, bytes] = {}  # noqa: RUF012  of the place, like everything here

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=lease, stage=stage)
        self._known.setdefault(f"{self.folder}/{self._base(path)}.pkl", self.meta(path))

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        listing = [(path, self._known[path]) for path, _ in self.list(session)]
        return [(path, self.meta(path)) for path, _ in batches.first(listing, limit, **wanted)]


class ChoosesNoDamage(MemoryStore):
    """What it cannot index is not there."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        sound = [found for found in self.list(session) if _created(found[1])]
        return batches.first(sound, limit, **wanted)


# --- deleting --------------------------------------------------------------------------


class CountsWhatItIsAsked(MemoryStore):
    """Says how many it was told to delete."""

    def delete_many(self, paths: Iterable[str]) -> int:
        asked = list(paths)
        super().delete_many(asked)
        return len(asked)


class CountsBeforeItDeletes(MemoryStore):
    """Looks which ones are there, and deletes them afterwards."""

    def delete_many(self, paths: Iterable[str]) -> int:
        there = {path for path, _ in self.list()}
        time.sleep(0.02)
        bases = [self._base(path) for path in paths]
        found = {base for base in bases if f"{self.folder}/{base}.pkl" in there}
        super().delete_many(found)
        return len(found)


class StopsAtTheFirstGap(MemoryStore):
    """What is not there ends the list."""

    def delete_many(self, paths: Iterable[str]) -> int:
        count = 0
        for path in paths:
            if not super().delete_many([path]):
                break
            count += 1
        return count


class LooksWhenItComesToIt(MemoryStore):
    """Finds out in the middle of a list that something in it is no checkpoint."""

    def delete_many(self, paths: Iterable[str]) -> int:
        return sum(super(LooksWhenItComesToIt, self).delete_many([path]) for path in paths)


class KeepsPartsOfLists(MemoryStore):
    """Leaves the parts of what was deleted in a list to whoever comes next."""

    _left: dict[str, dict[str, tuple[str, bytes]]] = {}  # noqa: RUF012

    def delete_many(self, paths: Iterable[str]) -> int:
        bases = [self._base(path) for path in paths]
        self._left |= {base: self._room.trios[base].parts for base in bases if base in self._room.trios}
        return super().delete_many(bases)

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=lease, stage=stage)
        self._room.trios[self._base(path)].parts.update(self._left.pop(self._base(path), {}))


class DeletesTheEndFirst(LocalStore):
    """Who is killed in the middle leaves old checkpoints without the newer ones."""

    def delete_many(self, paths: Iterable[str]) -> int:
        count = 0
        for path in reversed([*paths]):
            count += self.delete(path)
            time.sleep(0.01)  # as a slow disk would
        return count


def _created(raw: bytes) -> str:
    return str(facts_in(raw).get("created_at", ""))
