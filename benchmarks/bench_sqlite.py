"""What do checkpoints in SQLite cost, beside SQLite alone?

Method: wall time of the store's calls. A durable save of 4 kB in all three parts, one append to a journal,
and 1 MB saved and loaded. Unit: µs and ms. The floor: the same bytes as one blob in one row, committed in
WAL mode with synchronous=FULL over a connection that is open already.
A regression: a second commit for a save, a copy of what is saved or loaded.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

from benchmarks.harness import Case, Ratio, Run
from graflow_ckpt.core.protocols import Lease, PartWriter, Sink
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore

NAME = "sqlite"
SMALL = {"pkl": 2200, "state.json": 1000, "meta.json": 896}
LARGE = {"pkl": 1_000_000 - 1896, "state.json": 1000, "meta.json": 896}
FRAME = 400

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
    saves(run, SMALL, run.size(150, smoke=20))


def small_commits(run: Run) -> None:
    commits(run, sum(SMALL.values()), run.size(150, smoke=20))


def large_saves(run: Run) -> None:
    saves(run, LARGE, run.size(40, smoke=3))


def large_commits(run: Run) -> None:
    commits(run, sum(LARGE.values()), run.size(40, smoke=3))


def appends(run: Run) -> None:
    store, lease = opened(run)
    count, frame = run.size(300, smoke=20), os.urandom(FRAME)
    segment = store.journal(lease, 0)
    segment.append(frame)
    with run.timed(per=count):
        for _ in range(count):
            segment.append(frame)
    lease.release()
    store.close()


def bare_appends(run: Run) -> None:
    commits(run, FRAME, run.size(300, smoke=20))


def loads(run: Run) -> None:
    store, lease = opened(run)
    path, count = f"{store.folder}/{name('s', 1)}", run.size(100, smoke=5)
    store.put(path, parts(LARGE), lease=lease, stage="one")
    buffer = memoryview(bytearray(LARGE["pkl"]))
    with run.timed(per=count):
        for _ in range(count):
            store.meta(path)
            for part in ("state.json", "pkl"):
                source, at = store.open(path, part, "one"), 0
                while got := source.readinto(buffer[at:]):
                    at += got
                source.close()
    lease.release()
    store.close()


def bare_loads(run: Run) -> None:
    count = run.size(100, smoke=5)
    with closing(bare(run)) as connection:
        connection.execute("INSERT INTO bare (bytes) VALUES (?)", (os.urandom(sum(LARGE.values())),))
        buffer = bytearray(sum(LARGE.values()))
        with run.timed(per=count):
            for _ in range(count):
                found = connection.execute("SELECT bytes FROM bare WHERE id = 1").fetchone()[0]
                buffer[:] = found


CASES = [
    Case("durable save of 4 kB", small_saves, small_commits, Ratio(1.6), unit="µs", repetitions=31),
    Case("journal append", appends, bare_appends, Ratio(1.6), unit="µs", repetitions=31),
    Case("save of 1 MB", large_saves, large_commits, Ratio(2.0)),
    Case("load of 1 MB", loads, bare_loads, Ratio(2.0), repetitions=15),
]
