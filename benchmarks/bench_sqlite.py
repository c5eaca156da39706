"""What do checkpoints in SQLite cost, beside SQLite alone, and what do a hundred thousand of them cost?

Method: wall time of the store's calls. A durable save of 4 kB in all three parts, one append to a journal,
and 1 MB saved and loaded; a list of the newest 50 of 100,000 checkpoints, the slowest of several filters;
pruning 90,000 of those, ten of each session kept, and the longest save that another thread makes meanwhile.
Unit: µs, ms, per second. The floor: the same bytes as one blob in one row, committed in WAL mode with
synchronous=FULL over a connection that is open already; of the longest save, the longest one with nothing
beside it.
A regression: a second commit for a save, a listing that reads more rows than it gives, a prune of one
transaction for each checkpoint, or of one for all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

from benchmarks.harness import AtLeast, AtMost, Case, Ratio, Run
from graflow_ckpt.core.protocols import Lease, PartWriter, Sink
from graflow_ckpt.stores.sqlite import SqliteStore

NAME = "sqlite"
SMALL = {"pkl": 2200, "state.json": 1000, "meta.json": 896}
LARGE = {"pkl": 1_000_000 - 1896, "state.json": 1000, "meta.json": 896}
FRAME = 400
EACH = 100  # checkpoints of a session
KEPT = 10  # of those

Parts = list[tuple[str, PartWriter]]


def writer(data: bytes) -> PartWriter:
    def write(sink: Sink) -> None:
        sink.write(data)

    return write


def parts(sizes: dict[str, int]) -> Parts:
    meta = {"session_id": "s", "workflow": "train", "status": "running", "epoch": 1, "stage": "one"}
    meta["more"] = "x" * (sizes["meta.json"] - len(json.dumps(meta | {"more": ""})))
    contents = {part: os.urandom(size) for part, size in sizes.items()}
    contents["meta.json"] = json.dumps(meta).encode()
    assert {part: len(content) for part, content in contents.items()} == sizes
    return [(part, writer(content)) for part, content in contents.items()]


def opened(run: Run) -> tuple[SqliteStore, Lease]:
    store = SqliteStore(run.folder / "checkpoints.db")
    return store, store.acquire("s")


def name(session: str, number: int) -> str:
    return f"session_{session}_step_{number}_1700000000-{number}.pkl"


# --- one save, one record ----------------------------------------------------------------


def saves(run: Run, sizes: dict[str, int], count: int) -> None:
    store, lease = opened(run)
    trio = parts(sizes)
    paths = [f"{store.folder}/{name('s', number)}" for number in range(count + 5)]
    for path in paths[count:]:
        store.put(path, trio, lease=lease, stage="one")
    with run.timed(per=count):
        for path in paths[:count]:
            store.put(path, trio, lease=lease, stage="one")
    lease.release()
    store.close()


def commits(run: Run, size: int, count: int) -> None:
    data = os.urandom(size)
    with closing(bare(run)) as connection:

        def commit() -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO bare (bytes) VALUES (?)", (data,))
            connection.execute("COMMIT")

        for _ in range(5):
            commit()
        with run.timed(per=count):
            for _ in range(count):
                commit()


def bare(run: Run) -> sqlite3.Connection:
    connection = sqlite3.connect(run.folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, bytes BLOB)")
    return connection


def small_saves(run: Run) -> None:
    saves(run, SMALL, run.size(500, smoke=20))


def small_commits(run: Run) -> None:
    commits(run, sum(SMALL.values()), run.size(500, smoke=20))


def large_saves(run: Run) -> None:
    saves(run, LARGE, run.size(40, smoke=3))


def large_commits(run: Run) -> None:
    commits(run, sum(LARGE.values()), run.size(40, smoke=3))


def appends(run: Run) -> None:
    store, lease = opened(run)
    count, frame = run.size(1000, smoke=20), os.urandom(FRAME)
    segment = store.journal(lease, 0)
    segment.append(frame)
    with run.timed(per=count):
        for _ in range(count):
            segment.append(frame)
    lease.release()
    store.close()


def bare_appends(run: Run) -> None:
    commits(run, FRAME, run.size(1000, smoke=20))


def loads(run: Run) -> None:
    store, lease = opened(run)
    path, count = f"{store.folder}/{name('s', 1)}", run.size(100, smoke=5)
    store.put(path, parts(LARGE), lease=lease, stage="one")
    with run.timed(per=count):
        for _ in range(count):
            store.meta(path)
            for part in ("state.json", "pkl"):
                source = store.open(path, part, "one")
                buffer, at = memoryview(bytearray(source.size)), 0
                while got := source.readinto(buffer[at:]):
                    at += got
                source.close()
    lease.release()
    store.close()


def bare_loads(run: Run) -> None:
    count = run.size(100, smoke=5)
    with closing(bare(run)) as connection:
        connection.execute("INSERT INTO bare (bytes) VALUES (?)", (os.urandom(sum(LARGE.values())),))
        with run.timed(per=count):
            for _ in range(count):
                found = connection.execute("SELECT bytes FROM bare WHERE id = 1").fetchone()[0]
                buffer = bytearray(len(found))
                buffer[:] = found


# --- a hundred thousand ------------------------------------------------------------------


@cache
def crowd(folder: Path, count: int) -> Path:
    """A database of that many checkpoints of 4 kB: one that was put, and its likes."""
    file = folder / "crowd.db"
    store = SqliteStore(file)
    store.put("first", parts(SMALL), lease=None, stage="one")
    store.close()
    order = [number % (count // EACH) for number in range(count)]
    random.Random(7).shuffle(order)
    seen = dict.fromkeys(order, 0)
    with closing(sqlite3.connect(file)) as connection, connection:
        columns = "epoch, stage, size, parts, meta"
        copy = f"INSERT INTO checkpoints (name, session, workflow, status, {columns}) "
        copy += f"SELECT ?, ?, ?, ?, {columns} FROM checkpoints WHERE name = 'first'"
        for number, session in enumerate(order):
            seen[session] += 1
            own = name(f"s{session}", seen[session]).removesuffix(".pkl")
            status = "paused" if number % 97 == 0 else "failed" if number % 5 == 0 else "running"
            connection.execute(copy, (own, f"s{session}", f"w{session % 2}", status))
        body = "SELECT bytes FROM chunks LIMIT 1"
        connection.execute(f"INSERT INTO chunks SELECT id << 20, ({body}) FROM checkpoints WHERE id > 1")
    return file


def crowded(run: Run) -> SqliteStore:
    file = crowd(run.folder.parent, run.size(100_000, smoke=3_000))
    shutil.copy(file, run.folder / "checkpoints.db")
    return SqliteStore(run.folder / "checkpoints.db")


def lists(run: Run) -> None:
    """The slowest of the ways to ask."""
    store = SqliteStore(crowd(run.folder.parent, run.size(100_000, smoke=3_000)))
    filters: list[dict[str, str]] = [
        {},
        {"session": "s7"},
        {"workflow": "w1"},
        {"status": "paused"},
        {"status": "running"},
        {"workflow": "w0", "status": "paused"},
        {"workflow": "none"},
        {"session": "s8", "workflow": "w0", "status": "failed"},
    ]
    took = []
    for asked in filters:
        began = time.perf_counter()
        found = store.newest(50, **asked)
        took.append(time.perf_counter() - began)
        assert len(found) <= 50
    store.close()
    run.report(max(took))


def first_of_all(run: Run) -> None:
    """The same by what every store has."""
    store = SqliteStore(crowd(run.folder.parent, run.size(100_000, smoke=3_000)))
    began = time.perf_counter()
    listing = store.list()
    found = [next(listing) for _ in range(50)]
    run.report(time.perf_counter() - began)
    assert len(found) == 50
    store.close()


def old_ones(store: SqliteStore) -> list[str]:
    """All but the newest of each session, session by session, as retention finds them."""
    sessions: dict[str, list[str]] = {}
    for path, _ in store.list():
        sessions.setdefault(path.rpartition("/")[2].split("_step_")[0], []).append(path)
    return [path for own in sessions.values() for path in own[KEPT:]]


def prunes(run: Run) -> None:
    store = crowded(run)
    gone = old_ones(store)
    with run.timed(per=len(gone)):
        assert store.delete_many(gone) == len(gone)
    store.close()


def longest_save_beside_a_prune(run: Run) -> None:
    store = crowded(run)
    gone = old_ones(store)
    longest_save(run, store, lambda: store.delete_many(gone))


def longest_save_alone(run: Run) -> None:
    store = crowded(run)
    longest_save(run, store, lambda: time.sleep(run.size(4, smoke=1)))


def longest_save(run: Run, store: SqliteStore, beside: Callable[[], object]) -> None:
    trio, took = parts(SMALL), list[float]()
    lease = store.acquire("s")
    other = threading.Thread(target=beside)
    other.start()
    number = 0
    while other.is_alive():
        number += 1
        began = time.perf_counter()
        store.put(f"{store.folder}/{name('s', number)}", trio, lease=lease, stage="one")
        took.append(time.perf_counter() - began)
        time.sleep(0.002)
    other.join()
    lease.release()
    store.close()
    run.report(max(took))


CASES = [
    Case("durable save of 4 kB", small_saves, small_commits, Ratio(1.6), unit="µs", repetitions=11),
    Case("journal append", appends, bare_appends, Ratio(1.6), unit="µs", repetitions=11),
    Case("save of 1 MB", large_saves, large_commits, Ratio(2.0)),
    Case("load of 1 MB", loads, bare_loads, Ratio(2.0)),
    Case("newest 50 of 100,000, slowest filter", lists, None, AtMost(20, "ms")),
    Case("… the first 50 of a listing of all", first_of_all, None, AtMost(20, "ms")),
    Case("prune 90,000 of 100,000", prunes, None, AtLeast(20_000, "/s"), unit="/s"),
    Case("longest save beside that", longest_save_beside_a_prune, longest_save_alone, AtMost(50, "ms")),
]
