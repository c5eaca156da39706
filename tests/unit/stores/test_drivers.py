"""Each driver keeps the contract of drivers, and what does not is convicted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.driver import Done, Driver, Hit, Put, Row, Tag
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.memory_driver import MemoryDriver, Room
from graflow_ckpt.testing import AtomicDriverContract, DriverContract
from tests.unit.stores import redis_trios
from tests.unit.stores.kinds import REDIS, Kind, only


class InKind:
    """A place of that kind, over a store that has opened it."""

    @pytest.fixture
    def driver(self, kind: Kind) -> Driver:
        return kind.driver


@only("memory", "sqlite", "postgres", *REDIS)
class TestAtomic(InKind, AtomicDriverContract):
    paging = 1010  # a page is a thousand


@only("objects")
class TestBucket(InKind, DriverContract):
    """A batch is one put with a guard, or puts of fresh keys, or drops."""


def test_a_driver_alone_makes_a_store() -> None:
    store = KeyedStore(MemoryDriver(Room("mine")), "mine://here")

    path = redis_trios.put(store, "best", "one")

    assert path == "mine://here/best"
    assert redis_trios.read(store, path) == redis_trios.read(store, "best") == ("one", b"one", b"one")
    with pytest.raises(CheckpointError, match="is not in mine://here"):
        store.meta("mine://there/best")


# --- broken ------------------------------------------------------------------------------


class Sound(MemoryDriver):
    """Not broken: what passes here, and fails below, is what the one thing does."""


class Counts(MemoryDriver):
    """Its tags are numbers, which begin anew when a key does."""

    def batch(self, puts: Sequence[Put], drops: Sequence[str] = (), **more: Any) -> Done | None:
        former = {put.key: found for put in puts if (found := self.room.things.get(put.key))}
        done = super().batch(puts, drops, **more)
        if done is None:
            return None
        for put in puts:
            tag = str(1 + int(former[put.key].tag)) if put.key in former else "1"
            self.room.things[put.key] = self.room.things[put.key]._replace(tag=tag)
        return done


class GuardsOnlyWhatItWrites(MemoryDriver):
    """A guard of a key that is not put is not looked at."""

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        **more: Any,
    ) -> Done | None:
        own = {put.key for put in puts}
        looked = {key: tag for key, tag in (guards or {}).items() if key in own}
        return super().batch(puts, drops, guards=looked, **more)


class LooksFirst(MemoryDriver):
    """It looks, and writes, and somebody else may come between."""

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        **more: Any,
    ) -> Done | None:
        for key, tag in (guards or {}).items():
            (found,) = self.get(key)
            if (found and found.tag) != tag:
                return None
        list(self.keys(""))  # takes a while
        time.sleep(0.001)
        return super().batch(puts, drops, **more)


class ForgetsNeeds(MemoryDriver):
    """What was sent before may be gone."""

    def batch(self, *args: Any, needs: Sequence[str] = (), **more: Any) -> Done | None:
        return super().batch(*args, **more)


class DropsBeforeItLooks(MemoryDriver):
    """A batch that is refused has taken away what it was to drop."""

    def batch(self, puts: Sequence[Put], drops: Sequence[str] = (), **more: Any) -> Done | None:
        super().batch([], drops)
        return super().batch(puts, **more)


class FindsAnyFact(MemoryDriver):
    """One fact that fits is enough."""

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        hits = super().find(Row(), 1 << 40, below)
        rows = self.room.rows
        fits = [hit for hit in hits if not any(wanted) or set(wanted) & set(rows[hit.key][1]) - {""}]
        return fits[:limit]


class ReadsWhatIsThere(MemoryDriver):
    """A piece may be shorter than it was asked for."""

    def read(self, key: str, start: int, length: int) -> memoryview | None:
        (found,) = self.get(key)
        return None if found is None else memoryview(found.data)[start : start + length]


BROKEN = [
    (Counts, "test_a_tag_is_never_used_twice"),
    (GuardsOnlyWhatItWrites, "test_a_guard_on_what_is_only_looked_at_holds_for_a_record"),
    (LooksFirst, "test_of_many_with_one_guard_exactly_one_wins"),
    (LooksFirst, "test_no_change_is_lost_between_many"),
    (ForgetsNeeds, "test_a_batch_that_is_refused_has_changed_nothing"),
    (DropsBeforeItLooks, "test_a_batch_that_is_refused_has_changed_nothing"),
    (FindsAnyFact, "test_rows_are_found_by_all_facts_the_last_first_in_pages"),
    (ReadsWhatIsThere, "test_a_piece_is_read_and_nothing_that_is_shorter"),
]


def run(kind: type[MemoryDriver], test: str) -> None:
    """One test, with each of its parameters."""
    call = getattr(AtomicDriverContract(), test)
    for more in parameters(call):
        call(kind(Room("broken")), **more)


def parameters(call: Any) -> Iterator[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(call, "pytestmark", ()):
        name, values = mark.args
        found = [{**each, name: value} for each in found for value in values]
    yield from found


@pytest.mark.parametrize(("broken", "test"), BROKEN)
def test_a_broken_driver_is_convicted_and_a_sound_one_is_not(broken: type[MemoryDriver], test: str) -> None:
    run(Sound, test)

    with pytest.raises(AssertionError):
        run(broken, test)
