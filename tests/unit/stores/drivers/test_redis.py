"""The Redis store as the layers above use it: paths, listings, durability, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from graflow_ckpt.core.errors import BadAddress, CheckpointError, KeyTaken, NoJournal, ServerReadOnly
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.drivers.redis import driver as redis_driver
from graflow_ckpt.stores.drivers.redis.names import divided, folder_of, split
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.stores.texts import names, own_name, put, read


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
def test_a_save_is_synced_and_a_journal_kept_where_the_server_syncs_what_it_confirms(
    own_redis: Callable[..., Server], config: dict[str, str], synced: bool
) -> None:
    store = RedisStore(own_redis(config).url)
    store.probe()
    assert store.synced is synced
    store = RedisStore(store.url)

    put(store, "best", "one")

    assert store.synced is synced
    lease = store.acquire("s")
    with nullcontext() if synced else pytest.raises(NoJournal, match="appendfsync always"):
        store.journal(lease, 0)
    lease.release()


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


def test_a_failed_save_is_an_error_of_the_checkpoint_whatever_was_wrong(
    store: RedisStore, redis_server: Server
) -> None:
    redis_server.ask("SET", "graflow:ck:names", "a string")

    with pytest.raises(CheckpointError, match=r"names is a string, not a zset") as failed:
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


def test_a_script_that_the_server_does_not_know_is_sent_with_what_came_before_it(
    store: RedisStore, redis_server: Server
) -> None:
    put(store, "best", "one")
    redis_server.ask("SCRIPT", "FLUSH")

    path = put(store, "best", "two", size=1 << 17)

    assert read(store, path) == ("two", b"two" * (1 << 17), b"two")


def test_what_goes_ahead_of_a_script_that_refuses_goes_and_what_is_kept_does_not_expire(
    store: RedisStore, redis_server: Server
) -> None:
    put(store, "best", "one", size=1 << 20)
    assert {redis_server.ask("TTL", key) for key in redis_server.ask("KEYS", "*")} == {-1}
    before = set(redis_server.ask("KEYS", "*"))

    assert store.driver.batch([Put("data/x/1/0", b"x" * (1 << 17))], guards={"head/@best": "0" * 24}) is None
    assert set(redis_server.ask("KEYS", "*")) == before  # a refusal takes it away at once


def test_a_connection_that_is_lost_between_a_chunk_and_the_script_costs_a_save_nothing(
    redis_server: Server, redis_url: str
) -> None:
    with Proxy(redis_server) as proxy:
        behind = RedisStore(proxy.url)
        put(behind, "best", "one")
        proxy.halve_next_request(b"EVALSHA")

        path = put(behind, "best", "two", size=1 << 17)

        assert proxy.dropped()
        assert read(behind, path) == ("two", b"two" * (1 << 17), b"two")


def test_a_large_record_counts_as_appended_only_when_its_script_was_carried_out(
    own_redis: Callable[..., Server],
) -> None:
    server, frame = own_redis({"appendonly": "yes", "appendfsync": "always"}), b"f" * (1 << 17)
    with Proxy(server) as proxy:
        store = RedisStore(proxy.url)
        lease = store.acquire("s")
        segment = store.journal(lease, 0)
        segment.append(b"first")
        proxy.halve_next_request(b"EVALSHA")

        segment.append(frame)

        assert proxy.dropped()
        assert b"".join(raw for _, _, raw in store.segments("s")) == b"first" + frame
        lease.release()


@pytest.mark.parametrize("name", ["batch", "find"])
def test_each_script_compiles_and_says_what_it_takes(name: str, redis_server: Server) -> None:
    text = redis_driver.source(name)

    assert redis_server.ask("SCRIPT", "LOAD", text)
    assert text.startswith("-- ")
    assert "-- KEYS" in text
    assert "-- ARGV" in text


# --- names and addresses ----------------------------------------------------------------


ENVIRONMENT = {"GRAFLOW_CKPT_REDIS_URL": "redis://:p@env:9/1"}


@pytest.mark.parametrize(
    ("path", "store", "name"),
    [
        ("redis://h:1/2/best", "redis://h:1/2", "best"),
        ("redis://h:1/2/best.pkl", "redis://h:1/2", "best"),
        ("redis://h:1/2/best.meta.json", "redis://h:1/2", "best"),
        ("redis://u:p@h:1/2/best", "redis://u:p@h:1/2", "best"),
        ("redis://u@h/best", "redis://u@h", "best"),
        ("redis://h:1/best", "redis://h:1", "best"),
        ("redis://h:1/2/7", "redis://h:1/2", "7"),
        ("redis://h:1/2", "redis://h:1/2", ""),
        ("redis://h:1/2/best?socket_timeout=3", "redis://h:1/2?socket_timeout=3", "best"),
        ("redis+sentinel://a,b/main/2/best", "redis+sentinel://a,b/main/2", "best"),
        ("redis+sentinel://a,b/main/best", "redis+sentinel://a,b/main", "best"),
        ("redis+sentinel://a,b/main", "redis+sentinel://a,b/main", ""),
        ("redis://best", "redis://:p@env:9/1", "best"),
        ("redis://session_123.pkl", "redis://:p@env:9/1", "session_123"),
        ("redis://*", "redis://:p@env:9/1", "*"),
        ("redis://", "redis://:p@env:9/1", ""),
    ],
)
def test_a_path_is_a_store_and_a_name(path: str, store: str, name: str) -> None:
    assert split(path, ENVIRONMENT) == (store, name)


def test_a_name_alone_leads_nowhere_without_a_server() -> None:
    assert split("redis://best", {}) == ("", "best")


def test_a_store_may_be_named_by_its_host_alone() -> None:
    assert divided("redis://localhost") == ("redis://localhost", "")


def test_a_name_with_slashes_is_refused_without_showing_a_password() -> None:
    with pytest.raises(CheckpointError, match=r"redis://h:1/0/runs/best") as refused:
        split("redis://u:hunter2@h:1/0/runs/best")

    assert "hunter2" not in str(refused.value)


def test_a_unix_socket_cannot_be_a_store() -> None:
    with pytest.raises(BadAddress, match="no place for a name"):
        folder_of("unix:///run/redis.sock")
