"""The trio in Redis: how often the server is asked, and what comes of a reply that is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, SaveOutcomeUnknown
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.redis_trio import CHUNK
from tests.proxy import Proxy
from tests.unit.stores.kinds import REDIS, InRedis, only
from tests.unit.stores.redis_trios import all_of, own_name, put, read

pytestmark = only(*REDIS)


@pytest.fixture
def proxy(kind: InRedis) -> Iterator[Proxy]:
    with kind.proxy() as (proxy, _):
        yield proxy


@pytest.fixture
def trips(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Round trips since it was cleared: one for each."""
    pool, made = store._all.link.client.connection_pool, list[int]()
    take = pool.get_connection
    monkeypatch.setattr(pool, "get_connection", lambda *args: (made.append(1), take(*args))[1])
    return made


def test_a_script_that_the_server_does_not_know_is_sent_with_what_came_before_it(
    store: RedisStore, kind: InRedis
) -> None:
    put(store, "best", "one")
    kind.ask("SCRIPT", "FLUSH")

    path = put(store, "best", "two", size=1 << 17)

    assert read(store, path) == ("two", b"two" * (1 << 17), b"two")
    assert len(kind.pieces()) == 2


@pytest.mark.parametrize("size", [0, 1, 1 << 17, CHUNK // 3])
def test_a_save_of_one_chunk_a_part_is_one_round_trip(store: RedisStore, trips: list[int], size: int) -> None:
    lease = store.acquire("s")
    put(store, own_name(1), "one", lease)
    trips.clear()

    path = put(store, own_name(2), "two", lease, size=size)

    assert len(trips) == 1
    assert read(store, path) == ("two", b"two" * size, b"two")
    lease.release()


@pytest.mark.parametrize(("size", "count"), [(1, 1), (16 << 10, 1), (CHUNK // 3, 2)])
def test_a_load_is_a_round_trip_and_one_more_for_what_is_large(
    store: RedisStore, trips: list[int], size: int, count: int
) -> None:
    path = put(store, "best", "x", size=size)
    read(store, path)
    trips.clear()

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


@pytest.mark.parametrize("name", [own_name().removesuffix(".pkl"), "best"])
def test_a_commit_whose_reply_is_lost_is_asked_for_again(proxy: Proxy, kind: InRedis, name: str) -> None:
    store = RedisStore(proxy.url)
    put(store, name, "one")
    proxy.drop_next_reply(f"\r\n{name}\r\n".encode())

    path = put(store, name, "two")

    assert proxy.dropped()
    assert read(store, path) == ("two", b"two", b"two")
    assert len(kind.pieces()) == 2


def test_a_commit_that_is_never_confirmed_may_stand_and_nothing_of_it_is_taken_away(
    proxy: Proxy, kind: InRedis
) -> None:
    store, direct = RedisStore(proxy.url), kind.open()
    put(store, "best", "one")

    def refuse() -> None:
        while read(direct, "best")[0] != "two":
            time.sleep(0.005)
        proxy.refuse()

    proxy.hold_next_reply(b"\r\nbest\r\n")
    refusing = threading.Thread(target=refuse)
    refusing.start()
    with kind.impatient(0.2), pytest.raises(SaveOutcomeUnknown, match="not confirmed"):
        put(store, "best", "two", size=CHUNK)
    refusing.join()

    assert read(direct, "best") == ("two", b"two" * CHUNK, b"two")
    assert len(kind.pieces()) == 4


def test_ctrl_c_while_the_commit_is_confirmed_takes_nothing_away(proxy: Proxy, kind: InRedis) -> None:
    store, direct = RedisStore(proxy.url), kind.open()
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
    assert len(kind.pieces()) == 4
