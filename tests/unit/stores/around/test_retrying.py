"""Retrying: what is asked again, and what is not because it may have been done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Sink
from graflow_ckpt.core.task import Backoff
from graflow_ckpt.stores import open_store, store_of
from graflow_ckpt.stores.around.patience import Breaker, Patience, may_pass
from graflow_ckpt.stores.around.retrying import Retrying
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.trios import (
    all_of,
    listed,
    named,
    own_name,
    owning,
    parts_of,
    path_of,
    put,
    put_own,
    read,
    writer,
)
from tests.unit.stores.outages import Cable, Far


class Time:
    """Waiting costs nothing, and something may happen meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        self.meanwhile()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    yield Far(MemoryStore("memory://retrying"), Cable(tmp_path / "cut"))
    MemoryStore("memory://retrying").forget()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(far: Far, time: Time) -> Retrying:
    return Retrying(far, patience=Patience(10.0, clock=time, sleep=time.sleep), breaker=Breaker(clock=time))


def test_what_is_away_for_a_while_is_waited_for(store: Retrying, far: Far, time: Time) -> None:
    path = put(store, "best", "one")
    far.cable.cut()
    time.meanwhile = lambda: far.cable.mend() if len(time.slept) == 3 else None

    assert read(store, path).stage == "one"
    assert len(time.slept) == 3


def test_patience_ends_and_the_error_is_the_stores(store: Retrying, far: Far, time: Time) -> None:
    far.cable.cut()

    with pytest.raises(errors.ServerGone, match="cannot be reached"):
        store.meta(path_of(store, "best"))

    assert len(time.slept) > 3
    assert time.now <= 10.0


def test_what_cannot_pass_is_not_asked_again(store: Retrying, far: Far, time: Time) -> None:
    with pytest.raises(errors.CheckpointError, match="not found"):
        store.meta(path_of(store, "best"))

    assert far.calls == ["meta"]
    assert len(time.slept) == 0


def test_a_put_that_did_not_arrive_is_made_again(store: Retrying, far: Far) -> None:
    far.fails = [("put", False)]

    path = put(store, "best", "one")

    assert far.calls == ["put", "put"]
    assert read(store, path).stage == "one"


def test_a_put_that_was_committed_before_its_reply_was_lost_is_not_made_again(
    store: Retrying, far: Far
) -> None:
    put(store, "best", "former")
    far.calls.clear()
    far.fails = [("put", True)]

    path = put(store, "best", "one")

    assert far.calls == ["put", "meta"]
    assert read(store, path).stage == "one"


def test_a_lost_put_over_which_somebody_has_written_since_is_not_taken_for_committed(
    store: Retrying, far: Far, time: Time
) -> None:
    far.fails = [("put", True)]
    time.meanwhile = lambda: print(put(far.inner, "best", "another's"))

    path = put(store, "best", "one")

    assert read(store, path).stage == "one"


def test_a_new_meta_of_the_same_stage_is_told_from_the_former_one(store: Retrying, far: Far) -> None:
    path = put(store, "best", "one")
    far.fails = [("put", False)]
    sealed_anew = store.meta(path).replace(b'"running"', b'"stopped"')

    store.put(path, [("meta.json", writer(sealed_anew))], lease=None, stage="one")

    assert store.meta(path) == sealed_anew
    assert read(store, path).stage == "one"


def test_what_a_writer_raises_is_the_writers_even_if_it_looks_like_a_server(
    store: Retrying, far: Far, time: Time
) -> None:
    def fails(sink: Sink) -> None:
        raise ConnectionResetError("in the pickle")

    with pytest.raises(ConnectionResetError, match="in the pickle"):
        store.put(path_of(store, "best"), [("pkl", fails), *parts_of("x")[1:]], lease=None, stage="x")

    assert len(time.slept) == 0


@pytest.mark.parametrize("arrived", [True, False])
def test_what_was_deleted_before_the_reply_was_lost_is_counted_as_deleted(
    store: Retrying, far: Far, arrived: bool
) -> None:
    paths = [put(store, name, name) for name in ("one", "two")]

    far.fails = [("delete_many", arrived)]
    assert store.delete(paths.pop()) is True
    far.fails = [("delete_many", arrived)]
    assert store.delete_many([*paths, path_of(store, "three")]) == 2  # nobody knows what had been there
    assert far.fails == []
    assert listed(store) == []
    assert (store.delete(paths[0]), store.delete_many(paths)) == (False, 0)


def test_a_listing_goes_on_where_it_was(store: Retrying, far: Far) -> None:
    with owning(store) as lease:
        for sequence in range(1, 6):
            put_own(store, lease, sequence)
    listing = store.list("s")

    first = [next(listing) for _ in range(2)]
    far.fails = [("next", False), ("list", False)]
    rest = list(listing)

    assert [named(path) for path, _ in first + rest] == [named(own_name(sequence=n)) for n in range(5, 0, -1)]


def test_a_part_is_read_on_where_reading_has_stopped(store: Retrying, far: Far) -> None:
    path = put(store, "best", "one", size=500_000)
    source = store.open(path, "pkl", "one")
    begun = memoryview(bytearray(100_000))
    assert source.readinto(begun) == 100_000
    far.fails = [("read", False), ("open", False)]

    rest = all_of(source)

    assert source.size == 500_000
    assert bytes(begun) + rest == read(store, path).values


def test_a_frame_of_a_journal_is_never_sent_twice(store: Retrying, far: Far) -> None:
    with owning(store) as lease:
        journal = store.journal(lease, 0)
        far.fails = [("append", True)]

        with pytest.raises(errors.ServerGone):
            journal.append(b"frame;")

        assert [raw for _, _, raw in store.segments("s")] == [b"frame;"]


def test_after_calls_that_no_patience_helped_the_next_fail_at_once(
    store: Retrying, far: Far, time: Time
) -> None:
    far.cable.cut()
    for _ in range(5):
        with pytest.raises(errors.ServerGone):
            store.owner("s")
    far.calls.clear()

    with pytest.raises(errors.ServerGone, match="not asked again"):
        store.owner("s")
    assert far.calls == []

    far.cable.mend()
    time.now += 5.0
    assert store.owner("s") is None
    assert store.owner("s") is None


def test_an_address_asks_for_it_with_seconds() -> None:
    store = open_store("retry.30+memory://retrying")

    assert isinstance(store, Retrying)
    assert store.url == "retry.30+memory://retrying"
    path = put(store, "best", "one")
    assert path == "retry.30+memory://retrying/best"
    assert read(open_store(store_of(path)), path).stage == "one"
    MemoryStore("memory://retrying").forget()


@pytest.mark.parametrize("seconds", ["soon", "-1", "1e9", "nan"])
def test_what_is_no_number_of_seconds_is_refused(seconds: str) -> None:
    with pytest.raises(errors.CheckpointError, match="seconds"):
        open_store(f"retry.{seconds}+memory://retrying")


# --- what passes ------------------------------------------------------------------------


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (errors.ServerGone("away"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (caused(errors.CheckpointError("cannot write"), errors.ServerGone("away")), True),
        (errors.CheckpointError("cannot write"), False),
        (caused(errors.SaveOutcomeUnknown("sent"), errors.ServerGone("away")), True),
        (caused(errors.SaveOutcomeUnknown("sync"), OSError(5, "device")), False),
        (errors.ServerFull("full"), False),
        (errors.ServerReadOnly("replica"), False),
        (errors.CheckpointCorrupt("damaged"), False),
        (errors.CheckpointNotFound("none"), False),
        (errors.Fenced("lost"), False),
        (PermissionError(), False),
    ],
)
def test_only_what_is_gone_may_come_back(error: BaseException, passes: bool) -> None:
    assert may_pass(error) is passes


def test_pauses_grow_are_spread_and_end_with_the_patience() -> None:
    clock = Time()
    patience = Patience(10.0, Backoff(0.1, limit=2.0, jitter=0.5), clock=clock, sleep=clock.sleep)

    tries = sum(1 for _ in patience.pauses())

    assert tries == len(clock.slept) >= 6
    assert clock.now <= 10.0
    assert clock.slept[0] < 0.2 < max(clock.slept) <= 3.0
    assert len(set(clock.slept)) == tries


def test_waiting_does_not_touch_the_random_numbers_of_the_program() -> None:
    random.seed(7)
    before, clock = random.getstate(), Time()

    list(Patience(1.0, clock=clock, sleep=clock.sleep).pauses())

    assert random.getstate() == before


def test_what_takes_long_to_fail_is_asked_less_often() -> None:
    clock = Time()
    breaker = Breaker(1, cooldown=5.0, clock=clock)

    breaker.bad(seconds=20.0)

    clock.now = 199.0
    assert not breaker.allows()
    breaker.ask()
    assert breaker.allows()
    breaker.bad(seconds=20.0)
    clock.now = 399.0
    assert breaker.allows()


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_try_per_period() -> None:
    clock = Time()
    breaker = Breaker(3, cooldown=5.0, clock=clock)

    assert [breaker.bad() for _ in range(2)] == [False, False]
    breaker.good()
    assert [breaker.bad() for _ in range(3)] == [False, False, True]
    assert not breaker.allows()
    clock.now = 5.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    assert breaker.bad() is False
    clock.now = 9.9
    assert not breaker.allows()
    clock.now = 10.0
    assert breaker.allows()
    breaker.good()
    assert all(breaker.allows() for _ in range(3))
