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
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import BadSessionId, CheckpointError, Fenced, SessionBusy
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_chunks import HELD
from graflow_ckpt.stores.sqlite_schema import CHUNK
from tests.unit.stores.redis_trios import own_name, parts, put

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
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


@contextmanager
def owner_elsewhere(file: str, lease: float) -> Iterator[subprocess.Popen[str]]:
    """A process that acquires the session, says so, and then does for each line what it says."""
    program = f"""
import sys
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_chunks import HELD
from graflow_ckpt.stores.sqlite_schema import CHUNK
from tests.unit.stores.redis_trios import put
store = SqliteStore({file!r}, lease={lease})
lease = store.acquire("s")
segment = store.journal(lease, 0)
print(lease.epoch, flush=True)
for line in sys.stdin:
    try:
        if line.strip() == "append":
            print(segment.append(b"theirs"), flush=True)
        else:
            print(put(store, line.strip(), "theirs", lease), flush=True)
    except GraflowError as error:
        print(type(error).__name__, error, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline()


# --- one owner -------------------------------------------------------------------------


def test_a_first_owner_has_epoch_one_and_took_it_from_nobody(store: SqliteStore) -> None:
    lease = store.acquire("s")

    assert (lease.session, lease.epoch, lease.taken_from) == ("s", 1, None)
    found = store.owner("s")
    assert found is not None
    assert found.pid == os.getpid()
    lease.release()
    assert store.owner("s") is None


def test_the_epoch_grows_and_a_clean_release_leaves_nobody_to_take_from(store: SqliteStore) -> None:
    for epoch in (1, 2, 3):
        lease = store.acquire("s")
        assert (lease.epoch, lease.taken_from) == (epoch, None)
        lease.release()


def test_this_process_cannot_open_a_session_twice(store: SqliteStore) -> None:
    lease = store.acquire("s")

    with pytest.raises(SessionBusy, match="this process itself") as busy:
        SqliteStore(store.url).acquire("s")

    assert busy.value.owner.pid == os.getpid()
    lease.release()


def test_sessions_do_not_know_each_other(store: SqliteStore) -> None:
    leases = [store.acquire(session) for session in ("s", "s-1", "s_1", "1")]

    assert [lease.epoch for lease in leases] == [1, 1, 1, 1]
    for lease in leases:
        lease.release()


def test_of_many_who_acquire_at_once_one_gets_it(store: SqliteStore) -> None:
    got, start = [], threading.Barrier(8)

    def work() -> None:
        own = SqliteStore(store.url)
        start.wait()
        try:
            got.append(own.acquire("s"))
        except SessionBusy:
            got.append(None)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    owners = [lease for lease in got if lease is not None]
    assert (len(got), len(owners)) == (8, 1)
    owners[0].release()


@pytest.mark.parametrize("session", ["", "a/b", "a.b", "..", "x" * 65, "a b", "@"])
def test_a_bad_id_is_refused_everywhere(session: str, store: SqliteStore) -> None:
    drop = lambda s: store.drop_segments(s, 1)  # noqa: E731  one of five calls
    for call in (store.acquire, store.owner, lambda s: list(store.segments(s)), drop):
        with pytest.raises(BadSessionId):
            call(session)


def test_a_program_that_runs_once_per_rank_is_told_so(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    lease = store.acquire("train")

    with pytest.raises(SessionBusy, match='"train-rank3"'):
        store.acquire("train")

    lease.release()


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


def test_a_lost_lease_does_not_take_the_epoch_back(store: SqliteStore) -> None:
    put(store, own_name(), "one", epoch=7)

    lease = store.acquire("s")

    assert lease.epoch == 8
    lease.release()


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
    with owner_elsewhere(store.file, lease=600) as process:
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
    with owner_elsewhere(store.file, lease=0.5) as process:
        assert told(process, own_name(1)).strip().endswith(own_name(1))
        assert told(process, "append") == "None\n"
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
