"""One kind of store after the other, for tests of what several have in common.

A test that asks for `kind` (or `store`, see conftest.py) runs with each; one of some kinds says which:

    @only("postgres", *REDIS)

A kind opens its place, and looks into it from outside as another program would: nothing of it is the store's.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from graflow_ckpt.core.protocols import CheckpointStore, Owner
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores import objects_chunks, postgres_trio, redis_trio, sqlite_chunks, sqlite_schema
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_names import head_key
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.sqlite import SqliteStore
from tests.object_servers import ObjectServer
from tests.postgres_servers import PostgresServer
from tests.proxy import Proxy
from tests.servers import Server, binaries

ROOT = Path(__file__).parents[3]
REDIS = sorted(binaries())
KINDS = ("sqlite", "postgres", "objects", *REDIS)
SMALL_CHUNK = 1 << 16  # of Postgres: else these tests move gigabytes, to no other end


def only(*kinds: str) -> pytest.MarkDecorator:
    """Run a test with these kinds of stores alone."""
    return pytest.mark.parametrize("kind", kinds, indirect=True)


class Kind:
    """One kind of store, at an empty place of its own."""

    type: Callable[..., CheckpointStore]
    chunk: int  # bytes of the pieces in which a large part is kept
    large: int  # bytes of a part that is written before its commit
    unfinished: int  # pieces of such a part that are there before its commit
    raced: int  # bytes of which writers that race write none, once or twice as many
    named_last = True  # a session's own checkpoints are listed before those with a name of the user's
    short: str  # what may stand before a name instead of the place
    other: tuple[str, str]  # a piece of the place's address, and what the address of another one has there
    far: ClassVar = {"boot": "another machine", "host": "far"}  # an owner whose process nobody can see
    patience: tuple[str, ...]  # what says how long a lost server is asked, and waited for
    segment: str  # how an error calls the segment 1:0 of session `s`, as a pattern
    silence: tuple[float, float] = (0.3, 0.29)  # seconds of a silent lease, and how long it is waited for

    def __init__(self, where: str, server: Any = None) -> None:
        self.where = where
        self.server = server
        self._open: list[Any] = []

    @property
    def address(self) -> str:
        """Of this place, as a user gives it."""
        return self.where

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
        name = self.type.__name__
        return f"""
import os, signal, sys
from graflow_ckpt.core.errors import Fenced, GraflowError
from {self.type.__module__} import {name}
from tests.unit.stores.redis_trios import own_name, parts, put, read
store = {name}({self.where!r}{given})
{body}"""

    def run(self, body: str) -> str:
        """What a program with this `store` prints."""
        done = subprocess.run(self._command(body), cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    def kill(self, body: str) -> None:
        """Run a program with this `store`, which kills itself."""
        assert subprocess.run(self._command(body), cwd=ROOT, check=False).returncode == -9

    def _command(self, body: str) -> list[str]:
        return [sys.executable, "-W", "ignore::DeprecationWarning", "-c", self.program(body)]

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
            for name in self.patience:
                patch.setattr(f"graflow_ckpt.stores.{name}", seconds)
            yield

    # --- as another program sees it ------------------------------------------------------

    def is_empty(self) -> bool:
        """Nothing has been written for any session."""
        raise NotImplementedError

    def pieces(self) -> list[Any]:
        """What is kept of parts that are too large to lie with their meta."""
        raise NotImplementedError

    def pieces_of(self, size: int) -> int:
        """How many of them a part of this size has."""
        raise NotImplementedError

    def lives(self) -> list[int]:
        """After how many seconds the server drops each piece by itself; -1: never."""
        return []

    def begun(self) -> int:
        """How many puts have begun and not ended."""
        raise NotImplementedError

    def abandon(self, put: str, age: int) -> None:
        """As if a put without an owner had begun so many seconds ago, and written some pieces."""
        raise NotImplementedError

    def lose(self, number: int) -> None:
        """Take that piece of every pkl away."""
        raise NotImplementedError

    def lose_parts(self) -> None:
        """Take all parts away, and leave the metas."""
        raise NotImplementedError

    def owned(self, seconds: float, **unlike: object) -> Owner:
        """As if another process had claimed session `s` for so long, as its fourth owner: that one."""
        owner = replace(myself(), **{"pid": 1 << 30, **unlike})  # type: ignore[arg-type]
        self._claim(owner, seconds)
        return owner

    def _claim(self, owner: Owner, seconds: float) -> None:
        raise NotImplementedError

    def left(self) -> float:
        """Seconds until the lease of `s` ends."""
        raise NotImplementedError

    def renew(self) -> None:
        """As its owner does."""
        raise NotImplementedError

    def step(self, seconds: float) -> None:
        """As if the server's clock had been set forward, or back."""
        assert seconds == 0, "no such clock"

    def forget(self) -> None:
        """Take all away that is known of `s` and its owner."""
        raise NotImplementedError

    def frames(self) -> int:
        """How many there are of any segment."""
        raise NotImplementedError

    def append(self, *frames: bytes) -> None:
        """As another writer of the segment 1:0 of session `s`, which has one frame."""
        raise NotImplementedError


class InSqlite(Kind):
    type = SqliteStore
    named_last = False
    short = "sqlite://"
    other = ("x.db", "y.db")
    chunk = sqlite_schema.CHUNK
    large = 3 * sqlite_chunks.HELD
    raced = 700_000
    unfinished = large // chunk
    far: ClassVar = {"pid_ns": "another container", "host": "far"}

    @property
    def address(self) -> str:
        return f"sqlite:///{self.where}"

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.where, isolation_level=None, timeout=10)) as connection:
            return connection.execute(statement, values).fetchall()

    def is_empty(self) -> bool:
        tables = ("leases", "checkpoints", "chunks", "loose")
        exists = os.path.exists(self.where)
        return not exists or not any(self.ask(f"SELECT * FROM {table}") for table in tables)

    def lose_parts(self) -> None:
        self.ask("DELETE FROM chunks")

    def pieces(self) -> list[Any]:
        return self.ask("SELECT id, length(bytes) FROM chunks ORDER BY id")

    def begun(self) -> int:
        return len(self.ask("SELECT id FROM loose"))

    def leftovers(self) -> tuple[int, int]:
        """Chunks that belong to no checkpoint, and what is known of them."""
        owned = "SELECT coalesce(body, id) FROM checkpoints"
        ((chunks,),) = self.ask(f"SELECT count(*) FROM chunks WHERE id >> 20 NOT IN ({owned})")
        return chunks, self.begun()

    def _claim(self, owner: Owner, seconds: float) -> None:
        self.open().probe()
        ends, date = int((time.monotonic() + seconds) * 1000), int((time.time() + seconds) * 1000)
        self.ask("INSERT INTO leases VALUES ('s', 4, ?, ?, ?, '[]')", _said(owner), ends, date)

    def dated(self, seconds: float) -> None:
        """As if the lease of `s` ended then by the date, whatever the other clock says."""
        self.ask("UPDATE leases SET ends_by_date = ?", int((time.time() + seconds) * 1000))

    def left(self) -> float:
        ((ends,),) = self.ask("SELECT ends FROM leases")
        return ends / 1000 - time.monotonic()

    def renew(self) -> None:
        self.ask("UPDATE leases SET ends = ends + 1")

    def frames(self) -> int:
        return len(self.ask("SELECT id FROM frames"))

    def append(self, *frames: bytes) -> None:
        ((first,),) = self.ask("SELECT id FROM frames")
        with closing(sqlite3.connect(self.where)) as connection, connection:
            connection.executemany("INSERT INTO frames VALUES (?, ?)", enumerate(frames, first + 1))


class InRedis(Kind):
    type = RedisStore
    patience = ("redis_scripts.PATIENCE",)
    short = "redis://"
    other = ("/0", "/1")
    segment = r"graflow:ck:\{s\}:journal:1:0"
    chunk = redis_trio.CHUNK
    large = 3 * chunk
    unfinished = 2  # all but the last, which is kept for the commit
    raced = 1000
    lease = "graflow:ck:{s}:lease"

    def ask(self, *words: str | bytes | int) -> Any:
        return self.server.ask(*words)

    def _now(self) -> int:
        seconds, micros = self.ask("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def is_empty(self) -> bool:
        return self.ask("DBSIZE") == 0

    def pieces(self) -> list[Any]:
        return sorted(key.decode() for key in self.ask("KEYS", "*:chunk:*"))

    def pieces_of(self, size: int) -> int:
        return -(-size // self.chunk)

    def lives(self) -> list[int]:
        return [self.ask("TTL", key) for key in self.pieces()]

    def begun(self) -> int:
        return sum(self.ask("HLEN", key) for key in self.ask("KEYS", "*:staging"))

    def abandon(self, put: str, age: int) -> None:
        said = json.dumps({"session": "", "epoch": "", "at": str(self._now() // 1000 - age)})
        self.ask("HSET", "graflow:ck:{s}:staging", put, said)
        for piece in ("pkl:0", "pkl:1", "state.json:0"):
            self.ask("SET", f"graflow:ck:{{s}}:chunk:{put}:{piece}", "x")

    def lose_parts(self) -> None:
        self.ask("DEL", *self.pieces())

    def lose(self, number: int) -> None:
        self.ask("DEL", *(key for key in self.pieces() if key.endswith(f"pkl:{number}")))

    def _claim(self, owner: Owner, seconds: float) -> None:
        until = self._now() + int(seconds * 1000)
        self.ask("HSET", self.lease, "epoch", 4, "owner", _said(owner), "until", until, "nonce", "other")

    def left(self) -> float:
        return (int(self.ask("HGET", self.lease, "until")) - self._now()) / 1000

    def renew(self) -> None:
        self.ask("HINCRBY", self.lease, "until", 1)

    def forget(self) -> None:
        self.ask("FLUSHALL")

    def frames(self) -> int:
        return sum(self.ask("LLEN", key) for key in self.ask("KEYS", "*:journal:*"))

    def append(self, *frames: bytes) -> None:
        self.ask("RPUSH", "graflow:ck:{s}:journal:1:0", *frames)


class InPostgres(Kind):
    type = PostgresStore
    patience = ("postgres_link.PATIENCE", "postgres_link._WAIT")
    named_last = False
    short = ""
    other = ("/test_", "/other_")
    segment = r"session 's' \(1:0 in "
    chunk = SMALL_CHUNK
    large = 3 * chunk
    unfinished = 2  # likewise
    raced = chunk
    silence = (0.3, 0.25)

    @property
    def database(self) -> str:
        return self.where.rpartition("/")[2]

    def program(self, body: str, **options: Any) -> str:
        chunks = f"from graflow_ckpt.stores import postgres_trio\npostgres_trio.CHUNK = {self.chunk}\n"
        return super().program(chunks + body, **options)

    def _behind(self, proxy: Proxy) -> str:
        """Unencrypted, so that the proxy can look for what passes."""
        return f"{proxy.url.rpartition('/')[0]}/{self.database}?sslmode=disable"

    def ask(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
        return self.server.ask(statement, *args, database=self.database)

    def waiting(self, count: int) -> None:
        """Until so many wait for a lock."""
        deadline = time.monotonic() + 20
        asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        while self.ask(asked) != [(count,)]:
            assert time.monotonic() < deadline, f"not {count} who wait"
            time.sleep(0.01)

    def is_empty(self) -> bool:
        tables = ("sessions", "chunks", "staging", "checkpoints")
        return all(self.ask(f"select count(*) from graflow_ckpt.{table}") == [(0,)] for table in tables)

    def pieces(self) -> list[Any]:
        return self.ask("select put, part, number from graflow_ckpt.chunks order by 1, 2, 3")

    def pieces_of(self, size: int) -> int:
        return max(0, (size - 1) // self.chunk)

    def begun(self) -> int:
        return len(self.ask("select put from graflow_ckpt.staging"))

    def abandon(self, put: str, age: int) -> None:
        begun = "clock_timestamp() - %s * interval '1 second'"
        self.ask(f"insert into graflow_ckpt.staging values (%s, '', 0, {begun})", put, age)
        rows = "(%s, 'pkl', 0, 'x'), (%s, 'pkl', 1, 'x')"
        self.ask(f"insert into graflow_ckpt.chunks values {rows}", put, put)

    def lose_parts(self) -> None:
        self.ask("update graflow_ckpt.checkpoints set pkl = null, state = null")

    def lose(self, number: int) -> None:
        self.ask("delete from graflow_ckpt.chunks where part = 'pkl' and number = %s", number)

    term = 15_000  # milliseconds of the lease of an owner

    def _claim(self, owner: Owner, seconds: float) -> None:
        until = "clock_timestamp() + %s * interval '1 second'"
        row = f"insert into graflow_ckpt.sessions values ('s', 4, %s, {until}, %s, 'other')"
        self.ask(row, _said(owner), seconds, self.term)

    def left(self) -> float:
        asked = "select extract(epoch from until - clock_timestamp()) from graflow_ckpt.sessions"
        return float(self.ask(asked)[0][0])

    def renew(self) -> None:
        self.step(-0.001)

    def step(self, seconds: float) -> None:
        self.ask("update graflow_ckpt.sessions set until = until - %s * interval '1 second'", seconds)

    def forget(self) -> None:
        self.ask("delete from graflow_ckpt.sessions")

    def frames(self) -> int:
        return len(self.ask("select number from graflow_ckpt.frames"))

    def append(self, *frames: bytes) -> None:
        numbered = "unnest(%s::bytea[]) with ordinality as frames (frame, n)"
        row = "insert into graflow_ckpt.frames select 's', 1, 0, n, frame from "
        self.ask(row + numbered, list(frames))


class InBucket(Kind):
    type = ObjectStore
    patience = ("objects_bucket.PATIENCE",)
    short = ""
    other = ("bucket/", "bucket2/")
    segment = "journal/s/1-0"
    chunk = objects_chunks.CHUNK
    large = chunk + 5
    silence = (1.5, 1.0)  # the bucket's clock counts whole seconds

    def __init__(self, where: str, server: ObjectServer) -> None:
        super().__init__(where, server)
        self._heads = ObjectStore(where)._all.heads
        self._bucket = ObjectStore(where)._all.bucket

    def open(self, where: str | None = None, **options: Any) -> Any:
        return super().open(where, **{"lease": self.silence[0], **options})

    @property
    def address(self) -> str:
        return self.where.partition("?")[0]  # a path has no options

    def _behind(self, proxy: Proxy) -> str:
        return str(self.server.at(self.address.rpartition("/")[2], proxy.port))

    def is_empty(self) -> bool:
        return list(self._bucket.list("")) == []

    def pieces(self) -> list[Any]:
        return sorted(entry.key for entry in self._bucket.list("data"))

    def begun(self) -> int:
        return len(self._heads.read("s").head.announced)

    def _claim(self, owner: Owner, seconds: float) -> None:
        change = {"epoch": 4, "claim": "other", "owner": owner, "seconds": seconds}
        self._heads.update("s", lambda head: replace(head, **change))

    def renew(self) -> None:
        self._bucket.put("alive/s/4", os.urandom(8))

    def forget(self) -> None:
        self._bucket.delete([head_key("s")])

    def frames(self) -> int:
        return len(list(self._bucket.list("journal")))

    def append(self, *frames: bytes) -> None:
        (first,) = self._bucket.list("journal")
        for number, frame in enumerate(frames, 1):
            self._bucket.put(f"{first.key.rpartition('/')[0]}/{number:010}", frame)


def _said(owner: Owner) -> str:
    return json.dumps(asdict(owner))


def kind_of(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Kind:
    """That kind, at an empty place."""
    if name == "sqlite":
        return InSqlite(f"{tmp_path}/x.db")
    if name == "postgres":
        monkeypatch.setattr(postgres_trio, "CHUNK", SMALL_CHUNK)
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return InPostgres(request.getfixturevalue("postgres_url"), server)
    if name == "objects":
        return InBucket(request.getfixturevalue("objects_url"), request.getfixturevalue("object_server"))
    synced: Server = request.getfixturevalue("synced_redis")(name)
    synced.ask("FLUSHALL")
    return InRedis(synced.url, synced)
