"""The Redis store as the layers above use it: paths, listings, durability, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import (
    CheckpointError,
    CheckpointNotFound,
    KeyTaken,
    ServerGone,
    ServerReadOnly,
    ServerRefuses,
)
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.redis import RedisStore
from tests.servers import Server, free_port
from tests.unit.stores.redis_trios import own_name, parts, put, read

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return RedisStore(redis_url)


def names(store: CheckpointStore, *args: str | None) -> list[str]:
    return [path.rpartition("/")[2] for path, _ in store.list(*args)]


# --- paths -----------------------------------------------------------------------------


def test_a_checkpoint_is_found_under_every_form_of_its_path(store: RedisStore) -> None:
    put(store, "best.pkl", "one")

    for path in ("redis://best", "redis://best.pkl", f"{store.folder}/best.state.json", "best", "best.pkl"):
        assert json.loads(store.meta(path))["stage"] == "one"
        assert store.open(path, "pkl", "one").size == 3


def test_a_path_of_another_store_is_not_its_own(store: RedisStore, tmp_path: Path) -> None:
    other = store.folder.removesuffix("/0") + "/1/best"

    assert store.takes(f"{store.folder}/best") == f"{store.folder}/best"
    assert store.takes("redis://best") == f"{store.folder}/best"
    assert store.takes(f"redis://{own_name()}") == f"{store.folder}/{own_name()}"
    for path in (other, "checkpoints/best.pkl", "file:///best.pkl", store.folder, "redis://"):
        assert store.takes(path) is None
    with pytest.raises(CheckpointError, match=r"/1/best is not in redis://"):
        store.meta(other)
    assert LocalStore(tmp_path).takes("redis://best") is None
    assert LocalStore(tmp_path).takes("x/best.pkl") == "x/best.pkl"


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


def test_what_is_not_there_is_not_found(store: RedisStore) -> None:
    for call in (store.meta, lambda path: store.open(path, "pkl", "one")):
        with pytest.raises(CheckpointNotFound, match=r"/best not found"):
            call("redis://best")
    assert store.delete("redis://best") is False


# --- listings --------------------------------------------------------------------------


def test_the_newest_is_listed_first_without_touching_values(store: RedisStore, redis_server: Server) -> None:
    for number in (1, 3, 2):
        put(store, own_name(number), f"n{number}")
    for key in redis_server.ask("KEYS", "*:chunk:*"):
        redis_server.ask("DEL", key)

    assert names(store) == [own_name(2), own_name(3), own_name(1)]
    assert [json.loads(raw)["stage"] for _, raw in store.list()] == ["n2", "n3", "n1"]
    assert next(store.list())[0] == f"{store.folder}/{own_name(2)}"


def test_a_session_has_its_own_and_those_whose_meta_names_it(store: RedisStore) -> None:
    put(store, own_name(1), "one")
    put(store, own_name(1, "t"), "two", session="t")
    put(store, "best", "three")
    put(store, "other", "four", session="t")
    meta = ("meta.json", lambda sink: sink.write(b"damaged"))
    store.put("redis://damaged", [*parts("five")[:2], meta], lease=None, stage="five")

    assert names(store, "s") == [own_name(1), "best"]
    assert names(store, "t") == [own_name(1, "t"), "other"]
    assert sorted(names(store)) == sorted(["best", "other", "damaged", own_name(1), own_name(1, "t")])


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("redis://*", ["best", "bust", own_name(1)]),
        ("redis://b*", ["best", "bust"]),
        ("redis://b[e]st", ["best"]),
        ("b?st.pkl", ["best", "bust"]),
        ("redis://session_s_*", [own_name(1)]),
        ("redis://none*", []),
    ],
)
def test_a_pattern_is_one_of_names(store: RedisStore, pattern: str, found: list[str]) -> None:
    for name in (own_name(1), "best", "bust"):
        put(store, name, "one")

    assert sorted(names(store, None, pattern)) == sorted(found)
    if pattern.startswith("redis://"):
        assert sorted(names(store, None, pattern.replace("redis://", f"{store.folder}/"))) == sorted(found)


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


def test_probing_leaves_nothing_behind(store: RedisStore, redis_server: Server) -> None:
    store.probe()

    assert redis_server.ask("DBSIZE") == 0


def test_nothing_is_asked_before_the_first_use() -> None:
    store = RedisStore(f"redis://:hunter2@127.0.0.1:{free_port()}/0")

    with pytest.raises(ServerGone) as gone:
        store.probe()

    assert "hunter2" not in f"{gone.value} {store.url} {store.folder} {store!r}"


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


# --- processes ------------------------------------------------------------


def test_a_forked_child_goes_on_with_connections_of_its_own(redis_url: str) -> None:
    program = f"""
import os
from graflow_ckpt.stores.redis import RedisStore
from tests.unit.stores.redis_trios import put, read
store = RedisStore({redis_url!r})
put(store, "first", "parent")
pid = os.fork()
for n in range(30):
    who = "parent" if pid else "child"
    put(store, who, f"{{who}}{{n}}")
    assert read(store, f"{{store.folder}}/first")[0] == "parent"
if not pid:
    os._exit(0)
assert os.wait()[1] == 0
print(read(store, f"{{store.folder}}/parent")[0], read(store, f"{{store.folder}}/child")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["parent29", "child29"]
