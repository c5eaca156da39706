"""What does a checkpoint in Postgres cost beside the bare commit of its bytes?

Method: wall time of the store's `put` of ready parts, under a lease and to new paths, of `meta` and the
reading of all parts, of a journal's append, and of a list of the newest 50 of 100,000 with a filter. Unit:
ms. The floor: the same bytes in one row of a bare table with one key, in one prepared statement of its own
transaction, written and read back on a connection that is held. One server, started for this, that syncs
each commit.
A regression: a second round trip for a small save, a list whose time grows with what is stored.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from functools import cache, partial
from itertools import count as numbers
from itertools import islice
from pathlib import Path

import psycopg

from benchmarks.harness import AtMost, Case, Ratio, Run
from graflow_ckpt.core.protocols import PartWriter, Sink
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.lease import KeyedLease
from tests.postgres_servers import PostgresServer

NAME = "postgres"
SMALL, LARGE = 4 << 10, 1 << 20
META = 400
STORED = 100_000
SESSION = "bench"

Parts = list[tuple[str, PartWriter]]
_names = numbers(1)


@cache
def server() -> PostgresServer:
    place = Path(__file__).parent.parent / ".bench"  # on the disk that the project is on
    place.mkdir(exist_ok=True)
    found = PostgresServer(place=place).start()
    atexit.register(found.close)
    return found


@cache
def store() -> PostgresStore:
    found = PostgresStore(server().database())
    found.schema.upgrade()
    return found


@cache
def lease() -> KeyedLease:
    found = store().acquire(SESSION)
    atexit.register(found.release)
    return found


@cache
def bare() -> psycopg.Connection[tuple[bytes]]:
    found = psycopg.connect(server().url, autocommit=True)
    found.execute("create table bare (key text primary key, value bytea)")
    found.execute("alter table bare alter column value set storage external")
    atexit.register(found.close)
    return found


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


def put(ready: Parts) -> str:
    name = f"session_{SESSION}_step_1_1700000000-{next(_names)}.pkl"
    store().put(name, ready, lease=lease(), stage="s")
    return name


def writer(data: bytes) -> PartWriter:
    def write(sink: Sink) -> None:
        sink.write(data)

    return write


def save(size: int, run: Run) -> None:
    ready = parts(os.urandom(size))
    put(ready)
    with run.timed(per=calls(run, size)):
        for _ in range(calls(run, size)):
            put(ready)


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


def append(run: Run) -> None:
    segment = store().journal(lease(), next(_names))
    frame = os.urandom(SMALL)
    segment.append(frame)
    with run.timed(per=calls(run, SMALL)):
        for _ in range(calls(run, SMALL)):
            segment.append(frame)
    segment.close()


# --- the floor ---------------------------------------------------------------------------


def insert(values: bytes) -> str:
    key = f"{next(_names)}"
    bare().execute("insert into bare values (%s, %b)", [key, values], prepare=True)
    return key


def bare_save(size: int, run: Run) -> None:
    values = os.urandom(size)
    insert(values)
    with run.timed(per=calls(run, size)):
        for _ in range(calls(run, size)):
            insert(values)


def bare_load(size: int, run: Run) -> None:
    key = insert(os.urandom(size))
    with run.timed(per=calls(run, size)):
        for _ in range(calls(run, size)):
            asked = "select value from bare where key = %s"
            bare().execute(asked, [key], prepare=True, binary=True).fetchone()


# --- a list ------------------------------------------------------------------------------


@cache
def full_store(stored: int) -> PostgresStore:
    url = server().database()
    found = PostgresStore(url)
    found.schema.upgrade()
    filled = """insert into graflow_ckpt.things
        (key, tag, at, data, listed, number, session, workflow, status)
        select 'data/s' || n %% 100 || '/1-' || lpad(n::text, 30, '0') || '/m.n' || n, '\\x00', n,
            convert_to(rpad('{"n": ' || n || '}', 900), 'UTF8'), 900,
            nextval('graflow_ckpt.numbers'), 's' || n %% 100, 'w' || n %% 7,
            (array['running', 'failed'])[1 + n %% 2]
        from generate_series(1, %s) n"""
    server().ask(filled, stored, database=url.rpartition("/")[2])
    server().ask("vacuum analyze graflow_ckpt.things", database=url.rpartition("/")[2])
    return found


def newest(wanted: Callable[[PostgresStore], object], run: Run) -> None:
    place = full_store(run.size(STORED, smoke=1000))
    wanted(place)
    with run.timed(per=10):
        for _ in range(10):
            wanted(place)


def all_kinds(place: PostgresStore) -> object:
    return list(islice(place.list(), 50))


def of_session(place: PostgresStore) -> object:
    return list(islice(place.list("s7"), 50))


def of_workflow_and_status(place: PostgresStore) -> object:
    return place.newest(50, workflow="w3", status="failed")


CASES = [
    Case("put of 4 kB", partial(save, SMALL), partial(bare_save, SMALL), Ratio(1.5), repetitions=21),
    Case("put of 1 MB", partial(save, LARGE), partial(bare_save, LARGE), Ratio(2.0), repetitions=15),
    Case("load of 1 MB", partial(load, LARGE), partial(bare_load, LARGE), Ratio(2.0)),
    Case("append of 4 kB to a journal", append, partial(bare_save, SMALL), None, disk=True),
    Case("newest 50 of 100,000", partial(newest, all_kinds), None, AtMost(20, "ms")),
    Case("… of one session", partial(newest, of_session), None, AtMost(20, "ms")),
    Case("… of one workflow that failed", partial(newest, of_workflow_and_status), None, AtMost(20, "ms")),
]
