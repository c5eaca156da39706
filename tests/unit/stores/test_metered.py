"""What calls of a store have cost, as a meter has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.metered import METER, Meter, Metered
from graflow_ckpt.testing.trios import listed, owning, path_of, put, read


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def store(meter: Meter) -> Iterator[Metered]:
    yield Metered(MemoryStore("memory://metered"), meter=meter)
    MemoryStore("memory://metered").forget()


def test_calls_bytes_and_seconds_are_counted_by_operation(store: Metered, meter: Meter) -> None:
    path = put(store, "best", "one", size=300_000)
    found = read(store, path)
    listed(store)
    with owning(store) as lease:
        store.journal(lease, 0).append(b"frame;")

    costs = {operation: cost for (_, operation), cost in meter.costs().items()}
    whole = len(found.values) + len(found.state) + len(found.meta)
    assert costs["put"].calls == 1
    assert costs["put"].bytes == whole
    assert costs["read"].bytes + costs["meta"].bytes == whole
    assert costs["open"].calls == 2
    assert costs["list"].bytes == len(found.meta)
    assert costs["append"].bytes == 6
    assert costs["acquire"].calls == 1
    assert all(cost.seconds > 0 and cost.failed == 0 for cost in costs.values())
    assert {backend for backend, _ in meter.costs()} == {"memory"}


def test_what_fails_is_counted_with_its_type(store: Metered, meter: Meter) -> None:
    for _ in range(2):
        with pytest.raises(CheckpointNotFound):
            store.meta(path_of(store, "none"))

    assert meter.costs()["memory", "meta"].failed == 2
    assert meter.errors() == {("memory", "meta", "CheckpointNotFound"): 2}


def test_a_writer_that_fails_is_a_put_that_failed(store: Metered, meter: Meter) -> None:
    def fails(sink: object) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        store.put(path_of(store, "best"), [("meta.json", fails)], lease=None, stage="x")

    assert meter.errors() == {("memory", "put", "ValueError"): 1}


def test_an_address_asks_for_it_and_counts_for_the_whole_process() -> None:
    store = open_store("metered+memory://metered")
    before = METER.costs().get(("memory", "put"))

    put(store, "best", "one")

    assert METER.costs()["memory", "put"].calls == (before.calls if before else 0) + 1
    with pytest.raises(CheckpointError, match="nothing behind a dot"):
        open_store("metered.x+memory://metered")
    MemoryStore("memory://metered").forget()


def test_who_has_seen_enough_of_a_listing_has_not_failed(store: Metered, meter: Meter) -> None:
    for name in ("a", "b"):
        put(store, name, "one")

    assert any(store.list())

    assert meter.costs()["memory", "list"].calls == 1
    assert meter.errors() == {}
