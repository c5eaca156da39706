"""Contents in Redis: nothing of them stays or is lost, whoever dies, is not answered, or has thousands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, Fenced
from graflow_ckpt.stores import redis_trio
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.redis_trio import CHUNK, LIFE
from graflow_ckpt.testing.trios import (
    content,
    held,
    meta_holding,
    name_of,
    own_name,
    owning,
    path_of,
    pieces,
    put_holding,
    put_meta,
    there,
    writer,
)  # fmt: skip
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.stores.redis_trios import put, read

ROOT = Path(__file__).parents[3]
ONE, TWO = content(1), content(2)
LARGE = content(3, 2 * CHUNK + 1)


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return RedisStore(redis_url)


@pytest.fixture
def proxy(redis_server: Server, redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_server) as proxy:
        yield proxy


def keys(server: Server, pattern: str = "*:contents*") -> set[str]:
    """Of contents, and of those who write them."""
    return {key.decode() for which in (pattern, "*:staging") for key in server.ask("KEYS", which)}


def lives(server: Server) -> set[int]:
    return {server.ask("TTL", key) for which in ("*:in:*", "*:chunk:*") for key in server.ask("KEYS", which)}


def trips(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each that follows."""
    pool, found = store._all.link.client.connection_pool, list[int]()
    take = pool.get_connection
    monkeypatch.setattr(pool, "get_connection", lambda *args: (found.append(1), take(*args))[1])
    return found


# --- who dies --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [own_name(sequence=2), "best"])
@pytest.mark.parametrize("moment", ["in a content", "in the meta"])
def test_what_a_killed_save_has_left_goes_with_the_next_owner_and_what_is_kept_loads(
    store: RedisStore, redis_server: Server, name: str, moment: str
) -> None:
    with owning(store) as lease:
        kept = put_holding(store, own_name(), "one", [ONE, LARGE], lease=lease)
        best = put_holding(store, "best", "one", [ONE, TWO], lease=lease)
    before = keys(redis_server)
    program = f"""
import os, signal
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.testing.trios import content, meta_holding, name_of, pieces
store = RedisStore({redis_server.url!r})
lease = store.acquire("s")
saving = store.contents.saving({name!r}, lease=lease, stage="two")
found, small, large = content(1), content(5), content(6, {3 * CHUNK})

def die(sink):
    os.kill(os.getpid(), signal.SIGKILL)

def broken():
    yield from list(pieces(large))[:2]
    if {moment == "in a content"}:
        die(None)
    yield list(pieces(large))[2]

def values(sink):
    assert saving.hold([name_of(found), name_of(small)]) == {{name_of(found)}}
    saving.add(name_of(small), len(small), [small])
    saving.add(name_of(large), len(large), broken())
    saving.settle()

store.put({name!r}, [("pkl", values), ("meta.json", die)], lease=lease, stage="two")
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = keys(redis_server) - before
    assert len([key for key in left if ":in:" in key]) == 1 + (2 if moment == "in a content" else 3)
    assert any(key.endswith(":staging") for key in left)

    store.acquire("s").release()

    assert keys(redis_server) == before
    assert held(store, kept) == [ONE, LARGE]
    assert held(store, best) == [ONE, TWO]
    assert store.delete_many([kept, best]) == 2
    assert keys(redis_server) == set()


def test_a_save_without_an_owner_is_swept_once_its_chunks_would_have_expired(
    store: RedisStore, redis_server: Server
) -> None:
    saving = store.contents.saving("best", lease=None, stage="dead")
    saving.add(name_of(ONE), len(ONE), [ONE])
    saving.settle()
    staging = "graflow:ck:{@}:staging"
    store.contents.sweep()
    assert there(store, [ONE], "best") == {ONE}

    nonce, said = redis_server.ask("HGETALL", staging)
    old = {**json.loads(said), "at": str(int(redis_server.ask("TIME")[0]) - LIFE - 5)}
    redis_server.ask("HSET", staging, nonce, json.dumps(old))

    assert store.contents.sweep() == 1
    assert keys(redis_server) == set()
    with pytest.raises(CheckpointError, match="cleared them away"):
        saving.hold([name_of(ONE)])
    saving.add(name_of(ONE), len(ONE), [ONE])
    with pytest.raises(CheckpointError, match="cleared them away"):
        saving.settle()
    saving.end()
    assert keys(redis_server) == keys(redis_server, "*:in:*")  # what it wrote meanwhile, and that expires
    assert -1 not in lives(redis_server)


@pytest.mark.parametrize("once_more", [False, True])  # the epoch is given out, by a server that was put back
def test_a_save_whose_session_was_taken_over_finds_nothing(
    store: RedisStore, redis_server: Server, once_more: bool
) -> None:
    with owning(store) as lease:
        saving = store.contents.saving(own_name(), lease=lease, stage="one")
        RedisStore(redis_server.url).acquire("s", take_over=True).release()
        if once_more:
            redis_server.ask("HSET", "graflow:ck:{s}:lease", "epoch", lease.epoch)

        with pytest.raises(Fenced):
            saving.hold([name_of(ONE)])
        saving.end()

    assert keys(redis_server) == set()


def test_one_that_was_faster_is_held_and_the_other_ones_chunks_go(
    store: RedisStore, redis_server: Server
) -> None:
    other = RedisStore(redis_server.url)
    saving = store.contents.saving("best", lease=None, stage="one")

    def slowly() -> Iterator[bytes]:
        yield from list(pieces(LARGE))[:2]
        put_holding(other, "other", "two", [LARGE])
        yield list(pieces(LARGE))[2]

    def values(sink: object) -> None:
        saving.hold([name_of(LARGE)])
        saving.add(name_of(LARGE), len(LARGE), slowly())
        saving.settle()

    meta = writer(meta_holding("one", [name_of(LARGE)]))
    store.put("best", [("pkl", values), ("meta.json", meta)], lease=None, stage="one")
    saving.end()

    assert held(store, path_of(store, "best")) == held(store, path_of(store, "other")) == [LARGE]
    assert len(redis_server.ask("KEYS", "*:in:*")) == 3


# --- lost replies ----------------------------------------------------------------------


@pytest.mark.parametrize("to", ["pin", "keep", "commit", "free"])
def test_a_script_whose_reply_is_lost_is_asked_for_again_and_changes_nothing_more(
    proxy: Proxy, redis_server: Server, to: str
) -> None:
    store = RedisStore(proxy.url)
    put_holding(store, "best", "one", [ONE, TWO])  # the server knows all scripts by now
    put_holding(store, "other", "one", [ONE])
    proxy.drop_next_reply(store._all.scripts[to].sha.encode())

    path = put_holding(store, "best", "two", [ONE, LARGE])

    assert proxy.dropped()
    assert held(store, path) == [ONE, LARGE]
    assert there(store, [ONE, TWO, LARGE], "best") == {ONE, LARGE}
    assert lives(redis_server) == {-1}
    assert store.delete_many([path, path_of(store, "other")]) == 2
    assert keys(redis_server) == set()


def test_a_large_part_stays_though_the_reply_to_its_commit_was_lost(
    proxy: Proxy, redis_server: Server
) -> None:
    store = RedisStore(proxy.url)
    put(store, "best", "one")
    proxy.drop_next_reply(store._all.scripts["commit"].sha.encode())

    path = put(store, "best", "two", size=1 << 17)

    assert proxy.dropped()
    assert read(store, path) == ("two", b"two" * (1 << 17), b"two")
    assert lives(redis_server) == {-1}


def test_what_one_had_no_time_to_let_go_of_goes_with_the_next_commit(
    store: RedisStore, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_holding(store, "best", "one", [ONE])
    monkeypatch.setattr(store._all.trios, "free", lambda *args: 0)
    assert store.delete(path)
    assert len(redis_server.ask("KEYS", "*:in:*")) == 1

    put(RedisStore(redis_server.url), "other", "two")

    assert keys(redis_server) == set()


# --- many and much ---------------------------------------------------------------------


def test_many_small_ones_are_few_round_trips(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [content(number, 1000) for number in range(300)]
    put_holding(store, "former", "one", [ONE])
    found = trips(store, monkeypatch)

    path = put_holding(store, "best", "two", many)

    assert len(found) <= 5  # the tag, what is there, all that is not, the commit, the end
    monkeypatch.undo()
    assert held(store, path) == many


def test_a_save_without_contents_is_one_round_trip_beside_others_that_have_some(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_holding(store, "former", "one", [ONE])
    found = trips(store, monkeypatch)

    put(store, "best", "two")

    assert len(found) == 1


def test_much_goes_in_steps_and_whole(
    store: RedisStore, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_trio, "_STEP", 3)
    path = put_holding(store, "best", "one", [LARGE, *(content(10 + n, 1000) for n in range(7)), ONE])
    other = put_holding(store, "other", "two", [ONE])
    found = trips(store, monkeypatch)

    assert store.delete(path)

    assert len(found) > 5
    assert held(store, other) == [ONE]
    assert len(redis_server.ask("KEYS", "*:in:*")) == 1
    assert not redis_server.ask("KEYS", "*:over")


# --- what is damaged, and where it is ----------------------------------------------------


def test_what_the_server_has_dropped_is_stored_anew(store: RedisStore, redis_server: Server) -> None:
    path = put_holding(store, "best", "one", [LARGE])
    redis_server.ask("DEL", next(key for key in redis_server.ask("KEYS", "*:in:*:1")))
    with pytest.raises(CheckpointCorrupt, match="holds no content"):
        store.contents.open(path, name_of(LARGE), "one")

    second = put_holding(store, "second", "two", [LARGE])

    assert held(store, second) == [LARGE]
    put_meta(store, "best", meta_holding("one", [name_of(LARGE)]), "one")  # sealed anew: it has the whole one
    assert held(store, path) == [LARGE]
    assert store.delete_many([path, second]) == 2
    assert keys(redis_server) == set()
