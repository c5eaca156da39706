"""Fills each store up to the number of checkpoints that docs/stores.md calls it good for, and asks it things.

    python -m benchmarks.capacity [STORE=NUMBER…] [--json]

Method: wall time of single calls of a store that has so many checkpoints of 4 kB, a hundred of each session:
the newest 50 of all, of one session, and of one workflow that failed; the load of one; a save by a new owner,
the median of 50; deleting 1,000. No bar: a run takes minutes, and benchmarks/run.py has the same questions at
100,000. A server is started for this, on the disk that the project is on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.bench_sqlite import SMALL, name, parts
from benchmarks.bench_sqlite_crowd import EACH, fill
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.keyed import KeyedStore
from tests.postgres_servers import PostgresServer

NUMBERS = {"folder": 10_000, "memory": 10_000, "sqlite": 1_000_000, "postgres": 2_000_000}
PLACE = Path(__file__).parent.parent / ".bench"

AnyStore = LocalStore | KeyedStore
Figures = dict[str, float]


@contextmanager
def opened(kind: str) -> Iterator[AnyStore]:
    """Open an empty store of that kind, with nothing but what is needed for it."""
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        server = PostgresServer(place=PLACE).start() if kind == "postgres" else None
        addresses = {"folder": folder, "memory": "memory://capacity", "sqlite": f"sqlite:///{folder}/all.db"}
        store = open_store(addresses.get(kind) or (server.database() if server else ""))
        assert isinstance(store, AnyStore)
        if isinstance(store, PostgresStore):
            store.schema.upgrade()
        try:
            yield store
        finally:
            if isinstance(store, SqliteStore | PostgresStore):
                store.close()
            if server is not None:
                server.close()


def filled(store: AnyStore, count: int) -> None:
    if isinstance(store, KeyedStore):
        fill(store, count)
        return
    for number in range(count):
        session = f"s{number % (count // EACH)}"
        store.put(f"{store.folder}/{name(session, number)}", parts(SMALL), lease=None, stage="one")


def measured(store: AnyStore, count: int) -> Figures:
    def newest(**wanted: str) -> Callable[[], object]:
        return lambda: store.newest(50, **wanted)

    figures = {"filled, s": took(lambda: filled(store, count))}
    figures["newest 50, ms"] = 1000 * took(newest())
    figures["of one session, ms"] = 1000 * took(newest(session="s7"))
    figures["of one workflow that failed, ms"] = 1000 * took(newest(workflow="w1", status="failed"))
    path, _ = store.newest(1, session="s7")[0]
    figures["load, ms"] = 1000 * took(lambda: loaded(store, path))
    figures["save, ms"] = 1000 * statistics.median(saves(store))
    gone = [path for path, _ in islice(store.list(), 1_000)]
    figures["1,000 deleted, ms"] = 1000 * took(lambda: store.delete_many(gone))
    return figures


def took(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def loaded(store: AnyStore, path: str) -> None:
    store.meta(path)
    source = store.open(path, "pkl", "one")
    assert source.readinto(memoryview(bytearray(SMALL["pkl"])))
    source.close()


def saves(store: AnyStore) -> list[float]:
    lease = store.acquire("fresh")
    ready = [(f"{store.folder}/{name('fresh', number)}", parts(SMALL)) for number in range(50)]
    found = [took(partial(store.put, path, trio, lease=lease, stage="one")) for path, trio in ready]
    lease.release()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capacity", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "stores", nargs="*", metavar="STORE=NUMBER", help=f"all of {', '.join(NUMBERS)} if none"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = {
        kind: int(count or NUMBERS[kind]) for kind, _, count in (one.partition("=") for one in options.stores)
    }
    PLACE.mkdir(exist_ok=True)
    for kind, count in (wanted or NUMBERS).items():
        with opened(kind) as store:
            figures = measured(store, count)
        print(
            json.dumps({"store": kind, "checkpoints": count} | figures)
            if options.json
            else shown(kind, count, figures),
            flush=True,
        )
    return 0


def shown(kind: str, count: int, figures: Figures) -> str:
    return "\n".join(
        [
            f"{kind}, {count:,} checkpoints",
            *(f"  {what:<34}{value:>10,.2f}" for what, value in figures.items()),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
