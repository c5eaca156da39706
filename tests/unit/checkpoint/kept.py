"""Places where contents are kept, and what lies there: looked at from behind, not through the store."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import psycopg
import redis

from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.names import base_of, session_of
from tests import things

_numbers = count()


class Kept:
    """One place; `of(url)` is the kind of those on a server that the tests share."""

    store: KeyedStore
    url = ""

    @classmethod
    def of(cls, url: str) -> type[Kept]:
        return type(cls.__name__, (cls,), {"url": url})

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def stored(self) -> list[int]:
        """The sizes of all contents, sorted: those that lie there are those that heads name."""
        found = things.contents(self.store)
        assert found == things.held(self.store)
        return sorted(found.values())

    def damage(self) -> None:
        """Change a byte of each."""
        things.spoil(self.store, things.keys_of_contents(self.store), lambda data: b"!" + data[1:])

    @staticmethod
    def scope(name: str) -> str:
        """Checkpoints of one scope have contents in common: those of a session, and each other name alone."""
        return session_of(base_of(name)) or name


class InMemory(Kept):
    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore(f"memory://{'-'.join(folder.parts[-2:])[-60:]}")


class InSqlite(Kept):
    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(f"sqlite:///{folder}/runs.db")


class InPostgres(Kept):
    """`of(url)`: one database."""

    def __init__(self, folder: Path) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("truncate graflow_ckpt.things")
        self.store = PostgresStore(self.url)


class InRedis(Kept):
    """`of(url)`: one server; each has its own database."""

    def __init__(self, folder: Path) -> None:
        url = f"{self.url.rpartition('/')[0]}/{next(_numbers) % 16}"
        redis.Redis.from_url(url).flushdb()
        self.store = RedisStore(url)


class InObjects(Kept):
    """`of(url)`: one bucket."""

    def __init__(self, folder: Path) -> None:
        place, _, options = self.url.partition("?")
        self.store = ObjectStore(f"{place}/{next(_numbers)}?{options}")


KINDS: list[type[Kept]] = [InMemory, InSqlite]
