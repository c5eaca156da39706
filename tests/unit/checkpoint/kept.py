"""Places where contents are kept, and what lies there: looked at from behind, not through the store."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psycopg

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.names import session_of
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_orphans import contents_among
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_schema import FIRST_CONTENT
from graflow_ckpt.testing.trios import named


class Kept(Protocol):
    """One place."""

    store: CheckpointStore

    def __init__(self, folder: Path) -> None: ...

    def stored(self) -> list[int]: ...  # the sizes of all contents, sorted

    def damage(self) -> None: ...  # change a byte of each

    @staticmethod
    def scope(name: str) -> str:
        """Checkpoints of one scope have contents in common. Here all have."""
        return ""


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


class InFolder(Kept):
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoints"
        self.store: CheckpointStore = LocalStore(self._folder, share=True)

    def stored(self) -> list[int]:
        found = [os.stat(path) for path in self._folder.glob("*.contents/*")]
        found += [os.stat(path) for path in self._folder.glob(".contents/*")]
        return sorted({status.st_ino: status.st_size for status in found}.values())

    def damage(self) -> None:
        for path in self._folder.glob(".contents/*"):
            with path.open("r+b") as file:
                file.write(b"!")


class InPostgres(Kept):
    """On a server that the tests share: `of(url)` is the kind of one database."""

    url = ""

    @classmethod
    def of(cls, url: str) -> type[Kept]:
        return type("InPostgres", (cls,), {"url": url})

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


class InObjects(Kept):
    """On a server that the tests share: `of(url)` is the kind of one bucket."""

    url = ""
    _numbers = count()

    @classmethod
    def of(cls, url: str) -> type[Kept]:
        return type("InObjects", (cls,), {"url": url})

    def __init__(self, folder: Path) -> None:
        place, _, options = self.url.partition("?")
        store = ObjectStore(f"{place}/{next(self._numbers)}?{options}")
        self.store: CheckpointStore = store
        self._bucket = store._all.bucket

    @staticmethod
    def scope(name: str) -> str:
        return session_of(named(name)) or name

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


KINDS: list[type[Kept]] = [InMemory, InSqlite, InFolder]
