"""Leases in Redis: exactly one owner, by the server's clock, and nobody who has lost it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.redis_chunks import CHUNK
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.stores.leases import ROOT, Another, OneOwner, owner_elsewhere, told, without_ranks
from tests.unit.stores.redis_trios import own_name, parts, put

KEY = "graflow:ck:{s}:lease"


@pytest.fixture
def store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> RedisStore:
    without_ranks(monkeypatch)
    return RedisStore(redis_url)


def now(server: Server) -> int:
    seconds, micros = server.ask("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def owned_by(server: Server, milliseconds: int, **unlike: object) -> None:
    """As if another process had claimed the session."""
    owner = json.dumps(asdict(replace(myself(), **{"pid": 1 << 30, **unlike})))
    server.ask("HSET", KEY, "epoch", 4, "owner", owner, "until", now(server) + milliseconds, "nonce", "other")


@pytest.fixture
def another(redis_url: str) -> Another:
    return lambda: RedisStore(redis_url)


class TestOneOwner(OneOwner):
    """In Redis."""


def test_asking_for_an_owner_makes_no_key(store: RedisStore, redis_server: Server) -> None:
    assert store.owner("s") is None
    assert redis_server.ask("DBSIZE") == 0


# --- who has lost it -------------------------------------------------------------------


def test_a_take_over_fences_the_old_owner_for_good(store: RedisStore) -> None:
    old = store.acquire("s")

    new = store.acquire("s", take_over=True)

    for _ in range(2):
        with pytest.raises(Fenced, match="taken over by process"):
            old.check()
    assert new.taken_from is not None
    old.release()  # says nothing and undoes nothing
    new.check()
    assert store.owner("s") is not None
    new.release()


def test_a_released_lease_is_of_no_use(store: RedisStore) -> None:
    lease = store.acquire("s")
    lease.release()
    lease.release()

    with pytest.raises(Fenced, match="released"):
        lease.check()
    with pytest.raises(Fenced, match="released"):
        put(store, own_name(), "one", lease)


@pytest.mark.parametrize("size", [1, 1 << 17, CHUNK], ids=["small", "large", "chunks"])
@pytest.mark.parametrize("name", [own_name(), "best"])
def test_who_was_fenced_puts_nothing(name: str, size: int, store: RedisStore, redis_server: Server) -> None:
    old, new = store.acquire("s"), store.acquire("s", take_over=True)

    with pytest.raises(Fenced):
        put(store, name, "one", old, size=size)

    assert list(store.list()) == []
    assert [key for key in redis_server.ask("KEYS", "*") if b":chunk:" in key] == []
    new.release()


@pytest.mark.parametrize("name", [own_name(), "best"])
def test_who_is_fenced_while_it_writes_puts_nothing(
    name: str, store: RedisStore, redis_server: Server
) -> None:
    old = store.acquire("s")
    values, *rest = parts("one", size=10)
    taken = []

    def late(sink: object) -> None:
        values[1](sink)
        taken.append(store.acquire("s", take_over=True))

    with pytest.raises(Fenced):
        store.put(f"{store.folder}/{name}", [("pkl", late), *rest], lease=old, stage="one")

    assert list(store.list()) == []
    assert [key for key in redis_server.ask("KEYS", "*") if b":chunk:" in key] == []
    taken[0].release()


def test_a_server_that_has_forgotten_the_session_fences_its_owner(
    store: RedisStore, redis_server: Server
) -> None:
    lease = store.acquire("s")
    redis_server.ask("FLUSHALL")

    with pytest.raises(Fenced, match="forgotten"):
        lease.check()
    for name in (own_name(), "best"):
        with pytest.raises(Fenced, match="forgotten"):
            put(store, name, "one", lease)

    lease.release()


def test_a_forked_child_does_not_own_what_its_parent_does(redis_url: str) -> None:
    program = f"""
import os
from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.stores.redis import RedisStore
from tests.unit.stores.redis_trios import own_name, put, read
store = RedisStore({redis_url!r})
lease = store.acquire("s")
if os.fork() == 0:
    for call in (lease.check, lambda: put(store, own_name(), "child", lease)):
        try:
            call()
            print("let in")
        except Fenced as error:
            print("forked" in str(error), flush=True)
    put(store, "childs", "child")  # without a lease, over a connection of its own
    lease.release()
    os._exit(0)
os.wait()
lease.check()
put(store, own_name(), "parent", lease)
print(store.owner("s").pid == os.getpid(), read(store, "childs")[0], flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["True", "True", "True", "child"]


# --- dead, silent and stopped owners ---------------------------------------------------


def test_a_killed_owner_of_this_machine_is_followed_at_once(store: RedisStore, redis_url: str) -> None:
    with owner_elsewhere(RedisStore, redis_url, lease=600) as process:
        with pytest.raises(SessionBusy, match=f"process {process.pid} on"):
            store.acquire("s")
        process.kill()
        process.wait()
        assert store.owner("s") is None

        lease = store.acquire("s")

        assert lease.epoch == 2
        assert lease.taken_from is not None
        assert lease.taken_from.pid == process.pid
        lease.release()


def test_a_pid_that_somebody_else_has_now_keeps_nobody_out(store: RedisStore, redis_server: Server) -> None:
    owned_by(redis_server, 600_000, pid=os.getpid(), started="1")

    lease = store.acquire("s")

    assert lease.epoch == 5
    lease.release()


def test_a_silent_owner_of_another_machine_is_waited_for_until_its_lease_ends(
    store: RedisStore, redis_server: Server
) -> None:
    owned_by(redis_server, 300, boot="another machine", host="far")
    began = now(redis_server)

    lease = store.acquire("s")

    assert now(redis_server) - began >= 290
    assert lease.taken_from is not None
    assert (lease.epoch, lease.taken_from.host) == (5, "far")
    lease.release()


def test_an_owner_of_another_machine_that_renews_its_lease_is_alive(
    store: RedisStore, redis_server: Server
) -> None:
    owned_by(redis_server, 600_000, boot="another machine", host="far")
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.01):
            redis_server.ask("HINCRBY", KEY, "until", 1)

    keeper = threading.Thread(target=renew)
    keeper.start()
    try:
        with pytest.raises(SessionBusy, match="on far"):
            store.acquire("s")
        assert store.owner("s") is not None
    finally:
        over.set()
        keeper.join()


def test_a_lease_is_renewed_for_as_long_as_its_owner_lives(redis_url: str, redis_server: Server) -> None:
    store = RedisStore(redis_url, lease=0.3)
    lease = store.acquire("s")
    first = int(redis_server.ask("HGET", KEY, "until"))

    deadline = time.monotonic() + 20
    while int(redis_server.ask("HGET", KEY, "until")) < first + 600:  # twice its length
        assert time.monotonic() < deadline, "nobody renews the lease"
        time.sleep(0.01)
    assert store.owner("s") is not None
    lease.release()


def test_a_renewal_that_fails_is_tried_again(redis_server: Server, redis_url: str) -> None:
    with Proxy(redis_server) as proxy:
        store = RedisStore(proxy.url, lease=0.3)
        lease = store.acquire("s")
        proxy.refuse()
        deadline = time.monotonic() + 20
        while now(redis_server) < int(redis_server.ask("HGET", KEY, "until")):
            assert time.monotonic() < deadline
            time.sleep(0.01)

        proxy.resume()

        while now(redis_server) > int(redis_server.ask("HGET", KEY, "until")):
            assert time.monotonic() < deadline, "the keeper has given up"
            time.sleep(0.01)
        lease.check()  # nobody has taken it meanwhile
        lease.release()


def test_a_stopped_owner_loses_the_session_by_the_clock_and_writes_nothing_when_it_wakes(
    store: RedisStore, redis_url: str
) -> None:
    with owner_elsewhere(RedisStore, redis_url, lease=0.5) as process:
        assert told(process, own_name(1)).strip().endswith(own_name(1))
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while store.owner("s") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lease = store.acquire("s")

        os.kill(process.pid, signal.SIGCONT)

        for name in (own_name(2), "best"):
            assert told(process, name).startswith("Fenced Session 's' was taken over by process")
        lease.check()
        assert [path.rpartition("/")[2] for path, _ in store.list()] == [own_name(1)]
        lease.release()


def test_a_claim_whose_reply_is_lost_is_the_same_claim_when_it_is_asked_for_again(
    redis_server: Server, redis_url: str
) -> None:
    with Proxy(redis_server) as proxy:
        store = RedisStore(proxy.url)
        store.acquire("s").release()
        proxy.drop_next_reply(b'"argv"')

        lease = store.acquire("s")

        assert proxy.dropped()
        assert lease.epoch == 2
        lease.check()
        lease.release()


def test_a_lease_that_ends_in_years_is_not_waited_for(store: RedisStore, redis_server: Server) -> None:
    owned_by(redis_server, 10**12, boot="another machine", host="far")  # by somebody's hand

    with pytest.raises(SessionBusy, match="on far"):
        RedisStore(redis_server.url, lease=0.05).acquire("s")

    store.acquire("s", take_over=True).release()
