"""Where the scene lies: a folder, memory, a SQLite file, a Redis server, each with the attacker's way in.

He goes round the store where that is quicker than through it: files, and all keys that a driver has, are
his to write.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import Head, head_key
from graflow_ckpt.stores.keyed import KeyedStore
from tests import things
from tests.attacks.scene import Parts, Scene
from tests.object_servers import CREDENTIALS, object_server
from tests.servers import Server


class _InFolder(Scene):
    """Without a sync: what a power cut would do to the attacker's files is not the question."""

    def plant(self, path: str, parts: Parts, stage: str) -> None:
        for part, data in parts.items():
            Path(f"{path.removesuffix('.pkl')}.{part}").write_bytes(data)


@contextmanager
def local(folder: Path) -> Iterator[Scene]:
    store = LocalStore(folder / "checkpoints")

    def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
        for old in (folder / "checkpoints").glob(f".{session}.*.journal"):
            old.unlink()
        (folder / "checkpoints" / f".{session}.{epoch}.{after}.journal").write_bytes(raw)

    def owner(session: str, raw: bytes) -> None:
        (folder / "checkpoints" / f".{session}.owner").write_bytes(raw)

    yield _InFolder(store, journal, owner)


def _in(store: KeyedStore) -> Scene:
    """A keyed store: everything in it is under a key."""

    def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
        things.plant_segment(store, session, epoch, after, (raw[: len(raw) // 2], raw[len(raw) // 2 :]))

    def owner(session: str, raw: bytes) -> None:
        head = raw
        with contextlib.suppress(ValueError, RecursionError):  # else it is the whole head
            said = json.loads(raw)
            field = _FIELDS[len(raw) % len(_FIELDS)]
            head = json.dumps(json.loads(Head(claim="x").encode()) | {field: said}).encode()
        things.write(store, head_key(session), head + b"\n")

    scene = Scene(store, journal, owner)
    scene.plant_contents = lambda change: things.spoil(store, things.keys_of_contents(store), change)
    return scene


_FIELDS = (
    "owner", "epoch", "checkpoints", "announced", "segments", "seconds", "pins", "freed", "bad", "n", "last",
    "claim", "write", "pages", "format",
)  # fmt: skip


@contextmanager
def memory(folder: Path) -> Iterator[Scene]:
    store = MemoryStore(f"memory://{uuid.uuid4().hex}")
    yield _in(store)
    things.drop(store, things.keys(store))


@contextmanager
def sqlite(folder: Path) -> Iterator[Scene]:
    store = SqliteStore(f"sqlite:///{folder / 'checkpoints.db'}")
    yield _in(store)
    store.close()


@contextmanager
def on_redis(folder: Path) -> Iterator[Scene]:
    with Server() as server:
        yield _in(RedisStore(server.url))


@contextmanager
def postgres(folder: Path) -> Iterator[Scene]:
    from tests.postgres_servers import PostgresServer

    with PostgresServer() as server:
        store = PostgresStore(server.database())
        store.schema.upgrade()
        yield _in(store)
        store.close()


@contextmanager
def objects(folder: Path) -> Iterator[Scene]:
    os.environ.update(CREDENTIALS)
    with object_server() as server:
        yield _in(ObjectStore(server.url))


PLACES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Scene]]] = {
    "local": local,
    "memory": memory,
    "sqlite": sqlite,
    "redis": on_redis,
    "postgres": postgres,
    "objects": objects,
}
"""By name. Each is empty before, and gone after."""
