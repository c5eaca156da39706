"""Places where contents are kept, and what lies there: looked at from behind, not through the store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psycopg
import redis

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.names import base_of, session_of
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_orphans import contents_among
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_schema import FIRST_CONTENT
from graflow_ckpt.testing.trios import named

_databases = count()


class Kept(Protocol):
    """One place; `of(url)` is the kind of those on a server that the tests share."""

    store: CheckpointStore
    url = ""

    @classmethod
    def of(cls, url: str) -> type[Kept]:
        return type(cls.__name__, (cls,), {"url": url})

    def __init__(self, folder: Path) -> None: ...

    def stored(self) -> list[int]: ...  # the sizes of all contents, sorted

    def damage(self) -> None: ...  # change a byte of each

    @staticmethod
    def scope(name: str) -> str:
        """Checkpoints of one scope have contents in common. Here all have."""
        return ""

    @staticmethod
    def finds(name: str) -> bool:
        """Return whether a save under that name finds what its scope holds."""
        return True


class InMemory(Kept):
    def __init__(self, folder: Path) -> None:
        self.store: CheckpointStore = MemoryStore(f"memory://{'-'.join(folder.parts[-2:])[-60:]}")
        self._room = MemoryStore(self.store.folder)._room

    def stored(self) -> list[int]:
        return sorted(len(content.data) for content in self._room.contents.values())

    def damage(self) -> None:
        for content in self._room.contents.values():
            content.data = b"!" + content.data[1:]


class InSqlite(Kept):
    def __init__(self, folder: Path) -> None:
        self._file = f"{folder}/runs.db"
        self.store: CheckpointStore = SqliteStore(f"sqlite:///{self._file}")

    def stored(self) -> list[int]:
        with closing(sqlite3.connect(self._file)) as connection:
            ids = "SELECT id >> 20, sum(length(bytes)) FROM chunks WHERE id >> 20 >= ? GROUP BY 1"
            chunks = {row[0] - FIRST_CONTENT: row[1] for row in connection.execute(ids, (FIRST_CONTENT,))}
            rows = dict(connection.execute("SELECT id, size FROM contents").fetchall())
            loose = connection.execute("SELECT * FROM loose").fetchall()
        assert chunks == rows
        assert loose == []
        return sorted(rows.values())

    def damage(self) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            changed = "UPDATE chunks SET bytes = CAST(x'21' || substr(bytes, 2) AS BLOB) WHERE id >> 20 >= ?"
            connection.execute(changed, (FIRST_CONTENT,))


class InPostgres(Kept):
    """`of(url)`: one database."""

    def __init__(self, folder: Path) -> None:
        if self.url:
            tables = ("sessions", "checkpoints", "chunks", "staging", "freed", "holds", "contents")
            self._ask(f"truncate {', '.join(f'graflow_ckpt.{table}' for table in tables)}")
        self.store: CheckpointStore = PostgresStore(self.url)

    def stored(self) -> list[int]:
        chunks = "put like 'content/%'"
        found = self._ask(
            f"select put, sum(length(data)) from graflow_ckpt.chunks where {chunks} group by put"
        )
        rows = self._ask("select id, size from graflow_ckpt.contents")
        assert dict(found) == {f"content/{content}": size for content, size in rows}
        assert self._ask("select * from graflow_ckpt.staging") == []
        return sorted(size for _, size in rows)

    def damage(self) -> None:
        self._ask("update graflow_ckpt.chunks set data = set_byte(data, 0, 33) where put like 'content/%'")

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []


class InRedis(Kept):
    """`of(url)`: one server; each has its own database."""

    def __init__(self, folder: Path) -> None:
        url = f"{self.url.rpartition('/')[0]}/{next(_databases) % 16}"
        self._client: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
        self._client.flushdb()
        self.store: CheckpointStore = RedisStore(url)

    def stored(self) -> list[int]:
        held = {said for key in self._client.keys("*:contents:of:*") for said in self._client.hvals(key)}
        found = {said for key in self._client.keys("*:contents") for said in self._client.hvals(key)}
        chunks = dict[str, int]()
        for key in self._client.keys("*:contents:in:*"):
            nonce = key.split(":")[-2]
            chunks[nonce] = chunks.get(nonce, 0) + self._client.strlen(key)
            assert self._client.ttl(key) == -1
        assert found <= held
        assert chunks == {nonce: int(size) for nonce, size, _ in map(str.split, held)}
        assert self._client.keys("*:staging") == self._client.keys("*:over") == []
        assert self._pairs("of") == self._pairs("by")
        return sorted(chunks.values())

    def damage(self) -> None:
        for key in self._client.keys("*:contents:in:*:0"):
            self._client.setrange(key, 0, "!")

    @staticmethod
    def scope(name: str) -> str:
        return session_of(base_of(name)) or ""

    def _pairs(self, which: str) -> set[tuple[str, str]]:
        """Holder and content, as one side of them tells."""
        found = set()
        for key in self._client.keys(f"*:contents:{which}:*"):
            one = key.rpartition(":")[2]
            if which == "of":
                found |= {(one, said.split()[0]) for said in self._client.hvals(key)}
            else:
                found |= {(holder, one) for holder in self._client.smembers(key)}
        return found


class InObjects(Kept):
    """`of(url)`: one bucket."""

    _numbers = count()

    def __init__(self, folder: Path) -> None:
        place, _, options = self.url.partition("?")
        store = ObjectStore(f"{place}/{next(self._numbers)}?{options}")
        self.store: CheckpointStore = store
        self._bucket = store._all.bucket

    @staticmethod
    def scope(name: str) -> str:
        return session_of(named(name)) or name

    @staticmethod
    def finds(name: str) -> bool:
        """Say no to a user's own name: its saves write everything, also one in the place of another."""
        return session_of(named(name)) is not None

    def stored(self) -> list[int]:
        sizes: Counter[tuple[str, str]] = Counter()
        for tag, listed in contents_among(self._bucket.list("data")).items():
            for each in listed:
                sizes[tag, each.content] += each.entry.size
        return sorted(sizes.values())

    def damage(self) -> None:
        for listed in contents_among(self._bucket.list("data")).values():
            for each in listed:
                found = self._bucket.get(each.entry.key)
                assert found is not None
                self._bucket.put(each.entry.key, b"!" + found.data[1:])


KINDS: list[type[Kept]] = [InMemory, InSqlite]
