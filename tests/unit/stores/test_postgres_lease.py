"""Leases in Postgres: exactly one owner, by the server's clock, and nobody who has lost it writes."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import psycopg
import pytest

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores import postgres_chunks
from graflow_ckpt.stores.postgres import PostgresStore
from tests.postgres_servers import PostgresServer
from tests.proxy import Proxy
from tests.unit.stores.leases import ROOT, Another, OneOwner, owner_elsewhere, told, without_ranks
from tests.unit.stores.redis_trios import own_name, parts, put, read

CHUNK = 1 << 16


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else these tests move gigabytes, to no other end."""
    monkeypatch.setattr(postgres_chunks, "CHUNK", CHUNK)


@pytest.fixture
def store(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    without_ranks(monkeypatch)
    store = PostgresStore(postgres_url)
    yield store
    store.close()


class Clock:
    """The row of session `s`, as the server sees it."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self.database = url.rpartition("/")[2]

    def ask(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
        return self.server.ask(statement, *args, database=self.database)

    def left(self) -> float:
        """Seconds until the lease ends."""
        asked = "select extract(epoch from until - clock_timestamp()) from graflow_ckpt.sessions"
        return float(self.ask(asked)[0][0])

    def step(self, seconds: float) -> None:
        """As if the server's clock had been set forward, or back."""
        self.ask("update graflow_ckpt.sessions set until = until - %s * interval '1 second'", seconds)

    def waiting(self, count: int) -> None:
        """Until so many wait for a lock."""
        deadline = time.monotonic() + 20
        asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        while self.ask(asked) != [(count,)]:
            assert time.monotonic() < deadline, f"not {count} who wait"
            time.sleep(0.01)

    def owned(self, seconds: float, *, term: int = 15_000, **unlike: object) -> None:
        """As if another process had claimed the session."""
        owner = json.dumps(asdict(replace(myself(), **{"pid": 1 << 30, **unlike})))  # type: ignore[arg-type]
        until = "clock_timestamp() + %s * interval '1 second'"
        self.ask(
            f"insert into graflow_ckpt.sessions values ('s', 4, %s, {until}, %s, 'other')",
            owner,
            seconds,
            term,
        )


@pytest.fixture
def clock(postgres_server: PostgresServer, postgres_url: str) -> Clock:
    return Clock(postgres_server, postgres_url)


@pytest.fixture
def another(postgres_url: str) -> Another:
    return lambda: PostgresStore(postgres_url)


class TestOneOwner(OneOwner):
    """In Postgres."""


def test_asking_for_an_owner_makes_no_row(store: PostgresStore, clock: Clock) -> None:
    assert store.owner("s") is None
    assert clock.ask("select count(*) from graflow_ckpt.sessions") == [(0,)]


# --- who has lost it -------------------------------------------------------------------


def test_a_take_over_fences_the_old_owner_for_good(store: PostgresStore) -> None:
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


def test_a_released_lease_is_of_no_use(store: PostgresStore) -> None:
    lease = store.acquire("s")
    lease.release()
    lease.release()

    with pytest.raises(Fenced, match="released"):
        lease.check()
    with pytest.raises(Fenced, match="released"):
        put(store, own_name(), "one", lease)


@pytest.mark.parametrize("size", [1, 2 * CHUNK])
@pytest.mark.parametrize("name", [own_name(), "best"])
def test_who_was_fenced_puts_nothing(name: str, size: int, store: PostgresStore, clock: Clock) -> None:
    old, new = store.acquire("s"), store.acquire("s", take_over=True)

    with pytest.raises(Fenced):
        put(store, name, "one", old, size=size)

    assert list(store.list()) == []
    assert clock.ask("select count(*) from graflow_ckpt.chunks") == [(0,)]
    new.release()


@pytest.mark.parametrize("size", [1, 2 * CHUNK])
@pytest.mark.parametrize("name", [own_name(), "best"])
def test_who_is_fenced_while_it_writes_puts_nothing(
    name: str, size: int, store: PostgresStore, clock: Clock
) -> None:
    old = store.acquire("s")
    values, *rest = parts("one", size=size)
    taken = []

    def late(sink: Any) -> None:
        values[1](sink)
        taken.append(store.acquire("s", take_over=True))

    with pytest.raises(Fenced):
        store.put(f"{store.folder}/{name}", [("pkl", late), *rest], lease=old, stage="one")

    assert list(store.list()) == []
    for table in ("chunks", "staging"):
        assert clock.ask(f"select count(*) from graflow_ckpt.{table}") == [(0,)]
    taken[0].release()


def test_a_claim_waits_for_a_commit_that_has_seen_its_epoch(store: PostgresStore, clock: Clock) -> None:
    lease, taken, seen = store.acquire("s"), [], []

    def take() -> None:
        taken.append(store.acquire("s", take_over=True))
        seen.extend(path for path, _ in store.list())

    with psycopg.connect(clock.server.url_of(clock.database)) as other:
        # what comes after the epoch: the row of that name
        other.execute("insert into graflow_ckpt.checkpoints values ('best', 0, '', '', '', '', '{}', '')")
        threads = [
            threading.Thread(target=put, args=(store, "best", "one", lease)),
            threading.Thread(target=take),
        ]
        threads[0].start()
        clock.waiting(1)
        threads[1].start()
        clock.waiting(2)
        other.rollback()
    for thread in threads:
        thread.join()

    assert seen == [f"{store.folder}/best"]
    assert taken[0].epoch == 2
    taken[0].release()


def test_a_commit_whose_sender_is_killed_is_over_before_the_next_owner_begins(
    store: PostgresStore, postgres_url: str, clock: Clock
) -> None:
    """The server does not know of the kill: the statement goes on, and a claim has to wait for it."""
    put(store, "best", "former")
    found: list[Any] = []

    def follow() -> None:
        lease = store.acquire("s")
        found.extend([lease.epoch, read(store, "best")])
        lease.release()

    with psycopg.connect(clock.server.url_of(clock.database)) as other:
        other.execute("select from graflow_ckpt.checkpoints where name = 'best' for update")
        with owner_elsewhere(PostgresStore, postgres_url, lease=600) as process:
            assert process.stdin is not None
            process.stdin.write("best\n")
            process.stdin.flush()
            clock.waiting(1)
            process.kill()
            process.wait()
        thread = threading.Thread(target=follow)
        thread.start()
        clock.waiting(2)
        other.rollback()
    thread.join()

    assert found == [2, ("theirs", b"theirs", b"theirs")]
    assert read(store, "best") == found[1]


def test_a_server_that_has_forgotten_the_session_fences_its_owner(store: PostgresStore, clock: Clock) -> None:
    lease = store.acquire("s")
    clock.ask("delete from graflow_ckpt.sessions")

    with pytest.raises(Fenced, match="forgotten"):
        lease.check()
    for name in (own_name(), "best"):
        with pytest.raises(Fenced, match="forgotten"):
            put(store, name, "one", lease)

    lease.release()


def test_a_forked_child_does_not_own_what_its_parent_does(postgres_url: str) -> None:
    program = f"""
import os
from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.stores.postgres import PostgresStore
from tests.unit.stores.redis_trios import own_name, put, read
store = PostgresStore({postgres_url!r})
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
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["True", "True", "True", "child"]


# --- dead, silent and stopped owners ---------------------------------------------------


def test_a_killed_owner_of_this_machine_is_followed_at_once(store: PostgresStore, postgres_url: str) -> None:
    with owner_elsewhere(PostgresStore, postgres_url, lease=600) as process:
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


def test_a_pid_that_somebody_else_has_now_keeps_nobody_out(store: PostgresStore, clock: Clock) -> None:
    clock.owned(600, pid=os.getpid(), started="1")

    lease = store.acquire("s")

    assert lease.epoch == 5
    lease.release()


def test_of_two_who_find_an_owner_dead_the_second_does_not_take_it_from_the_first(clock: Clock) -> None:
    clock.owned(600)
    claim = "select granted, its_epoch from graflow_ckpt.claim('s', %s, 'me', 600000, %s, 0)"

    assert clock.ask(claim, "first", "4") == [(True, 5)]
    assert clock.ask(claim, "second", "4") == [(False, 5)]


def test_a_silent_owner_of_another_machine_is_waited_for_until_its_lease_ends(
    store: PostgresStore, clock: Clock
) -> None:
    clock.owned(0.3, boot="another machine", host="far")
    began = time.monotonic()

    lease = store.acquire("s")

    assert time.monotonic() - began >= 0.25
    assert lease.taken_from is not None
    assert (lease.epoch, lease.taken_from.host) == (5, "far")
    lease.release()


def test_a_clock_that_was_set_back_keeps_a_silent_owner_alive_for_one_term_only(
    store: PostgresStore, clock: Clock
) -> None:
    clock.owned(0.3, term=400, boot="another machine", host="far")
    clock.step(-3600)
    began = time.monotonic()

    lease = store.acquire("s")

    assert 0.4 <= time.monotonic() - began < 20
    assert lease.epoch == 5
    lease.release()


def test_an_owner_of_another_machine_that_renews_its_lease_is_alive(
    store: PostgresStore, clock: Clock
) -> None:
    clock.owned(600, boot="another machine", host="far")
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.01):
            clock.step(-0.001)

    keeper = threading.Thread(target=renew)
    keeper.start()
    try:
        with pytest.raises(SessionBusy, match="on far"):
            store.acquire("s")
        assert store.owner("s") is not None
    finally:
        over.set()
        keeper.join()


def test_a_lease_is_renewed_for_as_long_as_its_owner_lives(postgres_url: str, clock: Clock) -> None:
    store = PostgresStore(postgres_url, lease=0.3)
    lease = store.acquire("s")
    until = "select until from graflow_ckpt.sessions"
    first = clock.ask(until)[0][0]

    deadline = time.monotonic() + 20
    while (clock.ask(until)[0][0] - first).total_seconds() < 0.6:  # twice its length
        assert time.monotonic() < deadline, "nobody renews the lease"
        time.sleep(0.01)
    assert store.owner("s") is not None
    lease.release()
    store.close()


def test_a_renewal_that_fails_is_tried_again(postgres_server: PostgresServer, clock: Clock) -> None:
    with Proxy(postgres_server) as proxy:  # type: ignore[arg-type]
        store = PostgresStore(f"{proxy.url.rpartition('/')[0]}/{clock.database}", lease=0.3)
        lease = store.acquire("s")
        proxy.refuse()
        deadline = time.monotonic() + 20
        while clock.left() > 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)

        proxy.resume()

        while clock.left() < 0:
            assert time.monotonic() < deadline, "the keeper has given up"
            time.sleep(0.01)
        lease.check()  # nobody has taken it meanwhile
        lease.release()
        store.close()


@pytest.mark.parametrize("clock_step", [0, 3600, -3600])
def test_a_stopped_owner_loses_the_session_and_writes_nothing_when_it_wakes_whatever_the_clock_says(
    store: PostgresStore, postgres_url: str, clock: Clock, clock_step: int
) -> None:
    with owner_elsewhere(PostgresStore, postgres_url, lease=0.5) as process:
        assert told(process, own_name(1)).strip().endswith(own_name(1))
        os.kill(process.pid, signal.SIGSTOP)
        clock.step(clock_step)
        deadline = time.monotonic() + 20
        while clock_step >= 0 and store.owner("s") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lease = store.acquire("s", take_over=clock_step < 0)  # it is near, and its process is there

        os.kill(process.pid, signal.SIGCONT)

        for order in (own_name(2), "best", "append"):
            assert told(process, order).startswith("Fenced Session 's' was taken over by process")
        lease.check()
        assert [path.rpartition("/")[2] for path, _ in store.list()] == [own_name(1)]
        assert list(store.segments("s")) == [(1, 0, b"")]
        lease.release()


@pytest.mark.parametrize("step", [-1e9, 1e9])
def test_what_the_clock_of_a_program_says_changes_nothing(
    store: PostgresStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """It is stepped before each look, by thirty years to and fro; the server's clock is the only one."""
    said, steps = time.time, itertools.cycle([step, 0.0])
    monkeypatch.setattr(time, "time", lambda: said() + next(steps))
    monkeypatch.setattr(time, "time_ns", lambda: int((said() + next(steps)) * 1e9))

    old = store.acquire("s")
    for number in (1, 2):
        put(store, own_name(number), f"n{number}", old)
    assert 10 < clock.left() <= 15
    with pytest.raises(SessionBusy):
        store.acquire("s")
    new = store.acquire("s", take_over=True)
    with pytest.raises(Fenced):
        put(store, own_name(3), "late", old)
    put(store, own_name(3), "n3", new)

    assert new.epoch == old.epoch + 1
    assert 10 < clock.left() <= 15
    assert [path.rpartition("/")[2] for path, _ in store.list("s")] == [own_name(n) for n in (3, 2, 1)]
    new.release()


def test_a_claim_whose_reply_is_lost_is_the_same_claim_when_it_is_asked_for_again(
    postgres_server: PostgresServer, clock: Clock
) -> None:
    with Proxy(postgres_server) as proxy:  # type: ignore[arg-type]
        store = PostgresStore(f"{proxy.url.rpartition('/')[0]}/{clock.database}?sslmode=disable")
        store.acquire("s").release()
        proxy.drop_next_reply(b'"argv"')

        lease = store.acquire("s")

        assert proxy.dropped()
        assert lease.epoch == 2
        lease.check()
        lease.release()
        store.close()


# --- histories -------------------------------------------------------------------------


def test_random_histories_of_two_workers_end_in_one_line_of_epochs(
    store: PostgresStore, clock: Clock
) -> None:
    """Whatever two do by turns, what stands was written by owners whose epochs only grow."""
    rng = random.Random(4)
    for history in range(40):
        session, held, written, highest = f"h{history}", [None, None], list[int](), 0
        leases: list[Any] = held
        for step in range(8):
            who = rng.randrange(2)
            lease = leases[who]
            try:
                match rng.choice(("acquire", "take", "put", "put", "release", "step")):
                    case "acquire" | "take" as how:
                        leases[who] = store.acquire(session, take_over=how == "take")
                        assert leases[who].epoch > highest
                        highest = leases[who].epoch
                    case "put" if lease is not None:
                        put(store, own_name(step, session), "x", lease, session=session, epoch=lease.epoch)
                        assert lease.epoch == highest
                        written.append(lease.epoch)
                    case "release" if lease is not None:
                        lease.release()
                        leases[who] = None
                    case "step":
                        clock.step(rng.choice((-3600, 3600)))
            except (SessionBusy, Fenced):
                if lease is not None:
                    assert lease.epoch < highest or store.owner(session) is not None
        for lease in leases:
            if lease is not None:
                lease.release()
        standing = [json.loads(raw)["epoch"] for _, raw in store.list(session)]
        assert standing[::-1] == sorted(written) == written
