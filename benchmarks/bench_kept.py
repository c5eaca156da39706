"""What does a save cost where ten checkpoints of a session are kept, and how fast do old ones go?

Method: wall time of the store's `put` of ready parts under a lease and to a new path, which lets the eleventh
newest go in the same commit (of large ones the third newest); and of `delete_many`, of 80 in each 100
checkpoints of 4 kB of each session.
Unit: ms, per second. The floor of a save: the same bytes in one bare commit of the same server, as in the
benchmark of that store, and nothing deleted. Servers are started for this, and sync each commit.
A regression: a second round trip or a second commit for what goes, a delete that asks once for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers

from benchmarks import bench_postgres, bench_redis, bench_sqlite
from benchmarks.bench_sqlite import SMALL, name, parts
from benchmarks.bench_sqlite_crowd import KEPT, fill, old_ones
from benchmarks.harness import AtLeast, Case, Ratio, Run
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.keyed import KeyedStore

NAME = "kept"
SIZES = {"4 kB": SMALL, "1 MB": bench_sqlite.LARGE, "256 MB": {**SMALL, "pkl": 256_000_000}}
_names = numbers(1)

Opened = tuple[KeyedStore, Lease]


@dataclass(frozen=True)
class Kind:
    """A store: how it is opened for a run, the bare commits of `count` times `size` bytes, and its bars."""

    name: str
    opened: Callable[[Run], Opened]
    commits: Callable[[Run, int, int], None]
    fresh: Callable[[Run], KeyedStore]
    most: float
    deletes: int


def calls(run: Run, size: str) -> int:
    return run.size({"4 kB": 150, "1 MB": 20, "256 MB": 2}[size], smoke=2)


def sizes(run: Run, size: str) -> dict[str, int]:
    return SIZES["1 MB" if run.smoke and size == "256 MB" else size]


def saves(kind: Kind, size: str, run: Run) -> None:
    store, lease = kind.opened(run)
    ready, kept = parts(sizes(run, size)), list[str]()
    most = run.size(KEPT if size == "4 kB" else 2, smoke=2)

    def save() -> None:
        path = name("s", next(_names))
        going = kept[: max(0, len(kept) + 1 - most)]
        store.put(path, ready, lease=lease, stage="one", drops=lambda: going)
        kept[:] = [*kept[len(going) :], path]

    for _ in range(most):
        save()
    with run.timed(per=calls(run, size)):
        for _ in range(calls(run, size)):
            save()
    assert store.delete_many(kept) == len(kept) <= KEPT
    lease.release()


def floor(kind: Kind, size: str, run: Run) -> None:
    kind.commits(run, sum(sizes(run, size).values()), calls(run, size))


def deletes(kind: Kind, run: Run) -> None:
    store = kind.fresh(run)
    fill(store, run.size(10_000, smoke=300))
    gone = old_ones(store, kept=20)
    with run.timed(per=len(gone)):
        assert store.delete_many(gone) == len(gone)
    assert store.delete_many([path for path, _ in store.list()]) == len(gone) // 4


# --- the stores --------------------------------------------------------------------------


def sqlite(run: Run) -> SqliteStore:
    return SqliteStore(run.folder / "checkpoints.db")


def in_sqlite(run: Run) -> Opened:
    store = sqlite(run)
    return store, store.acquire("s")


def in_postgres(run: Run) -> Opened:
    return bench_postgres.store(), bench_postgres.store().acquire("s")


def in_redis(run: Run) -> Opened:
    return bench_redis.store(), bench_redis.store().acquire("s")


def postgres_commits(run: Run, size: int, count: int) -> None:
    values = os.urandom(size)
    bench_postgres.insert(values)
    with run.timed(per=count):
        for _ in range(count):
            bench_postgres.insert(values)
    bench_postgres.bare().execute("truncate bare")


def redis_commits(run: Run, size: int, count: int) -> None:
    values, client = os.urandom(size), bench_redis.bare()
    client.set("bare:0", values)
    with run.timed(per=count):
        for number in range(count):
            client.set(f"bare:{number}", values)
    client.unlink(*(f"bare:{number}" for number in range(count + 1)))


def postgres(run: Run) -> PostgresStore:
    found = PostgresStore(bench_postgres.server().database())
    found.schema.upgrade()
    return found


def redis(run: Run) -> RedisStore:
    bench_redis.bare().flushdb()
    return bench_redis.store()


KINDS = [
    Kind("SQLite", in_sqlite, bench_sqlite.commits, sqlite, 1.7, 10_000),
    Kind("Postgres", in_postgres, postgres_commits, postgres, 1.7, 10_000),
    Kind("Redis", in_redis, redis_commits, redis, 1.9, 8_000),
]


def of(side: Callable[..., None], *given: object) -> Callable[[Run], None]:
    found = partial(side, *given)
    found.__name__ = side.__name__  # type: ignore[attr-defined]  # what the frame names in an error
    return found


CASES = [
    Case(
        f"{kind.name}: save of {size}, the eleventh goes",
        of(saves, kind, size),
        of(floor, kind, size),
        Ratio(kind.most) if size == "4 kB" else None,
        repetitions=21 if size == "4 kB" else 7,
        disk=size != "4 kB",
    )
    for kind in KINDS
    for size in SIZES
] + [
    Case(f"{kind.name}: deleted", of(deletes, kind), None, AtLeast(kind.deletes, "/s"), unit="/s")
    for kind in KINDS
]
