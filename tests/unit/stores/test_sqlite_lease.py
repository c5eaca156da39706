"""Leases in a SQLite store: exactly one owner, by a clock that nobody sets; who lost it writes nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointError, Fenced, SessionBusy
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_chunks import HELD
from graflow_ckpt.stores.sqlite_schema import CHUNK
from tests.unit.stores.leases import ROOT, Another, OneOwner, owner_elsewhere, told, without_ranks
from tests.unit.stores.redis_trios import own_name, parts, put


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    without_ranks(monkeypatch)
    store = SqliteStore(tmp_path / "x.db")
    yield store
    store.close()


def ask(store: SqliteStore, statement: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(store.file, isolation_level=None, timeout=10)) as connection:
        return connection.execute(statement, values).fetchall()


def monotonic() -> int:
    return int(time.monotonic() * 1000)


def owned_by(store: SqliteStore, milliseconds: int, by_date: int | None = None, **unlike: object) -> None:
    """As if another process had claimed the session."""
    store.probe()
    owner = json.dumps(asdict(replace(myself(), **{"pid": 1 << 30, **unlike})))
    date = int(time.time() * 1000) + (milliseconds if by_date is None else by_date)
    ask(store, "INSERT INTO leases VALUES ('s', 4, ?, ?, ?, '[]')", owner, monotonic() + milliseconds, date)


@pytest.fixture
def another(store: SqliteStore) -> Another:
    return lambda: SqliteStore(store.url)


class TestOneOwner(OneOwner):
    """In SQLite."""


# --- who has lost it -------------------------------------------------------------------


def test_a_take_over_fences_the_old_owner_for_good(store: SqliteStore) -> None:
    old = store.acquire("s")
    segment = store.journal(old, 0)

    new = store.acquire("s", take_over=True)

    calls = (old.check, lambda: store.journal(old, 1))
    for call in (*calls, lambda: segment.append(b"x"), *calls):
        with pytest.raises(Fenced, match="taken over by process"):
            call()
    assert new.taken_from is not None
    old.release()  # says nothing and undoes nothing
    new.check()
    assert store.owner("s") is not None
    assert list(store.segments("s")) == [(1, 0, b"")]
    new.release()


def test_a_released_lease_is_of_no_use(store: SqliteStore) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    lease.release()
    lease.release()

    put_it, append = (lambda: put(store, own_name(), "one", lease)), (lambda: segment.append(b"x"))
    for call in (lease.check, put_it, append):
        with pytest.raises(Fenced, match="released"):
            call()


@pytest.mark.parametrize("name", [own_name(), "best"])
def test_who_was_fenced_puts_nothing(name: str, store: SqliteStore) -> None:
    old, new = store.acquire("s"), store.acquire("s", take_over=True)

    def endless(sink: Any) -> None:
        for _ in range(HELD // CHUNK):
            sink.write(bytes(CHUNK))
        raise AssertionError("pickled for nothing")

    with pytest.raises(Fenced):
        put(store, name, "one", old)
    with pytest.raises(Fenced):
        store.put(f"sqlite://{name}", [("pkl", endless), ("meta.json", endless)], lease=old, stage="one")

    assert list(store.list()) == []
    assert ask(store, "SELECT (SELECT count(*) FROM chunks), (SELECT count(*) FROM loose)") == [(0, 0)]
    new.release()


@pytest.mark.parametrize("size", [10, 3 << 20])
@pytest.mark.parametrize("name", [own_name(), "best"])
def test_who_is_fenced_while_it_writes_puts_nothing(name: str, size: int, store: SqliteStore) -> None:
    old = store.acquire("s")
    values, *rest = parts("one", size=size)
    taken = []

    def late(sink: object) -> None:
        values[1](sink)
        taken.append(store.acquire("s", take_over=True))

    with pytest.raises((Fenced, CheckpointError)):
        store.put(f"{store.folder}/{name}", [("pkl", late), *rest], lease=old, stage="one")

    assert list(store.list()) == []
    assert ask(store, "SELECT (SELECT count(*) FROM chunks), (SELECT count(*) FROM loose)") == [(0, 0)]
    taken[0].release()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_taken_away_fences_its_owners(store: SqliteStore, replaced: bool) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    for ending in ("", "-wal", "-shm"):
        os.unlink(store.file + ending)
    if replaced:
        SqliteStore(store.url).probe()

    for call in (lease.check, lambda: put(store, "best", "one", lease), lambda: segment.append(b"x")):
        with pytest.raises(Fenced, match="removed or replaced"):
            call()
    lease.release()
    assert list(store.list()) == []


def test_a_forked_child_does_not_own_what_its_parent_does(store: SqliteStore) -> None:
    program = f"""
import os
from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_chunks import HELD
from graflow_ckpt.stores.sqlite_schema import CHUNK
from tests.unit.stores.redis_trios import own_name, put, read
store = SqliteStore({store.file!r})
lease = store.acquire("s")
segment = store.journal(lease, 0)
if os.fork() == 0:
    for call in (lease.check, lambda: put(store, own_name(), "child", lease), lambda: segment.append(b"x")):
        try:
            call()
            print("let in", flush=True)
        except Fenced as error:
            print("forked" in str(error), flush=True)
    put(store, "childs", "child")  # without a lease, over a connection of its own
    lease.release()
    os._exit(0)
assert os.wait()[1] == 0
lease.check()
segment.append(b"parents")
put(store, own_name(), "parent", lease)
print(store.owner("s").pid == os.getpid(), read(store, "childs")[0], list(store.segments("s")), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split("\n")[:3] == ["True"] * 3
    assert done.stdout.split("\n")[3] == "True child [(1, 0, b'parents')]"


# --- dead, silent and stopped owners ---------------------------------------------------


def test_a_killed_owner_is_followed_at_once(store: SqliteStore) -> None:
    with owner_elsewhere(SqliteStore, store.file, lease=600) as process:
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


def test_a_pid_that_somebody_else_has_now_keeps_nobody_out(store: SqliteStore) -> None:
    owned_by(store, 600_000, pid=os.getpid(), started="1")

    lease = store.acquire("s")

    assert lease.epoch == 5
    lease.release()


@pytest.mark.parametrize("date", [-(10**10), 300, 10**10])
def test_a_silent_owner_in_another_container_is_waited_for_whatever_the_date_says(
    store: SqliteStore, date: int
) -> None:
    owned_by(store, 300, by_date=date, pid_ns="another container", host="far")
    began = monotonic()

    lease = store.acquire("s")

    assert 290 <= monotonic() - began < 20_000
    assert lease.taken_from is not None
    assert (lease.epoch, lease.taken_from.host) == (5, "far")
    lease.release()


def test_an_owner_from_before_the_last_reboot_is_waited_for_by_the_date(store: SqliteStore) -> None:
    owned_by(store, 10**10, by_date=300, boot="before")
    assert store.owner("s") is not None

    lease = store.acquire("s")

    assert lease.epoch == 5
    lease.release()


def test_an_owner_in_another_container_that_renews_its_lease_is_alive(store: SqliteStore) -> None:
    owned_by(store, 600_000, pid_ns="another container", host="far")
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.01):
            ask(store, "UPDATE leases SET ends = ends + 1")

    keeper = threading.Thread(target=renew)
    keeper.start()
    try:
        with pytest.raises(SessionBusy, match="on far"):
            store.acquire("s")
        assert store.owner("s") is not None
    finally:
        over.set()
        keeper.join()


def test_a_lease_is_renewed_for_as_long_as_its_owner_lives(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", lease=0.3)
    lease = store.acquire("s")

    def ends() -> int:
        ((found,),) = ask(store, "SELECT ends FROM leases")
        assert isinstance(found, int)
        return found

    first, deadline = ends(), time.monotonic() + 20
    while ends() < first + 600:  # twice its length
        assert time.monotonic() < deadline, "nobody renews the lease"
        time.sleep(0.01)
    assert store.owner("s") is not None
    lease.release()


def test_a_renewal_that_fails_is_tried_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", lease=0.2, patience=0.01)
    lease = store.acquire("s")
    deadline = time.monotonic() + 20
    with closing(sqlite3.connect(store.file, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        while store.owner("s") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        blocking.execute("ROLLBACK")

    while store.owner("s") is None:
        assert time.monotonic() < deadline, "the keeper has given up"
        time.sleep(0.01)
    lease.check()  # nobody has taken it meanwhile
    lease.release()


def test_a_stopped_owner_loses_the_session_and_writes_nothing_when_it_wakes(store: SqliteStore) -> None:
    with owner_elsewhere(SqliteStore, store.file, lease=0.5) as process:
        assert told(process, own_name(1)).strip().endswith(own_name(1))
        assert told(process, "append") == "appended\n"
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while store.owner("s") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lease = store.acquire("s")

        os.kill(process.pid, signal.SIGCONT)

        for what in (own_name(2), "best", "append", "append"):
            assert told(process, what).startswith(("Fenced Session 's' was taken over", "JournalFailed"))
        lease.check()
        assert [path.rpartition("/")[2] for path, _ in store.list()] == [own_name(1)]
        assert list(store.segments("s")) == [(1, 0, b"theirs")]
        lease.release()


def test_a_lease_that_ends_in_years_is_not_waited_for(store: SqliteStore) -> None:
    owned_by(store, 10**12, boot="before", host="far")  # by a clock that was wrong, or by somebody's hand
    impatient = SqliteStore(store.file, lease=0.05)

    with pytest.raises(SessionBusy, match="on far"):
        impatient.acquire("s")

    impatient.acquire("s", take_over=True).release()
    impatient.close()
