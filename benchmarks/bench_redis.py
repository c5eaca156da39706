"""What does a checkpoint in Redis cost beside one command that commits the same bytes?

Method: wall time of the store's `put` of ready parts, under a lease and to new paths, and of `meta` and the
reading of all parts. Unit: ms. The floor: the same bytes in one string, by one SET, and one GET, of the
client library that the store uses. One server, started for this, that syncs its file for each write
(`appendfsync always`); a read syncs nothing.
A regression: a second round trip for a save, a second sync, or one more copy of a large part.
"""

from __future__ import annotations

import atexit
import json
import os
from functools import cache, partial
from itertools import count as numbers
from typing import Any

from benchmarks.harness import Case, Ratio, Run
from graflow_ckpt.core.protocols import PartWriter, Sink
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.lease import KeyedLease
from tests.servers import Server

NAME = "redis"
SMALL, LARGE = 4 << 10, 1 << 20
META = 400
SESSION = "bench"

Parts = list[tuple[str, PartWriter]]
_names = numbers(1)


@cache
def server() -> Server:
    found = Server({"appendonly": "yes", "appendfsync": "always"})
    found.start()
    atexit.register(found.stop)
    return found


@cache
def store() -> RedisStore:
    return RedisStore(server().url)


@cache
def lease() -> KeyedLease:
    found = store().acquire(SESSION)
    atexit.register(found.release)
    return found


@cache
def bare() -> Any:  # a redis.Redis, whose types know replies that never come here
    link = open_link(server().url)
    atexit.register(link.close)
    return link.client


def calls(run: Run, size: int) -> int:
    return run.size(100 if size == SMALL else 10, smoke=5)


# --- the store ---------------------------------------------------------------------------


def parts(values: bytes) -> Parts:
    """Ready ones, that have the bytes of `values` in all, less a meta for a meta."""
    fields = {"session_id": SESSION, "workflow": "train", "status": "running", "stage": "s"}
    cut = len(values) - 2 * META
    whole = {"pkl": values[:cut], "state.json": values[cut:-META]}
    whole["meta.json"] = json.dumps(fields).encode().ljust(META)
    return [(part, writer(data)) for part, data in whole.items()]


def writer(data: bytes) -> PartWriter:
    def write(sink: Sink) -> None:
        sink.write(data)

    return write


def put(ready: Parts) -> str:
    name = f"session_{SESSION}_step_1_1700000000-{next(_names)}.pkl"
    store().put(name, ready, lease=lease(), stage="s")
    return name


def save(size: int, run: Run) -> None:
    ready = parts(os.urandom(size))
    done = [put(ready)]
    with run.timed(per=calls(run, size)):
        done += [put(ready) for _ in range(calls(run, size))]
    for name in done:
        store().delete(name)


def load(size: int, run: Run) -> None:
    name = put(parts(os.urandom(size)))
    buffer = memoryview(bytearray(size))
    with run.timed(per=calls(run, size)):
        for _ in range(calls(run, size)):
            store().meta(name)
            for part in ("pkl", "state.json"):
                source = store().open(name, part, "s")
                while source.readinto(buffer):
                    pass
                source.close()
    store().delete(name)


# --- the floor ---------------------------------------------------------------------------


def bare_save(size: int, run: Run) -> None:
    values = os.urandom(size)
    keys = [f"bare:{next(_names)}" for _ in range(calls(run, size) + 1)]
    bare().set(keys[0], values)
    with run.timed(per=calls(run, size)):
        for key in keys[1:]:
            bare().set(key, values)
    bare().unlink(*keys)


def bare_load(size: int, run: Run) -> None:
    bare().set("bare", os.urandom(size))
    with run.timed(per=calls(run, size)):
        for _ in range(calls(run, size)):
            bare().get("bare")


CASES = [
    Case("put of 4 kB", partial(save, SMALL), partial(bare_save, SMALL), Ratio(2.0), repetitions=21),
    Case("put of 1 MB", partial(save, LARGE), partial(bare_save, LARGE), Ratio(2.0), repetitions=15),
    Case("load of 1 MB", partial(load, LARGE), partial(bare_load, LARGE), Ratio(2.0), repetitions=15),
]
