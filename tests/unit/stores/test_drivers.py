"""Each driver keeps the contract of drivers, and what does not is convicted."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.driver import BatchDone, Driver, Entry, Hit, Put, Row, Stored, Tag
from graflow_ckpt.stores.drivers.memory.driver import MemoryDriver, Room
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.testing import AtomicDriverContract, DriverContract
from tests.unit.stores import texts
from tests.unit.stores.kinds import FORKING, Kind, only


class Opening:
    """Opens that place, over a store: in this process such that it is closed with the kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __call__(self) -> Driver:
        return self.kind.driver

    def __reduce__(self) -> Any:
        return partial, (driver_at, self.kind.type, self.kind.where)


def driver_at(kind: Any, where: str) -> Driver:
    driver: Driver = kind(where).driver
    return driver


class InKind:
    """A place of that kind."""

    @pytest.fixture
    def opener(self, kind: Kind) -> Opening:
        return Opening(kind)


@only("memory")
class TestMemory(InKind, AtomicDriverContract):
    shared = False


@only(*FORKING)
class TestAtomic(InKind, AtomicDriverContract):
    """All that is asked of any."""


@only("objects")
class TestBucket(InKind, DriverContract):
    """A batch is one put with a guard, or puts of fresh keys, or drops."""

    paging = 25  # each key is a request


def test_a_driver_alone_makes_a_store() -> None:
    store = KeyedStore(MemoryDriver(Room("mine")), "mine://here")

    path = texts.put(store, "best", "one")

    assert path == "mine://here/best"
    assert texts.read(store, path) == texts.read(store, "best") == ("one", b"one", b"one")
    with pytest.raises(CheckpointError, match="is not in mine://here"):
        store.meta("mine://there/best")


# --- broken ------------------------------------------------------------------------------


Guards = Mapping[str, Tag | None] | None


class Sound(MemoryDriver):
    """Not broken: what passes here, and fails below, is what the one thing does."""


class Counts(MemoryDriver):
    """Its tags are numbers, which begin anew when a key does."""

    def batch(self, puts: Sequence[Put], drops: Sequence[str] = (), **more: Any) -> BatchDone | None:
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

    def batch(self, puts: Sequence[Put], *args: Any, guards: Guards = None, **more: Any) -> BatchDone | None:
        own = {put.key for put in puts}
        looked = {key: tag for key, tag in (guards or {}).items() if key in own}
        return super().batch(puts, *args, guards=looked, **more)


class LooksFirst(MemoryDriver):
    """It looks, and writes, and somebody else may come between."""

    def batch(self, puts: Sequence[Put], *args: Any, guards: Guards = None, **more: Any) -> BatchDone | None:
        for key, tag in (guards or {}).items():
            (found,) = self.get(key)
            if (found and found.tag) != tag:
                return None
        list(self.keys(""))  # takes a while
        time.sleep(0.001)
        return super().batch(puts, *args, **more)


class ForgetsNeeds(MemoryDriver):
    """What was sent before may be gone."""

    def batch(self, *args: Any, needs: Sequence[str] = (), **more: Any) -> BatchDone | None:
        return super().batch(*args, **more)


class DropsBeforeItLooks(MemoryDriver):
    """A batch that is refused has taken away what it was to drop."""

    def batch(self, puts: Sequence[Put], drops: Sequence[str] = (), **more: Any) -> BatchDone | None:
        super().batch([], drops)
        return super().batch(puts, **more)


class FindsAnyFact(MemoryDriver):
    """One fact that fits is enough."""

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        hits = super().find(Row(), 1 << 40, below)
        rows = self.room.rows
        fits = [hit for hit in hits if not any(wanted) or set(wanted) & set(rows[hit.key][1]) - {""}]
        return fits[:limit]


class FindsTheOldestFirst(MemoryDriver):
    """In the order in which they were put."""

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        return super().find(wanted, 1 << 40, below)[::-1][:limit]


class FindsFromTheTop(MemoryDriver):
    """Each page is the first one, as long as something is below."""

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        return super().find(wanted, limit) if super().find(wanted, limit, below) else []


class FindsWhatWasFresh(MemoryDriver):
    """A row counts only with a key that was not there, or might have been."""

    atomic = False

    def batch(self, puts: Sequence[Put], *args: Any, **more: Any) -> BatchDone | None:
        return super().batch([put if put.fresh else put._replace(row=None) for put in puts], *args, **more)


class ReadsWhatIsThere(MemoryDriver):
    """A piece may be shorter than it was asked for."""

    def read(self, key: str, start: int, length: int) -> memoryview | None:
        (found,) = self.get(key)
        return None if found is None else memoryview(found.data)[start : start + length]


class GetsOneAfterTheOther(MemoryDriver):
    """Another batch may come between."""

    def get(self, *keys: str) -> Sequence[Stored | None]:
        found = []
        for key in keys:
            found.append(super().get(key)[0])
            time.sleep(0.001)
        return found


class ListsOnePage(MemoryDriver):
    """Of a thousand."""

    def keys(self, prefix: str) -> Iterator[Entry]:
        return islice(super().keys(prefix), 1000)


class ListsTheNewestFirst(MemoryDriver):
    """In no order of keys."""

    def keys(self, prefix: str) -> Iterator[Entry]:
        return iter(sorted(super().keys(prefix), key=lambda entry: -entry.at))


class ListsByPattern(MemoryDriver):
    """As LIKE does it: some letters stand for others."""

    def keys(self, prefix: str) -> Iterator[Entry]:
        kind = prefix.partition("/")[0]
        pattern = f"{prefix.replace('_', '?')}*"
        return (entry for entry in super().keys(f"{kind}/") if fnmatchcase(entry.key, pattern))


class KnowsWhatItHasSeen(MemoryDriver):
    """Another handle may have written meanwhile."""

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.seen: dict[str, Stored | None] = {}

    def get(self, *keys: str) -> Sequence[Stored | None]:
        return [self.seen.setdefault(key, super(KnowsWhatItHasSeen, self).get(key)[0]) for key in keys]

    def batch(self, puts: Sequence[Put], *args: Any, **more: Any) -> BatchDone | None:
        self.seen.clear()
        return super().batch(puts, *args, **more)


class LosesSoftBatches(MemoryDriver):
    """They wait here for the next one that is not."""

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.waiting: list[Put] = []

    def batch(self, puts: Sequence[Put], *args: Any, soft: bool = False, **more: Any) -> BatchDone | None:
        if soft:
            self.waiting += puts
            return BatchDone("soft")
        waiting, self.waiting = self.waiting, []
        return super().batch([*waiting, *puts], *args, **more)


class TakesSoftBatches(MemoryDriver):
    """Whatever they are guarded by."""

    def batch(self, puts: Sequence[Put], *args: Any, soft: bool = False, **more: Any) -> BatchDone | None:
        if soft:
            return super().batch([put._replace(fresh=False) for put in puts])
        return super().batch(puts, *args, **more)


class TakesTheLast(MemoryDriver):
    """What was there under a fresh key is another one then."""

    def batch(self, puts: Sequence[Put], *args: Any, **more: Any) -> BatchDone | None:
        return super().batch([put._replace(fresh=False) for put in puts], *args, **more)


class CountsMilliseconds(MemoryDriver):
    """Leases are told in seconds."""

    def now(self) -> float:
        return super().now() * 1000


class StepsBack(MemoryDriver):
    """Its clock is another one after each write."""

    def now(self) -> float:
        return super().now() - 100.0 * (len(self.room.things) % 2)


class DatesTheFirst(MemoryDriver):
    """What is put again is as old as what it replaces: an owner that lives would seem silent."""

    def batch(self, puts: Sequence[Put], *args: Any, **more: Any) -> BatchDone | None:
        former = dict(self.room.things)
        done = super().batch(puts, *args, **more)
        for put in puts:
            if done is not None and put.key in former:
                self.room.things[put.key] = self.room.things[put.key]._replace(at=former[put.key].at)
        return done


BROKEN = [
    (Counts, "test_a_tag_is_never_used_twice"),
    (GuardsOnlyWhatItWrites, "test_a_guard_on_what_is_only_looked_at_holds_for_a_record"),
    (LooksFirst, "test_of_many_with_one_guard_exactly_one_wins"),
    (LooksFirst, "test_no_change_is_lost_between_many"),
    (LooksFirst, "test_no_change_is_lost_between_processes"),
    (ForgetsNeeds, "test_a_batch_that_is_refused_has_changed_nothing"),
    (DropsBeforeItLooks, "test_a_batch_that_is_refused_has_changed_nothing"),
    (FindsAnyFact, "test_rows_are_found_by_all_facts_the_last_first_in_pages"),
    (FindsTheOldestFirst, "test_rows_are_found_by_all_facts_the_last_first_in_pages"),
    (FindsFromTheTop, "test_rows_are_found_by_all_facts_the_last_first_in_pages"),
    (FindsWhatWasFresh, "test_a_row_that_is_put_again_is_found_once"),
    (ReadsWhatIsThere, "test_a_piece_is_read_and_nothing_that_is_shorter"),
    (GetsOneAfterTheOther, "test_what_is_got_together_was_there_at_one_moment"),
    (ListsOnePage, "test_keys_are_listed_in_order_and_only_those_that_begin_so"),
    (ListsTheNewestFirst, "test_keys_are_listed_in_order_and_only_those_that_begin_so"),
    (ListsByPattern, "test_keys_that_are_alike_are_apart"),
    (KnowsWhatItHasSeen, "test_what_one_handle_writes_another_one_finds"),
    (LosesSoftBatches, "test_what_one_handle_writes_another_one_finds"),
    (TakesSoftBatches, "test_a_soft_batch_is_refused_like_any_other"),
    (TakesTheLast, "test_a_fresh_key_is_put_once"),
    (CountsMilliseconds, "test_the_clock_goes_on_and_what_is_put_is_dated_by_it"),
    (StepsBack, "test_the_clock_goes_on_and_what_is_put_is_dated_by_it"),
    (DatesTheFirst, "test_the_clock_goes_on_and_what_is_put_is_dated_by_it"),
]


class InThisProcess(AtomicDriverContract):
    """To convict with. Not collected: it runs on the drivers above only."""

    shared = False


def run(kind: type[MemoryDriver], test: str) -> None:
    """One test, with each of its parameters."""
    call = getattr(InThisProcess(), test)
    opens = "opener" in inspect.signature(call).parameters
    for more in parameters(call):
        opener = partial(kind, Room("broken"))
        call(opener if opens else opener(), **more)


def parameters(call: Any) -> Iterator[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(call, "pytestmark", ()):
        name, values = mark.args
        found = [{**each, name: value} for each in found for value in values]
    yield from found


@pytest.mark.parametrize(("broken", "test"), BROKEN)
def test_a_broken_driver_is_convicted_and_a_sound_one_is_not(broken: type[MemoryDriver], test: str) -> None:
    run(Sound, test)

    def convict() -> None:
        for _ in range(5):  # what comes between two is a matter of luck
            run(broken, test)

    with pytest.raises(AssertionError):
        convict()
