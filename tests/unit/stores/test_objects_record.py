"""A record that something else has written is damage, and no other trouble."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.stores.objects import ObjectStore
from tests.unit.stores.redis_trios import own_name, put


@pytest.fixture
def store(objects_url: str) -> ObjectStore:
    return ObjectStore(objects_url)


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        (4, []),
        (4, {}),
        (4, {"meta.json": [7, 0, 1]}),
        (4, {"meta.json": [-1, 0, 10**12]}),
        (4, {"meta.json": [-1, -5, 5]}),
        (4, {"meta.json": [-1, 0, float("inf")]}),
        (5, [["1-x", 10**18]]),
        (6, 10**9),
        (6, "1"),
        (0, None),
    ],
)
@pytest.mark.parametrize("name", ["best", own_name()])
def test_a_record_that_is_not_one_is_damage_and_no_other_trouble(
    store: ObjectStore, name: str, at: int, damage: object
) -> None:
    path = put(store, name, "one")
    bucket = store._all.bucket
    key = "sessions/s" if name == own_name() else f"names/{name}"
    found = bucket.get(key)
    assert found is not None
    line, _, inline = found.data.partition(b"\n")
    said = json.loads(line)
    record = next(iter(said["commits"].values())) if name == own_name() else said["record"]
    record[at] = damage
    if damage is None:
        record.clear()
        record.append(0)
    bucket.put(key, json.dumps(said).encode() + b"\n" + inline)

    calls: list[Callable[[], object]] = [lambda: store.meta(path), lambda: store.delete(path)]
    for call in (*calls, lambda: put(store, name, "two")):
        with pytest.raises(CheckpointCorrupt, match="damaged"):
            call()


def test_a_name_whose_record_is_damaged_is_listed_as_damaged_and_hides_no_other(store: ObjectStore) -> None:
    path, other = put(store, "best", "one"), put(store, "other", "one")
    store._all.bucket.put("names/best", b"{")

    assert dict(store.list())[path] == b""
    assert [found for found, _ in store.list("s")] == [other]
