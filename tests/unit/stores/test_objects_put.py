"""What a save and a load ask of a bucket, where the parts go, and what is left of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_chunks import CHUNK
from graflow_ckpt.stores.objects_put import INLINE, SMALL
from tests.unit.stores.buckets import LARGE, keys, names, requests
from tests.unit.stores.redis_trios import all_of, own_name, parts, put, read


@pytest.fixture
def store(objects_url: str) -> ObjectStore:
    return ObjectStore(objects_url)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_parts_of_every_size_come_back(store: ObjectStore, size: int) -> None:
    path = put(store, "big", "x", size=size)

    assert read(store, path) == ("x", b"x" * size, b"x")


@pytest.mark.parametrize(("size", "asked"), [(4000, ["_put"]), (400_000, ["_put", "_put"])])
def test_a_save_asks_for_no_more_than_it_needs(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, size: int, asked: list[str]
) -> None:
    lease = store.acquire("s")
    put(store, own_name(1), "one", lease)

    with requests(store, monkeypatch) as made:
        put(store, own_name(2), "two", lease, size=size)

    assert made == asked
    lease.release()


@pytest.mark.parametrize(("size", "asked"), [(4000, ["get"]), (400_000, ["get", "get_range"])])
def test_a_load_asks_for_no_more_than_it_needs(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, size: int, asked: list[str]
) -> None:
    for name in ("best", own_name()):
        path = put(store, name, "one", size=size)

        with requests(store, monkeypatch) as made:
            assert read(store, path) == ("one", b"one" * size, b"one")

        assert made == asked


def test_a_resume_reads_what_a_listing_has_found_without_another_look(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, own_name(1), "one")
    put(store, own_name(2), "two")

    with requests(store, monkeypatch) as made:
        path, _ = next(iter(store.list("s")))
        assert all_of(store.open(path, "state.json", "two")) == b"two"

    assert made == ["get"]


def test_what_a_head_holds_itself_is_bounded(store: ObjectStore) -> None:
    lease = store.acquire("s")
    for number in range(2 * INLINE // SMALL):
        put(store, own_name(number), "x", lease, size=SMALL)

    assert len(lease.head.encode()) < INLINE + 20_000
    for number in range(2 * INLINE // SMALL):
        assert read(store, own_name(number)) == ("x", b"x" * SMALL, b"x")
    lease.release()


def test_parts_that_go_while_somebody_opens_them_are_looked_for_again(store: ObjectStore) -> None:
    path = put(store, "best", "one", size=LARGE)
    other = ObjectStore(store.url)
    store.meta(path)
    put(other, "best", "one", size=LARGE)  # and the data of the former is gone

    assert all_of(store.open(path, "pkl", "one")) == b"one" * LARGE

    store.meta(path)
    other.delete(path)
    with pytest.raises(CheckpointNotFound):
        store.open(path, "pkl", "one")


@pytest.mark.parametrize("name", ["best", own_name()])
def test_a_meta_put_alone_leaves_the_parts_where_they_are(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put(store, name, "one", size=LARGE)
    before = keys(store, "data")
    meta = parts("one", more="sealed anew")[2:]

    with requests(store, monkeypatch) as made:
        store.put(name, meta, lease=None, stage="one")

    assert made == ["get", "_put"]
    assert keys(store, "data") == before
    assert read(store, name) == ("one", b"one" * LARGE, b"one")
    with pytest.raises(CheckpointError, match="another checkpoint"):
        store.put(name, meta, lease=None, stage="another")
    assert keys(store, "data") == before


def test_pieces_are_fetched_before_they_are_read_and_no_more_than_a_few(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(store, "big", "x", size=6 * CHUNK)
    source = store.open(path, "pkl", "x")
    with requests(store, monkeypatch) as made:
        source.begin()
        while len(made) < 4:
            time.sleep(0.01)  # until the threads have come to it

        source.close()
        assert source.readinto(memoryview(bytearray(10))) == 0

    assert made == ["get_range"] * 4


def test_a_piece_that_cannot_be_fetched_is_asked_for_again_in_its_turn(store: ObjectStore) -> None:
    path = put(store, "big", "x", size=3 * CHUNK)
    bucket, missing = store._all.bucket, keys(store, "data")[1]
    kept = bucket.get(missing)
    bucket.delete([missing])
    source, buffer = store.open(path, "pkl", "x"), memoryview(bytearray(CHUNK))
    assert source.readinto(buffer) == CHUNK

    for _ in range(2):
        with pytest.raises(CheckpointCorrupt, match=r"lacks bytes of a part \(piece 1"):
            source.readinto(buffer)
    assert kept is not None
    bucket.put(missing, kept.data)

    assert [source.readinto(buffer) for _ in range(3)] == [CHUNK, CHUNK, 0]


def test_what_was_overwritten_or_deleted_leaves_no_data(store: ObjectStore) -> None:
    for name in (own_name(), "best"):
        put(store, name, "one", size=CHUNK)
        put(store, name, "two", size=LARGE)
    assert len(keys(store, "data")) == 2

    for name in (own_name(), "best"):
        assert store.delete(name) is True

    assert keys(store, "data") == []


def test_many_of_a_session_are_deleted_in_one_change(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [put(store, own_name(number), "one", size=LARGE) for number in range(5)]
    other = put(store, own_name(session="t"), "one")
    named = [put(store, f"best{number}", "one", size=LARGE) for number in range(3)]

    with requests(store, monkeypatch) as made:
        assert store.delete_many([*own[:4], own[0], f"{store.folder}/never"]) == 4
    assert made == ["get", "_put", "delete", "get"]

    assert store.delete_many([*own, other, *named[1:]]) == 4
    assert names(store) == ["best0"]
    assert len(keys(store, "data")) == 1
    assert store.delete_many([]) == 0


# --- records ----------------------------------------------------------------------------


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
