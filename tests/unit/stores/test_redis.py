"""The Redis store as the layers above use it: paths, listings, durability, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graflow_ckpt.core.errors import (
    CheckpointError,
    KeyTaken,
    ServerReadOnly,
    ServerRefuses,
)
from graflow_ckpt.stores.redis import RedisStore
from tests.servers import Server
from tests.unit.stores.buckets import names
from tests.unit.stores.redis_trios import own_name, put, read


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return RedisStore(redis_url)


# --- paths -----------------------------------------------------------------------------


def test_the_store_of_the_environment_can_be_meant(
    redis_url: str, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", redis_url)
    assert RedisStore("redis://").folder == store.folder
    monkeypatch.delenv("GRAFLOW_CKPT_REDIS_URL")

    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_REDIS_URL"):
        RedisStore("redis://")


def test_databases_are_stores_of_their_own(redis_url: str, store: RedisStore) -> None:
    put(store, "best", "one")

    assert names(RedisStore(redis_url.removesuffix("0") + "1")) == []


# --- listings --------------------------------------------------------------------------


def test_more_metas_than_one_page_are_all_listed(store: RedisStore) -> None:
    for number in range(450):
        put(store, own_name(number), "one")

    assert len(names(store, "s")) == 450


# --- durability ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "synced"),
    [
        ({}, False),
        ({"appendonly": "yes", "appendfsync": "always"}, True),
        ({"appendonly": "yes", "appendfsync": "everysec"}, False),
        ({"appendonly": "yes", "appendfsync": "no"}, False),
        ({"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "yes"}, False),
    ],
)
def test_a_save_is_synced_where_the_server_syncs_what_it_confirms(
    own_redis: Callable[..., Server], config: dict[str, str], synced: bool
) -> None:
    store = RedisStore(own_redis(config).url)
    store.probe()
    assert store.synced is synced
    store = RedisStore(store.url)

    put(store, "best", "one")

    assert store.synced is synced


def test_what_was_synced_is_there_after_the_servers_death(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    store = RedisStore(server.url)
    lease = store.acquire("s")
    put(store, own_name(), "one", lease, size=9 << 20)

    server.restart()

    assert read(store, f"{store.folder}/{own_name()}") == ("one", b"one" * (9 << 20), b"one")
    lease.check()
    put(store, own_name(2), "two", lease)
    lease.release()


# --- what is wrong with a server -------------------------------------------------------


def test_a_replica_is_found_out_by_the_probe(own_redis: Callable[..., Server]) -> None:
    with pytest.raises(ServerReadOnly):
        RedisStore(own_redis(replica_of=own_redis()).url).probe()


def test_a_wrong_password_is_refused(own_redis: Callable[..., Server]) -> None:
    with pytest.raises(ServerRefuses):
        RedisStore(own_redis({"requirepass": "hunter2"}).url.replace("hunter2", "hunter3")).probe()


def test_a_failed_save_is_an_error_of_the_checkpoint_whatever_was_wrong(
    store: RedisStore, redis_server: Server
) -> None:
    redis_server.ask("SET", "graflow:ck:{@}:metas", "a string")

    with pytest.raises(CheckpointError, match=r"metas is a string, not a hash") as failed:
        put(store, "best", "one")

    assert isinstance(failed.value.__cause__, KeyTaken)
    assert failed.value.path == f"{store.folder}/best"


def test_a_full_server_keeps_the_old_one(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"maxmemory": "24mb", "maxmemory-policy": "noeviction"})
    store = RedisStore(server.url)
    path = put(store, "best", "one", size=1000)
    before = server.ask("DBSIZE")

    with pytest.raises(CheckpointError, match="maxmemory"):
        put(store, "best", "two", size=20 << 20)

    assert read(store, path)[0] == "one"
    assert server.ask("DBSIZE") == before


def test_a_server_that_does_not_say_how_it_syncs_is_not_believed(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    server.ask("ACL", "SETUSER", "worker", "on", ">hunter2", "~*", "+@all", "-config")
    store = RedisStore(server.url.replace("redis://", "redis://worker:hunter2@"))

    path = put(store, "best", "one")

    assert store.synced is False
    assert read(store, path)[0] == "one"
