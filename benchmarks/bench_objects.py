"""What does a checkpoint in a bucket cost beside one bare request for its bytes?

Method: wall time of the store's `put` of ready parts, under a lease and to new names of which ten are kept,
as retention keeps them; of a load (`meta`, then all parts); and of a listing. The server is that of the
tests, on this machine, where a request takes a millisecond or two; at the large services it takes ten times
that and more, and hardly anything else counts. So the requests that each call makes are counted as well.
Unit: ms; requests. The floor: one put or get of the same bytes as one object, by the same client.
A regression: one more request for a save or a load, a listing that fetches each meta by itself.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import count as numbers
from typing import Any

import obstore

from benchmarks.harness import AtMost, Case, Ratio, Run
from graflow_ckpt.core.protocols import PartWriter, Sink
from graflow_ckpt.stores.drivers.objects.bucket import Bucket
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.lease import KeyedLease
from tests.object_servers import CREDENTIALS, ObjectServer

NAME = "objects"
SMALL, LARGE = 4 << 10, 1 << 20
META, STATE = 1 << 10, 1 << 10
KEPT = 10
SESSION = "bench"
REQUESTS = ("get", "get_range", "list", "_put", "delete")
_names = numbers(1)


@cache
def store() -> ObjectStore:
    os.environ.update(CREDENTIALS)
    server = ObjectServer().start()
    atexit.register(server.close)
    return ObjectStore(server.url, lease=3600.0)  # its keeper is silent while something is measured


@cache
def lease() -> KeyedLease:
    found = store().acquire(SESSION)
    atexit.register(found.release)
    return found


def bucket() -> Bucket:
    return store().bucket


def writer(data: bytes) -> PartWriter:
    def write(sink: Sink) -> None:
        sink.write(data)

    return write


def calls(run: Run) -> int:
    return run.size(KEPT, smoke=3)


# --- the store ---------------------------------------------------------------------------


def put(values: bytes, number: int) -> str:
    """A trio that has as many bytes as `values` in all."""
    name = f"session_{SESSION}_step_1_1700000000-{number}.pkl"
    meta = json.dumps({"session_id": SESSION, "stage": "s", "n": number}).encode().ljust(META)
    cut = len(values) - META - STATE
    parts = [("pkl", values[:cut]), ("state.json", values[cut:-META]), ("meta.json", meta)]
    store().put(name, [(part, writer(data)) for part, data in parts], lease=lease(), stage="s")
    return name


def load(name: str, buffer: memoryview) -> None:
    store().meta(name)
    for part in ("pkl", "state.json"):
        source = store().open(name, part, "s")
        while source.readinto(buffer):
            pass
        source.close()


def forget() -> None:
    """Of former calls."""
    store().delete_many([path for path, _ in store().list(SESSION)])
    lease().check()  # its head has changed


def save(size: int, run: Run) -> None:
    values = os.urandom(size)
    forget()
    put(values, next(_names))
    with run.timed(per=calls(run)):
        for _ in range(calls(run)):
            put(values, next(_names))


def loads(size: int, run: Run) -> None:
    forget()
    names = [put(os.urandom(size), next(_names)) for _ in range(KEPT)]
    buffer = memoryview(bytearray(size))
    with run.timed(per=calls(run)):
        for name in names[: calls(run)]:
            load(name, buffer)


def listing(run: Run) -> None:
    forget()
    for _ in range(KEPT):
        put(os.urandom(SMALL), next(_names))
    with run.timed():
        assert len(list(store().list(SESSION))) == KEPT


# --- the floor ---------------------------------------------------------------------------


def client() -> Any:  # one of three classes that have no common one
    return bucket()._for(0)


def bare_put(key: str, values: bytes) -> None:
    obstore.put(client(), key, values, use_multipart=False)


def bare_save(size: int, run: Run) -> None:
    values = os.urandom(size)
    with run.timed(per=calls(run)):
        for _ in range(calls(run)):
            bare_put(f"bare/{next(_names)}", values)


def bare_load(size: int, run: Run) -> None:
    keys = [f"bare/{next(_names)}" for _ in range(calls(run))]
    for key in keys:
        bare_put(key, os.urandom(size))
    buffer = memoryview(bytearray(size))
    with run.timed(per=calls(run)):
        for key in keys:
            buffer[:] = memoryview(obstore.get_range(client(), key, start=0, length=size))


# --- requests ----------------------------------------------------------------------------


@contextmanager
def counted() -> Iterator[list[str]]:
    """The requests that are made meanwhile."""
    made: list[str] = []
    asked = bucket()

    def noted(name: str, request: Callable[..., object], *args: object) -> object:
        if args != ([],):
            made.append(name)
        return request(*args)

    for name in REQUESTS:
        setattr(asked, name, partial(noted, name, getattr(asked, name)))
    try:
        yield made
    finally:
        for name in REQUESTS:
            delattr(asked, name)


def requests_of(size: int, loading: bool, run: Run) -> None:
    forget()
    name = put(os.urandom(size), next(_names))
    with counted() as made:
        if loading:
            load(name, memoryview(bytearray(size)))
        else:
            put(os.urandom(size), next(_names))
    run.report(len(made))


def requests_case(name: str, size: int, most: int, *, loading: bool = False) -> Case:
    return Case(name, partial(requests_of, size, loading), None, AtMost(most, ""), unit="")


CASES = [
    Case("save of 4 kB", partial(save, SMALL), partial(bare_save, SMALL), Ratio(2.0), repetitions=15),
    requests_case("… requests", SMALL, 1),
    Case("load of 4 kB", partial(loads, SMALL), partial(bare_load, SMALL), Ratio(2.0), repetitions=15),
    requests_case("… requests", SMALL, 1, loading=True),
    Case("save of 1 MB", partial(save, LARGE), partial(bare_save, LARGE), Ratio(2.0), repetitions=15),
    requests_case("… requests", LARGE, 2),
    Case("load of 1 MB", partial(loads, LARGE), partial(bare_load, LARGE), Ratio(2.0), repetitions=15),
    requests_case("… requests", LARGE, 2, loading=True),
    Case("list of ten", listing, partial(bare_load, SMALL), None),
]
