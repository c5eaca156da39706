"""What does a checkpoint cost if little has changed since the last one, and if there are many before it?

Method: a session holds 256 MB in 64 numpy arrays, in a dict. It is saved, one array is changed, and it is
saved again: wall time of the second `checkpoint()`, and the bytes by which the store has grown, in SQLite,
in a bucket (the S3 server of the tests), and in Redis (what its keys take
in memory; that server has no disk); the time in Postgres, too. And a save of 4 kB, in memory, into a session
that has 1,000 checkpoints and keeps all of them; and, of 12 kB and synced, into a folder with 100 or 1,000.
Unit: ms, MB, µs. The floor of the second save is the first one in the same store, and, to look at, the
digests alone; that of the save of 4 kB is one into a session that has few, in a folder after the first.
A regression: unchanged arrays that are written or copied, a look-up for each array, a second digest; anything
that a save does for each checkpoint that there is.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from typing import Any

import numpy
from blake3 import blake3

from benchmarks.bench_sqlite import SMALL, name, parts
from benchmarks.harness import Case, Ratio, Run
from benchmarks.programs import place
from benchmarks.run import SCRATCH
from graflow_ckpt import task, workflow
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.files.disk import Disk
from graflow_ckpt.stores.files.store import LocalStore
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.postgres_servers import PostgresServer
from tests.servers import Server

NAME = "growth"
ARRAYS = 64
CHUNK = 4 << 20
PREFIX = "growth"


@cache
def arrays(nbytes: int) -> dict[str, Any]:  # what numpy makes
    made = numpy.random.default_rng(1)
    return {f"array{n}": made.integers(0, 1 << 62, nbytes // ARRAYS // 8) for n in range(ARRAYS)}


def state(run: Run) -> dict[str, Any]:
    return arrays(run.size(256 << 20, smoke=16 << 20))


def sqlite(run: Run) -> str:
    return f"sqlite:///{run.folder}/checkpoints.db"


@cache
def server() -> PostgresServer:
    SCRATCH.mkdir(exist_ok=True)  # on the disk that the project is on
    found = PostgresServer(place=SCRATCH).start()
    atexit.register(found.close)
    return found


def postgres(run: Run) -> str:
    os.environ["GRAFLOW_CKPT_KEY"] = f"bench:{'31' * 32}"
    url = server().database()
    store = PostgresStore(url)
    store.schema.upgrade()
    store.close()
    return url


@cache
def redis_server() -> Server:
    found = Server().start()
    atexit.register(found.stop)
    return found


def redis(run: Run) -> str:
    os.environ["GRAFLOW_CKPT_KEY"] = f"bench:{'31' * 32}"
    redis_server().ask("FLUSHALL")
    return redis_server().url


@cache
def object_server() -> ObjectServer:
    os.environ.update(CREDENTIALS)
    found = ObjectServer()
    found.start()
    atexit.register(found.close)
    return found


def bucket(run: Run) -> str:
    """Emptied for each call: that server keeps everything in memory."""
    os.environ["GRAFLOW_CKPT_KEY"] = f"bench:{'31' * 32}"
    url = object_server().at(PREFIX)
    objects = ObjectStore(url).bucket
    objects.delete([entry.key for entry in objects.list("")])
    return url


def in_bucket(run: Run) -> float:
    objects = ObjectStore(object_server().at(PREFIX)).bucket
    return float(sum(entry.size for entry in objects.list("")))


Where = Callable[[Run], str]
Taken = Callable[[Run], float]


def prepared(run: Run, store: str) -> ExecutionContext:
    place(run)
    with workflow("growth", "growth", durability="checkpoint", store=store) as flow:
        flow.get_channel().set("small", {1})
        flow.execution_context.checkpoint()  # opens the store, and loads what is loaded late
        flow.get_channel().set("state", state(run))
    return flow.execution_context


def change(run: Run) -> None:
    state(run)["array7"][0] += 1


# --- time --------------------------------------------------------------------------------


def first(where: Where, run: Run) -> None:
    context = prepared(run, where(run))
    change(run)
    with run.timed():
        context.checkpoint()


def second(where: Where, run: Run) -> None:
    context = prepared(run, where(run))
    context.checkpoint()
    os.sync()
    change(run)
    with run.timed():
        context.checkpoint()


def digests(run: Run) -> None:
    views = [array.data.cast("B") for array in state(run).values()]
    with run.timed():
        for view in views:
            for start in range(0, len(view), CHUNK):
                blake3(view[start : start + CHUNK]).hexdigest()


# --- bytes -------------------------------------------------------------------------------


def grown_first(where: Where, taken: Taken, run: Run) -> None:
    context = prepared(run, where(run))
    before = taken(run)
    context.checkpoint()
    run.report(taken(run) - before)


def grown_second(where: Where, taken: Taken, run: Run) -> None:
    context = prepared(run, where(run))
    context.checkpoint()
    before = taken(run)
    change(run)
    context.checkpoint()
    run.report(taken(run) - before)


def in_redis(run: Run) -> float:
    """What all keys of the server take."""
    client = redis_server().client()
    return float(sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter()))


def on_disk(run: Run) -> float:
    """What all files of this call take, each once."""
    for database in run.folder.glob("*.db"):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    files = [os.stat(path) for path in run.folder.rglob("*") if path.is_file()]
    return float(sum({file.st_ino: file.st_blocks * 512 for file in files}.values()))


# --- many --------------------------------------------------------------------------------


def saves(before: int, run: Run) -> None:
    store, trio = MemoryStore(f"memory://{run.folder.name}"), parts(SMALL)
    lease = store.acquire("s")
    paths = [f"{store.folder}/{name('s', number)}" for number in range(before + 100)]
    for path in paths[:before]:
        store.put(path, trio, lease=lease, stage="one")
    with run.timed(per=100):  # one of them turns a page
        for path in paths[before:]:
            store.put(path, trio, lease=lease, stage="one")
    lease.release()
    store.forget()


class LateDisk(Disk):
    """A disk that syncs nothing before it is asked to: what is only prepared there may be lost."""

    __slots__ = ("syncs",)

    def __init__(self) -> None:
        self.syncs = False

    def sync(self, fd: int) -> None:
        if self.syncs:
            super().sync(fd)

    def sync_folder(self, path: str) -> bool:
        return super().sync_folder(path) if self.syncs else True


def in_folder(there: int, run: Run) -> None:
    """Saves by a session that has so many checkpoints in its folder, and keeps them all."""
    place(run)
    disk, count = LateDisk(), run.size(100, smoke=3)

    with workflow(
        "folder", "folder", durability="checkpoint", store=LocalStore(run.folder / "c", disk=disk)
    ) as flow:

        @task(inject_context=True)
        def save(context) -> None:  # type: ignore[no-untyped-def]
            checkpoint = context.execution_context.checkpoint
            for _ in range(min(there, run.size(there, smoke=10))):
                checkpoint()
            os.sync()
            disk.syncs = True
            with run.timed(per=count):
                for _ in range(count):
                    checkpoint()

        flow.get_channel().set("value", bytes(12_000))
        flow.add(save)
        flow.execute()


def cases(name: str, where: Where, taken: Taken = on_disk) -> list[Case]:
    one, two = partial(first, where), partial(second, where)
    return [
        Case(f"{name}: 256 MB again, 1 of 64 arrays changed", two, one, Ratio(1 / 3), disk=True),
        Case("… beside the digests alone", two, digests, None, disk=True),
        Case(
            "… bytes",
            partial(grown_second, where, taken),
            partial(grown_first, where, taken),
            Ratio(1 / 20),
            unit="MB",
        ),
    ]


CASES = [
    Case(
        "a save after 1,000 others, beside one after 20",
        partial(saves, 1020),
        partial(saves, 20),
        Ratio(1.25),
        unit="µs",
        repetitions=15,
    ),
    *(
        Case(
            f"folder: a save after {there:,} others, beside one after the first",
            partial(in_folder, there),
            partial(in_folder, 1),
            Ratio(1.25),
            repetitions=11,
            disk=True,
        )
        for there in (100, 1000)
    ),
    *cases("SQLite", sqlite),
    *cases("Redis", redis, in_redis),
    *cases("bucket", bucket, in_bucket),
    Case(
        "Postgres: 256 MB again, 1 of 64 arrays changed",
        partial(second, postgres),
        partial(first, postgres),
        Ratio(1 / 3),
        disk=True,
    ),
]
