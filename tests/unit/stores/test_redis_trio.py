"""The trio in Redis: whole or not at all, whoever dies, races, or is not answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    SaveOutcomeUnknown,
)
from graflow_ckpt.stores import redis_scripts
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.redis_chunks import CHUNK, LIFE
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.stores.redis_trios import all_of, own_name, parts, put, read

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return RedisStore(redis_url)


@pytest.fixture
def proxy(redis_server: Server, redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_server) as proxy:
        yield proxy


def chunks(server: Server) -> list[str]:
    return sorted(key.decode() for key in server.ask("KEYS", "*:chunk:*"))


def staged(server: Server) -> int:
    return sum(server.ask("HLEN", key) for key in server.ask("KEYS", "*:staging"))


# --- whole -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [own_name(), "best"])
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 1])
def test_what_was_put_is_read(store: RedisStore, redis_server: Server, name: str, size: int) -> None:
    path = put(store, name, "x", size=size)

    assert read(store, path) == ("x", b"x" * size, b"x")
    assert len([key for key in chunks(redis_server) if ":pkl:" in key]) == -(-size // CHUNK)
    assert {redis_server.ask("TTL", key) for key in chunks(redis_server)} == {-1}
    assert staged(redis_server) == 0


def test_a_newer_one_takes_the_place_of_an_older_and_its_chunks_go(
    store: RedisStore, redis_server: Server
) -> None:
    path = put(store, "best", "one", size=CHUNK)
    assert len(chunks(redis_server)) == 4

    assert put(store, "best", "two") == path

    assert read(store, path) == ("two", b"two", b"two")
    assert len(chunks(redis_server)) == 2


def test_a_meta_alone_leaves_the_other_parts_as_they_are(store: RedisStore, redis_server: Server) -> None:
    path = put(store, "best", "one")
    before = chunks(redis_server)
    meta = json.dumps({"stage": "one", "sealed": "anew"}).encode()

    store.put(path, [("meta.json", lambda sink: sink.write(meta))], lease=None, stage="one")

    assert store.meta(path) == meta
    assert read(store, path) == ("one", b"one", b"one")
    assert chunks(redis_server) == before


def test_deleting_takes_all_of_it_and_says_whether_there_was_one(
    store: RedisStore, redis_server: Server
) -> None:
    for name in (own_name(), "best"):
        path = put(store, name, "one", size=CHUNK)

        assert store.delete(path) is True
        assert store.delete(path) is False
        with pytest.raises(CheckpointNotFound):
            store.meta(path)
        with pytest.raises(CheckpointNotFound):
            store.open(path, "pkl", "one")

    assert chunks(redis_server) == []
    assert list(store.list()) == []


def test_a_reader_whose_chunks_go_finds_out(store: RedisStore) -> None:
    path = put(store, "best", "one", size=2 * CHUNK)
    source = store.open(path, "pkl", "one")
    buffer = memoryview(bytearray(3 * CHUNK))
    assert source.readinto(buffer) == CHUNK

    put(store, "best", "two")

    with pytest.raises(CheckpointCorrupt, match="lacks chunk 1"):
        source.readinto(buffer)
    with pytest.raises(CheckpointCorrupt, match="belongs to its meta"):
        store.open(path, "pkl", "one")


@pytest.mark.parametrize("wrong", [["pkl"], ["meta.json", "pkl"], ["other", "meta.json"]])
def test_parts_are_those_of_a_trio_meta_last(store: RedisStore, wrong: list[str]) -> None:
    with pytest.raises(ValueError, match="parts are some of"):
        store.put(f"{store.folder}/best", [(name, print) for name in wrong], lease=None, stage="one")


# --- or not at all ---------------------------------------------------------------------


@pytest.mark.parametrize("part", ["pkl", "state.json", "meta.json"])
def test_a_part_that_cannot_be_written_leaves_what_was_there(
    store: RedisStore, redis_server: Server, part: str
) -> None:
    path = put(store, "best", "one")
    before = chunks(redis_server)

    def fail(sink: object) -> None:
        raise OSError("cannot be pickled")

    broken = [(name, fail if name == part else writer) for name, writer in parts("two", size=2 * CHUNK)]
    with pytest.raises(OSError, match="cannot be pickled"):
        store.put(path, broken, lease=None, stage="two")

    assert read(store, path)[0] == "one"
    assert chunks(redis_server) == before
    assert staged(redis_server) == 0


@pytest.mark.parametrize("name", [own_name(), "best"])
def test_a_writer_that_is_killed_before_its_commit_leaves_the_old_one_and_what_the_next_owner_clears_away(
    store: RedisStore, redis_server: Server, name: str
) -> None:
    lease = store.acquire("s")
    path = put(store, name, "one", lease)
    lease.release()
    before = chunks(redis_server)
    program = f"""
import os, signal
from graflow_ckpt.stores.redis import RedisStore
from tests.unit.stores.redis_trios import parts
store = RedisStore({redis_server.url!r})
lease = store.acquire("s")
*rest, _ = parts("two", size={3 * CHUNK})
die = ("meta.json", lambda sink: os.kill(os.getpid(), signal.SIGKILL))
store.put({path!r}, [*rest, die], lease=lease, stage="two")
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL

    assert read(store, path)[0] == "one"
    left = set(chunks(redis_server)) - set(before)
    assert len([key for key in left if ":pkl:" in key]) == 8  # all but the last, which is kept for the commit
    assert all(0 < redis_server.ask("TTL", key) <= LIFE for key in left)

    store.acquire("s").release()

    assert chunks(redis_server) == before
    assert staged(redis_server) == 0


def test_an_owner_clears_away_nothing_of_those_who_are_alive(store: RedisStore) -> None:
    other = store.acquire("t")
    (name, values), *rest = parts("one", size=2 * CHUNK)

    def slow(sink: object) -> None:
        values(sink)
        store.acquire("s").release()

    for lease in (None, other):
        for path in ("redis://best", f"redis://{own_name(session='t')}"):
            store.put(path, [(name, slow), *rest], lease=lease, stage="one")

            assert read(store, path) == ("one", b"one" * 2 * CHUNK, b"one")
    other.release()


def test_what_is_older_than_a_chunk_lives_is_cleared_away_whoever_wrote_it(
    store: RedisStore, redis_server: Server
) -> None:
    old, young = (int(redis_server.ask("TIME")[0]) - age for age in (LIFE + 5, LIFE - 60))
    for nonce, at in (("old", old), ("young", young)):
        said = json.dumps({"session": "", "epoch": "", "at": str(at)})
        redis_server.ask("HSET", "graflow:ck:{s}:staging", nonce, said)
        for part, n in (("pkl", 0), ("pkl", 1), ("state.json", 0)):
            redis_server.ask("SET", f"graflow:ck:{{s}}:chunk:{nonce}:{part}:{n}", "x")

    store.acquire("s").release()

    assert staged(redis_server) == 1
    assert len(chunks(redis_server)) == 3
    assert all(":young:" in key for key in chunks(redis_server))


def test_chunks_that_are_gone_at_the_commit_make_no_checkpoint(
    store: RedisStore, redis_server: Server
) -> None:
    path = put(store, "best", "one")
    *rest, (name, meta) = parts("two", size=2 * CHUNK)

    def late(sink: object) -> None:
        gone = next(key for key in chunks(redis_server) if key.endswith("pkl:3"))
        redis_server.ask("DEL", gone)
        meta(sink)

    with pytest.raises(CheckpointError, match="chunks of its pkl are gone"):
        store.put(path, [*rest, (name, late)], lease=None, stage="two")

    assert read(store, path)[0] == "one"
    assert len(chunks(redis_server)) == 2


def test_a_full_server_keeps_the_old_one(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"maxmemory": "24mb", "maxmemory-policy": "noeviction"})
    store = RedisStore(server.url)
    path = put(store, "best", "one", size=1000)
    before = chunks(server)

    with pytest.raises(CheckpointError, match="maxmemory"):
        put(store, "best", "two", size=20 << 20)

    assert read(store, path)[0] == "one"
    assert chunks(server) == before


def test_two_writers_of_one_path_never_mix(redis_url: str, redis_server: Server) -> None:
    path, over = f"{RedisStore(redis_url).folder}/best", threading.Event()
    put(RedisStore(redis_url), "best", "a0", size=1)
    failed: list[BaseException] = []

    def write(name: str) -> None:
        store, n = RedisStore(redis_url), 0
        while not over.is_set():
            n += 1
            put(store, "best", f"{name}{n}", size=1 + n % 3 * 1000)

    def guarded(name: str) -> None:
        try:
            write(name)
        except BaseException as error:  # noqa: BLE001  for the assertion below
            failed.append(error)

    writers = [threading.Thread(target=guarded, args=[name]) for name in "ab"]
    for writer in writers:
        writer.start()
    reader, seen = RedisStore(redis_url), set()
    while len(seen) < 50 and not failed:
        stage, values, state = read(reader, path)
        seen.add(stage)
        assert values.replace(stage.encode(), b"") == b"", "parts of two writers"
        assert state == stage.encode()
    over.set()
    for writer in writers:
        writer.join()

    assert failed == []
    assert {stage[0] for stage in seen} >= {"a", "b"}
    assert len(chunks(redis_server)) == 2
    assert staged(redis_server) == 0


def test_a_script_that_the_server_does_not_know_is_sent_with_what_came_before_it(
    store: RedisStore, redis_server: Server
) -> None:
    put(store, "best", "one")
    redis_server.ask("SCRIPT", "FLUSH")

    path = put(store, "best", "two", size=1 << 17)

    assert read(store, path) == ("two", b"two" * (1 << 17), b"two")
    assert len(chunks(redis_server)) == 2


@pytest.mark.parametrize("size", [0, 1, 1 << 17, CHUNK // 3])
def test_a_save_of_one_chunk_a_part_is_one_round_trip(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    lease = store.acquire("s")
    put(store, own_name(1), "one", lease)
    pool, trips = store._all.link.client.connection_pool, []
    take = pool.get_connection
    monkeypatch.setattr(pool, "get_connection", lambda *args: (trips.append(1), take(*args))[1])

    path = put(store, own_name(2), "two", lease, size=size)

    assert len(trips) == 1
    monkeypatch.undo()
    assert read(store, path) == ("two", b"two" * size, b"two")
    lease.release()


@pytest.mark.parametrize(("size", "count"), [(1, 1), (16 << 10, 1), (CHUNK // 3, 2)])
def test_a_load_is_a_round_trip_and_one_more_for_what_is_large(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    path = put(store, "best", "x", size=size)
    read(store, path)
    pool, trips = store._all.link.client.connection_pool, []
    take = pool.get_connection
    monkeypatch.setattr(pool, "get_connection", lambda *args: (trips.append(1), take(*args))[1])

    assert read(store, path) == ("x", b"x" * size, b"x")
    assert len(trips) == count


@pytest.mark.parametrize("size", [1, CHUNK // 3])
def test_what_came_with_a_meta_is_of_its_stage_or_nothing(store: RedisStore, size: int) -> None:
    path = put(store, "best", "a", size=size)
    store.meta(path)
    put(store, "best", "b", size=size)

    with suppress(CheckpointCorrupt):
        assert all_of(store.open(path, "pkl", "a")) == b"a" * size
    with pytest.raises(CheckpointCorrupt):
        store.open(path, "state.json", "c")
    assert read(RedisStore(store.url), path) == read(store, path) == ("b", b"b" * size, b"b")


# --- lost replies ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [own_name().removesuffix(".pkl"), "best"])
def test_a_commit_whose_reply_is_lost_is_asked_for_again(
    proxy: Proxy, redis_server: Server, name: str
) -> None:
    store = RedisStore(proxy.url)
    put(store, name, "one")
    proxy.drop_next_reply(f"\r\n{name}\r\n".encode())

    path = put(store, name, "two")

    assert proxy.dropped()
    assert read(store, path) == ("two", b"two", b"two")
    assert len(chunks(redis_server)) == 2


def test_a_commit_that_is_never_confirmed_may_stand_and_nothing_of_it_is_taken_away(
    proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_scripts, "PATIENCE", 0.2)
    store = RedisStore(proxy.url)
    put(store, "best", "one")
    *rest, (name, meta) = parts("two", size=CHUNK)

    def late(sink: object) -> None:
        meta(sink)
        proxy.drop_next_reply(b"\r\nbest\r\n")
        threading.Thread(target=lambda: proxy.dropped() and proxy.refuse()).start()

    with pytest.raises(SaveOutcomeUnknown, match="not confirmed"):
        store.put(f"{store.folder}/best", [*rest, (name, late)], lease=None, stage="two")

    direct, end = RedisStore(redis_url), time.monotonic() + 10
    while read(direct, f"{direct.folder}/best")[0] != "two":  # it is on its way
        assert time.monotonic() < end


def test_a_server_that_is_lost_in_mid_save_keeps_the_old_one(proxy: Proxy, redis_url: str) -> None:
    store, direct = RedisStore(proxy.url), RedisStore(redis_url)
    put(store, "best", "one")
    (name, values), *rest = parts("two", size=CHUNK)

    def cut(sink: object) -> None:
        proxy.refuse()
        values(sink)

    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*cannot be reached"):
        store.put(f"{store.folder}/best", [(name, cut), *rest], lease=None, stage="two")

    assert read(direct, f"{direct.folder}/best")[0] == "one"


def test_ctrl_c_while_the_commit_is_confirmed_takes_nothing_away(
    proxy: Proxy, redis_url: str, redis_server: Server
) -> None:
    store, direct = RedisStore(proxy.url), RedisStore(redis_url)
    put(store, "best", "one")
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while read(direct, f"{direct.folder}/best")[0] != "two":
            time.sleep(0.005)
        signal.pthread_kill(main, signal.SIGUSR1)

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, raise_it)
    try:
        proxy.hold_next_reply(b"\r\nbest\r\n")
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            put(store, "best", "two", size=CHUNK)
    finally:
        signal.signal(signal.SIGUSR1, previous)

    assert read(direct, f"{direct.folder}/best") == ("two", b"two" * CHUNK, b"two")
    assert len(chunks(redis_server)) == 4
