"""One kind of store after the other, for tests of what all keyed stores have in common.

A test that asks for `kind` (or `store`, see conftest.py) runs with each; one of some kinds says which:

    @only("postgres", *REDIS)

What a place holds is looked at through the six calls of its driver. Chunks are small here: else these tests
move gigabytes, to no other end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores import lease as leases
from graflow_ckpt.stores.driver import Driver, Put
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectsDriver, ObjectStore
from graflow_ckpt.stores.drivers.postgres import link as links
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.head import Head, head_key, lease_key
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import Heads
from tests.object_servers import ObjectServer
from tests.postgres_servers import PostgresServer
from tests.proxy import Proxy
from tests.servers import Server, binaries
from tests.unit.stores.programs import printed

REDIS = sorted(binaries())
FORKING = ("sqlite", "postgres", *REDIS)  # a forked child may use them
SHARED = (*FORKING, "objects")  # by processes
KINDS = ("memory", *SHARED)
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")  # variables of a cluster's launcher
_numbers = count()  # a place in memory stays as long as the process
CHUNK = 1 << 16
SMALL = """
from graflow_ckpt.stores import streams
from {module} import {name}
{name}.chunk, streams._AHEAD = {chunk}, 0"""


def only(*kinds: str) -> pytest.MarkDecorator:
    """Run a test with these kinds of stores alone."""
    return pytest.mark.parametrize("kind", kinds, indirect=True)


SERVERS = only("postgres", "objects", *REDIS)
PROCESSES = only(*SHARED)


class Kind:
    """One kind of store, at an empty place of its own."""

    type: Callable[..., KeyedStore]
    chunk = CHUNK
    large = 4 * CHUNK + 5  # bytes of which some go ahead of the commit
    short: str  # what may stand before a name instead of the place
    other: tuple[str, str]  # a piece of the place's address, and what the address of another one has there
    far: ClassVar = {"boot": "another machine", "host": "far"}  # an owner whose process nobody can see

    def __init__(self, where: str, server: Any = None) -> None:
        self.where = where
        self.server = server
        self._open: list[Any] = []

    @property
    def address(self) -> str:
        """Of this place, as a user gives it."""
        return self.where

    @property
    def driver(self) -> Driver:
        """A way into the place that is not the one of the store that is tested."""
        driver: Driver = self.open().driver
        return driver

    def open(self, where: str | None = None, **options: Any) -> Any:
        """Another handle to this place; the fixture closes it."""
        self._open.append(self.type(where or self.where, **options))
        return self._open[-1]

    def close(self) -> None:
        for store in self._open:
            if hasattr(store, "close"):
                store.close()

    def program(self, body: str, **options: Any) -> str:
        """A program whose `store` is of this place."""
        given = "".join(f", {name}={value!r}" for name, value in options.items())
        name, driver = self.type.__name__, type(self.driver)
        return f"""
import os, signal, sys
from graflow_ckpt.core.errors import Fenced, GraflowError
from {self.type.__module__} import {name}
from tests.unit.stores.texts import own_name, parts, put, read
{SMALL.format(module=driver.__module__, name=driver.__name__, chunk=self.chunk)}
store = {name}({self.where!r}{given})
{body}"""

    def run(self, body: str) -> list[str]:
        """The lines that a program with this `store` prints."""
        return printed(self.program(body))

    @contextmanager
    def proxy(self) -> Iterator[tuple[Proxy, str]]:
        """A proxy in front of the server, and the address of this place behind it."""
        with Proxy(self.server) as proxy:
            yield proxy, self._behind(proxy)
            proxy.resume()

    def _behind(self, proxy: Proxy) -> str:
        return proxy.url

    @contextmanager
    def impatient(self, seconds: float) -> Iterator[None]:
        """The store does not ask longer than so for a server that was lost."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "PATIENCE", seconds)
            patch.setattr(links, "_WAIT", seconds)
            yield

    # --- as another program sees it ------------------------------------------------------

    def listed(self, prefix: str = "data/") -> list[str]:
        return [entry.key for entry in self.driver.keys(prefix)]

    def is_empty(self) -> bool:
        """Nothing has been written for any session."""
        return not any(self.listed(f"{kind}/") for kind in ("head", "lease", "data", "journal"))

    def head(self, session: str = "s") -> Head:
        return Heads(self.driver).read(session).head

    def lose(self, prefix: str = "data/") -> list[str]:
        """Take away what is kept of streams: all but metas."""
        lost = [key for key in self.listed(prefix) if "/m." not in key]
        self.driver.batch([], lost)
        return lost

    def set_head(self, head: Head, scope: str = "s") -> None:
        self.driver.batch([Put(head_key(scope), head.encode(), fresh=False)])

    def owned(self, seconds: float, **unlike: object) -> Owner:
        """As if another process had claimed session `s` for so long, as its fourth owner: that one."""
        owner = replace(myself(), **{"pid": 1 << 30, **unlike})  # type: ignore[arg-type]
        self.set_head(Head(epoch=4, claim="other", owner=owner, seconds=seconds))
        self.renew()
        return owner

    def renew(self) -> None:
        """As that owner does."""
        self.driver.batch([Put(lease_key("s", "other"), uuid.uuid4().bytes, fresh=False)])

    def forget(self) -> None:
        """Take all away that is known of `s` and its owner."""
        self.driver.batch([], [head_key("s"), *self.listed("lease/s/")])

    def append(self, *frames: bytes) -> None:
        """As another writer of the segment of session `s` that was begun last."""
        segment, _, last = self.listed("journal/s/")[-1].rpartition("/")
        driver = self.driver
        for number, frame in enumerate(frames, int(last) + 1):
            assert driver.batch([Put(f"{segment}/{number:010}", frame)], soft=True)


class InMemory(Kind):
    type = MemoryStore
    short = ""
    other = ("memory://", "memory://x")

    def open(self, where: str | None = None, *, lease: float = 0, **options: Any) -> Any:
        return super().open(where, **options)  # silence says nothing there


class InSqlite(Kind):
    type = SqliteStore
    short = "sqlite://"
    other = ("x.db", "y.db")
    far: ClassVar = {"pid_ns": "another container", "host": "far"}

    @property
    def address(self) -> str:
        return f"sqlite:///{self.where}"


class InRedis(Kind):
    type = RedisStore
    short = "redis://"
    other = ("/0", "/1")

    def ask(self, *words: str | bytes | int) -> Any:
        return self.server.ask(*words)


class InPostgres(Kind):
    type = PostgresStore
    short = ""
    other = ("/test_", "/other_")

    def _behind(self, proxy: Proxy) -> str:
        """Unencrypted, so that the proxy can look for what passes."""
        return f"{proxy.url.rpartition('/')[0]}/{self.where.rpartition('/')[2]}?sslmode=disable"

    def ask(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = self.server.ask(
            statement, *args, database=self.where.rpartition("/")[2]
        )
        return asked


class InBucket(Kind):
    type = ObjectStore
    short = ""
    other = ("bucket/", "bucket2/")

    @property
    def address(self) -> str:
        return self.where.partition("?")[0]  # a path has no options

    def _behind(self, proxy: Proxy) -> str:
        return str(self.server.at(self.address.rpartition("/")[2], proxy.port))


def kept(kind: Kind) -> set[str]:
    """Contents of which there is anything, by whoever wrote them."""
    return {"/".join(key.split("/")[1:4]) for key in kind.listed() if len(key.split("/")) == 5}


def kind_of(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Kind:
    """That kind, at an empty place."""
    if name == "memory":
        return InMemory(f"memory://unit-{next(_numbers)}")
    if name == "sqlite":
        return InSqlite(f"{tmp_path}/x.db")
    if name == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return InPostgres(request.getfixturevalue("postgres_url"), server)
    if name == "objects":
        bucket: ObjectServer = request.getfixturevalue("object_server")
        monkeypatch.setattr(ObjectsDriver, "inline", 4096)
        return InBucket(request.getfixturevalue("objects_url"), bucket)
    synced: Server = request.getfixturevalue("synced_redis")(name)
    synced.ask("FLUSHALL")
    return InRedis(synced.url, synced)
