"""Random histories of a session, copied at random moments, and broken off at random places: whenever a copy
has ended, whoever goes on at the target goes on from what the origin has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from graflow_ckpt.checkpoint import archive, history, journal
from graflow_ckpt.checkpoint.archive import metadata_of
from graflow_ckpt.checkpoint.copying import Move
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.keys import Keyring
from graflow_ckpt.stores.memory import MemoryStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import _program

HISTORIES, STEPS = 40, 25
OTHER = Keyring({"k2": b"2" * 32})


class Broken(BaseException):
    """A process that dies."""


@dataclass
class Session:
    """A session at the origin, as the engine would keep it."""

    store: CheckpointStore
    chance: random.Random
    transition: int = 0
    sequence: int = 0
    rewinds: list[list[int]] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)  # of the line that counts: sequence, transition

    def own(self, rewind_to: int | None = None) -> None:
        self.lease = self.store.acquire("s")
        self.open_journal()
        if rewind_to is not None:
            self.rewinds.append([self.lease.epoch, rewind_to])
            self.cut()

    def open_journal(self) -> None:
        self.after = self.transition
        self.segment = self.store.journal(self.lease, self.transition)
        self.writer = journal.Writer(trios.RING, "s", self.lease.epoch, self.transition)
        self.segment.append(self.writer.head)

    def leave(self) -> None:
        self.segment.close()
        self.lease.release()

    def commit(self) -> None:
        self.transition += 1
        value = bytes([self.chance.randrange(128)])  # two lines of history differ in it
        record = journal.pack(self.transition, 0.0, [("put", "x", value, -1)])
        self.segment.append(self.writer.frame(record))

    def cut(self) -> None:
        self.sequence += 1
        state = trios.state()
        state.sequence = self.transition
        snapshot = capture(state)
        snapshot.facts["epoch"] = self.lease.epoch
        path = f"{self.store.folder}/session_s_step_1_17-{self.sequence}.pkl"
        meta = metadata_of(snapshot, _program, path=path, sequence=self.sequence, cause="policy", user=None)
        meta.rewinds = list(self.rewinds) or None
        archive.save(self.store, trios.RING, self.lease, snapshot, _program, meta)
        before = self.cuts[-1][1] if self.cuts else 0
        self.cuts.append((self.sequence, self.transition))
        if self.after != self.transition:  # else nothing was appended since it was opened
            self.segment.close()
            self.open_journal()
        self.store.drop_segments("s", before)

    def rewind(self) -> None:
        self.leave()
        self.cuts = self.cuts[: self.chance.randrange(len(self.cuts)) + 1]
        sequence, self.transition = self.cuts[-1]
        self.own(rewind_to=sequence)


def standing(store: CheckpointStore, ring: Keyring) -> tuple[Any, list[bytes]]:
    """What a resume finds: the newest cut, and the records after it."""
    for _, found in history.newest(store, ring, "s"):
        assert isinstance(found, archive.Found)
        after = found.facts["transition"]
        return found.meta["checkpoint_id"], [p for p, _ in history.records(store, ring, after, found, "s")]
    return None, []


def breaking(store: MemoryStore, chance: random.Random, patch: pytest.MonkeyPatch) -> None:
    """The store fails for good after some calls that write."""
    left = chance.randrange(6)

    def counted(real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Broken
            return real(*args, **more)

        return call

    for name in ("put", "journal", "acquire", "delete"):
        patch.setattr(store, name, counted(getattr(store, name)))


@pytest.fixture
def places() -> Iterator[tuple[MemoryStore, MemoryStore]]:
    origin, target = MemoryStore("memory://origin"), MemoryStore("memory://copy")
    yield origin, target
    origin.forget()
    target.forget()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_copy_that_has_ended_stands_where_the_origin_stands(
    seed: int, places: tuple[MemoryStore, MemoryStore]
) -> None:
    origin, target = places
    chance = random.Random(seed)
    session = Session(origin, chance)
    session.own()
    copies = 0

    for _ in range(STEPS):
        match chance.choice(["commit", "commit", "commit", "cut", "resume", "rewind", "copy", "broken"]):
            case "commit":
                session.commit()
            case "cut":
                session.cut()
            case "resume":
                session.leave()
                session.own()
            case "rewind" if session.cuts:
                session.rewind()
            case "copy" if session.cuts:
                Move(origin, target, trios.RING, OTHER).session("s")
                copies += 1
                assert standing(target, OTHER) == standing(origin, trios.RING)
            case "broken":
                with pytest.MonkeyPatch.context() as patch:
                    breaking(target, chance, patch)
                    with suppress(Broken):
                        Move(origin, target, trios.RING, OTHER).session("s")
    session.leave()
    if session.cuts:
        moved = Move(origin, target, trios.RING, OTHER).session("s")
        assert moved.error is None
        assert standing(target, OTHER) == standing(origin, trios.RING)
