"""A cache in front of a store: fewer bytes from it, and never another answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound
from graflow_ckpt.core.protocols import Source
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.cached import Cached
from graflow_ckpt.stores.around.patience import Breaker
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.servers import Server
from tests.trios import all_of, meta_of, path_of, put, put_meta, read, writer


class Counting(MemoryStore):
    """Counts how many parts were read."""

    opens = 0

    def open(self, path: str, part: str, stage: str) -> Source:
        self.opens += 1
        return super().open(path, part, stage)


@pytest.fixture
def inner() -> Iterator[Counting]:
    yield Counting("memory://cached")
    MemoryStore("memory://cached").forget()


@pytest.fixture
def store(inner: Counting, redis_url: str) -> Cached:
    return Cached(inner, redis_url)


def test_what_was_read_once_is_not_asked_of_the_store_again(store: Cached, inner: Counting) -> None:
    path = put(store, "best", "one", size=200_000)

    found = [read(store, path) for _ in range(3)]

    assert inner.opens == 2
    assert {trio.values for trio in found} == {found[0].values}
    assert len(found[0].values) == 200_000


def test_what_is_cached_serves_other_processes_too(store: Cached, inner: Counting, redis_url: str) -> None:
    path = put(store, "best", "one")
    read(store, path)

    again = Cached(store.inner, redis_url)

    assert read(again, path).stage == "one"
    assert inner.opens == 2


def test_what_was_deleted_or_written_anew_is_seen_at_once(store: Cached) -> None:
    path = put(store, "best", "one")
    read(store, path)
    there = path_of(store.inner, "best")

    put(store.inner, "best", "two")
    assert read(store, path).stage == "two"
    with pytest.raises(CheckpointCorrupt):
        store.open(path, "pkl", "one")

    store.inner.delete(there)
    with pytest.raises(CheckpointNotFound):
        store.open(path, "pkl", "two")


def test_other_bytes_under_the_same_stage_are_not_mistaken(store: Cached) -> None:
    path = put(store, "best", "one", size=1000)
    read(store, path)

    put(store.inner, "best", "one", size=2000)

    assert len(read(store, path).values) == 2000


def test_a_meta_that_is_sealed_anew_keeps_its_parts(store: Cached) -> None:
    path = put(store, "best", "one")
    before = read(store, path)

    put_meta(store, "best", before.meta.replace(b"running", b"stopped"), stage="one")

    assert read(store, path).values == before.values
    assert b"stopped" in store.meta(path)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_what_is_damaged_in_the_cache_is_read_from_the_store(
    store: Cached, redis_server: Server, damage: str
) -> None:
    path = put(store, "best", "one")
    before = read(store, path)
    client: Any = redis_server.client()
    (key,) = client.keys("graflow:cache:*")
    for part, entry in client.hgetall(key).items():
        changed = {"flipped": entry[:-1] + bytes([entry[-1] ^ 1]), "cut": entry[:-1], "empty": b""}[damage]
        client.hset(key, part, changed)

    assert read(store, path) == before


def test_what_is_cached_expires_and_goes_with_its_checkpoint(store: Cached, redis_server: Server) -> None:
    path = put(store, "best", "one")
    read(store, path)
    client: Any = redis_server.client()
    (key,) = client.keys("graflow:cache:*")

    assert 0 < client.ttl(key) <= 3600
    store.delete(path)
    assert client.keys("graflow:cache:*") == []


def test_what_is_large_is_streamed_and_not_cached(
    inner: Counting, redis_server: Server, redis_url: str
) -> None:
    store = Cached(inner, redis_url, limit=1000)
    path = put(store, "best", "one", size=2000)

    read(store, path)

    client: Any = redis_server.client()
    (key,) = client.keys("graflow:cache:*")
    assert client.hkeys(key) == [b"state.json"]


def test_a_cache_that_is_away_is_as_good_as_none_and_comes_back(inner: Counting) -> None:
    now = [0.0]
    with Server() as server:
        store = Cached(inner, server.url, breaker=Breaker(1, 5.0, clock=lambda: now[0]))
        path = put(store, "best", "one")
        read(store, path)
        server.kill()

        assert read(store, path).stage == "one"
        assert store.delete(put(store, "other", "two")) is True
        assert inner.opens == 4

        server.start()
        now[0] = 5.0
        read(store, path)
        read(store, path)
        assert inner.opens == 6


def test_a_part_that_the_meta_does_not_name_is_never_cached(store: Cached) -> None:
    store.put(path_of(store, "best"), [("meta.json", writer(meta_of("one")))], lease=None, stage="one")

    with pytest.raises(CheckpointCorrupt):
        all_of(store.open(path_of(store, "best"), "pkl", "one"))


def test_the_address_needs_a_server_that_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_CACHE_URL is not set"):
        open_store("cached+memory://cached")
    with pytest.raises(CheckpointError, match="nothing behind a dot"):
        open_store("cached.x+memory://cached")
    monkeypatch.setenv("GRAFLOW_CKPT_CACHE_URL", "redis://127.0.0.1:1/0")

    assert isinstance(open_store("cached+memory://cached"), Cached)
