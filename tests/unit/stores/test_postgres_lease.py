"""Leases in Postgres: by the server's clock alone, and no commit of a former owner comes after a claim."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from typing import Any

import psycopg
import pytest

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.stores.postgres import PostgresStore
from tests.unit.stores.kinds import InPostgres, only
from tests.unit.stores.leases import owner_elsewhere
from tests.unit.stores.redis_trios import own_name, put, read

pytestmark = only("postgres")


def test_a_claim_waits_for_a_commit_that_has_seen_its_epoch(store: PostgresStore, kind: InPostgres) -> None:
    lease, taken, seen = store.acquire("s"), [], []

    def take() -> None:
        taken.append(store.acquire("s", take_over=True))
        seen.extend(path for path, _ in store.list())

    with psycopg.connect(kind.where) as other:
        # what comes after the epoch: the row of that name
        other.execute("insert into graflow_ckpt.checkpoints values ('best', 0, '', '', '', '', '{}', '')")
        threads = [
            threading.Thread(target=put, args=(store, "best", "one", lease)),
            threading.Thread(target=take),
        ]
        threads[0].start()
        kind.waiting(1)
        threads[1].start()
        kind.waiting(2)
        other.rollback()
    for thread in threads:
        thread.join()

    assert seen == [f"{store.folder}/best"]
    assert taken[0].epoch == 2
    taken[0].release()


def test_a_commit_whose_sender_is_killed_is_over_before_the_next_owner_begins(
    store: PostgresStore, kind: InPostgres
) -> None:
    """The server does not know of the kill: the statement goes on, and a claim has to wait for it."""
    put(store, "best", "former")
    found: list[Any] = []

    def follow() -> None:
        lease = store.acquire("s")
        found.extend([lease.epoch, read(store, "best")])
        lease.release()

    with psycopg.connect(kind.where) as other:
        other.execute("select from graflow_ckpt.checkpoints where name = 'best' for update")
        with owner_elsewhere(kind, lease=600) as process:
            assert process.stdin is not None
            process.stdin.write("best\n")
            process.stdin.flush()
            kind.waiting(1)
            process.kill()
            process.wait()
        thread = threading.Thread(target=follow)
        thread.start()
        kind.waiting(2)
        other.rollback()
    thread.join()

    assert found == [2, ("theirs", b"theirs", b"theirs")]
    assert read(store, "best") == found[1]


def test_of_two_who_find_an_owner_dead_the_second_does_not_take_it_from_the_first(kind: InPostgres) -> None:
    kind.owned(600)
    claim = "select granted, its_epoch from graflow_ckpt.claim('s', %s, 'me', 600000, %s, 0)"

    assert kind.ask(claim, "first", "4") == [(True, 5)]
    assert kind.ask(claim, "second", "4") == [(False, 5)]


def test_a_clock_that_was_set_back_keeps_a_silent_owner_alive_for_one_term_only(
    store: PostgresStore, kind: InPostgres
) -> None:
    kind.term = 400
    kind.owned(0.3, **kind.far)
    kind.step(-3600)
    began = time.monotonic()

    lease = store.acquire("s")

    assert 0.4 <= time.monotonic() - began < 20
    assert lease.epoch == 5
    lease.release()


@pytest.mark.parametrize("step", [-1e9, 1e9])
def test_what_the_clock_of_a_program_says_changes_nothing(
    store: PostgresStore, kind: InPostgres, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """It is stepped before each look, by thirty years to and fro; the server's clock is the only one."""
    said, steps = time.time, itertools.cycle([step, 0.0])
    monkeypatch.setattr(time, "time", lambda: said() + next(steps))
    monkeypatch.setattr(time, "time_ns", lambda: int((said() + next(steps)) * 1e9))

    old = store.acquire("s")
    for number in (1, 2):
        put(store, own_name(number), f"n{number}", old)
    assert 10 < kind.left() <= 15
    with pytest.raises(SessionBusy):
        store.acquire("s")
    new = store.acquire("s", take_over=True)
    with pytest.raises(Fenced):
        put(store, own_name(3), "late", old)
    put(store, own_name(3), "n3", new)

    assert new.epoch == old.epoch + 1
    assert 10 < kind.left() <= 15
    assert [path.rpartition("/")[2] for path, _ in store.list("s")] == [own_name(n) for n in (3, 2, 1)]
    new.release()


def test_random_histories_of_two_workers_end_in_one_line_of_epochs(
    store: PostgresStore, kind: InPostgres
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
                        kind.step(rng.choice((-3600, 3600)))
            except (SessionBusy, Fenced):
                if lease is not None:
                    assert lease.epoch < highest or store.owner(session) is not None
        for lease in leases:
            if lease is not None:
                lease.release()
        standing = [json.loads(raw)["epoch"] for _, raw in store.list(session)]
        assert standing[::-1] == sorted(written) == written
