"""What do a hundred thousand checkpoints in SQLite cost?

Method: wall time of the store's calls. A list of the newest 50 of 100,000 checkpoints, the slowest of several
filters; pruning 90,000 of those, ten of each session kept, while another thread saves 4 kB all the time, and
the longest of its saves. Unit: ms, per second. The bars are absolute: there is no floor beside them.
A regression: a listing that reads more rows than it gives, a prune of one transaction for each
checkpoint, or of one for all.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from functools import cache
from pathlib import Path

from benchmarks.bench_sqlite import SMALL, name, parts
from benchmarks.harness import AtLeast, AtMost, Case, Run
from graflow_ckpt.stores.driver import Put, Row
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.head import Head, HeadRecord, head_key, meta_key, new_mark
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.names import Collected

NAME = "sqlite_crowd"
EACH = 100  # checkpoints of a session
KEPT = 10  # of those


@cache
def crowd(folder: Path, count: int) -> Path:
    file = folder / "crowd.db"
    store = SqliteStore(file)
    store.probe()
    fill(store, count)
    store.close()
    return file


def fill(store: KeyedStore, count: int) -> None:
    """Put that many checkpoints of 4 kB, each with its meta and row, each session with its head."""
    order = [number % (count // EACH) for number in range(count)]
    random.Random(7).shuffle(order)
    heads: dict[int, Head] = {}
    meta, body = Collected(), Collected()
    for part, write in parts(SMALL):
        write(meta if part == "meta.json" else body)
    size = len(body.data)
    puts: list[Put] = []
    for number, session in enumerate(order):
        head, scope = heads.get(session, Head(epoch=1)), f"s{session}"
        base, mark = name(scope, head.number + 1).removesuffix(".pkl"), new_mark(1)
        placed = {"pkl": (0, size)}
        its_meta = mark, len(meta.data)
        record = HeadRecord(base, mark, head.number + 1, "one", placed, size, its_meta, behind=True)
        heads[session] = head.holding(record)
        status = "paused" if number % 97 == 0 else "failed" if number % 5 == 0 else "running"
        row = Row(scope, f"w{session % 2}", status)
        puts.append(Put(meta_key(scope, mark, base), meta.data + body.data, row=row, listed=len(meta.data)))
    puts += [Put(head_key(f"s{session}"), head.encode()) for session, head in heads.items()]
    for at in range(0, len(puts), 10_000):
        assert store.driver.batch(puts[at : at + 10_000])


def lists(run: Run) -> None:
    """The slowest of the ways to ask."""
    store = SqliteStore(crowd(run.folder.parent, run.size(100_000, smoke=3_000)))
    filters: list[dict[str, str]] = [
        {},
        {"session": "s7"},
        {"workflow": "w1"},
        {"status": "paused"},
        {"status": "running"},
        {"status": "none"},
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


def old_ones(store: KeyedStore, kept: int = KEPT) -> list[str]:
    """All but the newest of each session, session by session, as retention finds them."""
    sessions: dict[str, list[str]] = {}
    for path, _ in store.list():
        sessions.setdefault(path.rpartition("/")[2].split("_step_")[0], []).append(path)
    return [path for own in sessions.values() for path in own[kept:]]


def pruned(run: Run) -> tuple[float, float]:
    """Seconds per checkpoint, and the longest of the saves that another thread makes meanwhile."""
    file = run.folder / "checkpoints.db"
    shutil.copy(crowd(run.folder.parent, run.size(100_000, smoke=3_000)), file)
    os.sync()  # else the first save waits for the copy
    store, other = SqliteStore(file), SqliteStore(file)
    gone, took = old_ones(store), list[float]()
    done = threading.Event()

    def save() -> None:
        trio, lease = parts(SMALL), other.acquire("s")
        while not done.is_set():
            began = time.perf_counter()
            other.put(f"{other.folder}/{name('s', len(took))}", trio, lease=lease, stage="one")
            took.append(time.perf_counter() - began)
            time.sleep(0.002)
        lease.release()

    saver = threading.Thread(target=save)
    saver.start()
    began = time.perf_counter()
    assert store.delete_many(gone) == len(gone)
    rate = (time.perf_counter() - began) / len(gone)
    done.set()
    saver.join()
    for each in (store, other):
        each.close()
    return rate, max(took)


longest: list[float] = []
"""Of the prunes that the first of the two cases has measured."""


def prunes(run: Run) -> None:
    rate, save = pruned(run)
    longest.append(save)
    run.report(rate)


def longest_saves(run: Run) -> None:
    run.report(longest.pop() if longest else pruned(run)[1])


CASES = [
    Case("newest 50 of 100,000, slowest filter", lists, None, AtMost(20, "ms")),
    Case("… the first 50 of a listing of all", first_of_all, None, AtMost(20, "ms")),
    Case("prune 90,000 of 100,000", prunes, None, AtLeast(10_000, "/s"), unit="/s"),
    Case("… the longest save meanwhile", longest_saves, None, AtMost(50, "ms")),
]
