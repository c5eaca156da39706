"""Where the scene lies: a folder, memory, a SQLite file, a Redis server, each with the attacker's way in.

He goes round the store where that is quicker than through it: files, tables and keys are his to write.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import redis

from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_head import Head
from graflow_ckpt.stores.objects_names import head_key
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_schema import FIRST_CONTENT
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


@contextmanager
def memory(folder: Path) -> Iterator[Scene]:
    store = MemoryStore(f"memory://{uuid.uuid4().hex}")

    def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
        store._room.segments[session] = {(epoch, after): bytearray(raw)}

    def contents(change: Callable[[bytes], bytes]) -> Callable[[], None]:
        room = store._room
        kept = [(name, content, content.data) for name, content in room.contents.items()]
        for _, content, data in kept:
            content.data = change(data)

        def undo() -> None:
            for name, content, data in kept:
                content.data = data
                room.contents[name] = content

        return undo

    scene = Scene(store, journal)
    scene.plant_contents = contents
    yield scene
    store.forget()


@contextmanager
def sqlite(folder: Path) -> Iterator[Scene]:
    file = folder / "checkpoints.db"
    store = SqliteStore(f"sqlite:///{file}")
    store.probe()

    def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
        with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
            connection.execute("PRAGMA synchronous=OFF")
            for (number,) in connection.execute(
                "SELECT id FROM segments WHERE session = ?", (session,)
            ).fetchall():
                connection.execute("DELETE FROM frames WHERE id >> 32 = ?", (number,))
            connection.execute("DELETE FROM segments WHERE session = ?", (session,))
            insert = "INSERT INTO segments (session, epoch, after) VALUES (?, ?, ?) RETURNING id"
            number = connection.execute(insert, (session, epoch, after)).fetchone()[0]
            half = len(raw) // 2
            for at, piece in enumerate((raw[:half], raw[half:])):
                connection.execute("INSERT INTO frames VALUES (?, ?)", ((number << 32) + at, piece))

    def owner(session: str, raw: bytes) -> None:
        text = raw.decode(errors="replace")
        with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
            connection.execute("PRAGMA synchronous=OFF")
            insert = "INSERT OR REPLACE INTO leases VALUES (?, 3, ?, ?, ?, ?)"
            connection.execute(insert, (session, text, 0, 0, text))

    def contents(change: Callable[[bytes], bytes]) -> Callable[[], None]:
        with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
            find = "SELECT id, bytes FROM chunks WHERE id >= ?"
            kept = connection.execute(find, (FIRST_CONTENT << 20,)).fetchall()
            changed = [(change(data), number) for number, data in kept]
            connection.executemany("UPDATE chunks SET bytes = ? WHERE id = ?", changed)

        def undo() -> None:
            with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
                connection.execute("UPDATE contents SET good = 1")
                right = [(data, number) for number, data in kept]
                connection.executemany("UPDATE chunks SET bytes = ? WHERE id = ?", right)

        return undo

    scene = Scene(store, journal, owner)
    scene.plant_contents = contents
    yield scene
    store.close()


@contextmanager
def on_redis(folder: Path) -> Iterator[Scene]:
    with Server() as server:
        store = open_store(server.url)
        client = redis.Redis.from_url(server.url)

        def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
            names = f"graflow:ck:{{{session}}}:journal"
            for old in client.keys(f"{names}*".replace("{", "\\{")):
                client.delete(old)
            client.sadd(names, f"{epoch}:{after}")
            client.rpush(f"{names}:{epoch}:{after}", raw[: len(raw) // 2], raw[len(raw) // 2 :])

        def owner(session: str, raw: bytes) -> None:
            of = f"graflow:ck:{{{session}}}"
            client.hset(f"{of}:lease", mapping={"epoch": 3, "owner": raw, "until": 0, "nonce": "x"})

        with contextlib.closing(client):
            yield Scene(store, journal, owner)


@contextmanager
def postgres(folder: Path) -> Iterator[Scene]:
    from tests.postgres_servers import PostgresServer

    with PostgresServer() as server:
        url = server.database()
        database = url.rpartition("/")[2]
        store = PostgresStore(url)
        store.schema.upgrade()

        def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
            server.ask("delete from graflow_ckpt.segments where session = %s", session, database=database)
            begin = "insert into graflow_ckpt.segments values (%s, %s, %s)"
            server.ask(begin, session, epoch, after, database=database)
            frame = "insert into graflow_ckpt.frames values (%s, %s, %s, %s, %s)"
            for number, piece in enumerate((raw[: len(raw) // 2], raw[len(raw) // 2 :])):
                server.ask(frame, session, epoch, after, number, piece, database=database)

        def owner(session: str, raw: bytes) -> None:
            said = raw.decode(errors="replace").replace("\0", "?")
            put = (
                "insert into graflow_ckpt.sessions (session, epoch, owner, until) values (%s, 3, %s, now()) "
                "on conflict (session) do update set owner = excluded.owner, until = now()"
            )
            server.ask(put, session, said, database=database)

        yield Scene(store, journal, owner)
        store.close()


@contextmanager
def objects(folder: Path) -> Iterator[Scene]:
    """Without a journal to plant: its frames are objects that the head of a session leads to."""
    os.environ.update(CREDENTIALS)
    with object_server() as server:
        store = ObjectStore(server.url)

        def owner(session: str, raw: bytes) -> None:
            bucket, head = store._all.bucket, raw
            with contextlib.suppress(ValueError, RecursionError):  # else it is the whole head
                said = json.loads(raw)
                field = _FIELDS[len(raw) % len(_FIELDS)]
                head = json.dumps(json.loads(Head().encode()) | {field: said}).encode()
            bucket.delete([head_key(session)])
            bucket.swap(head_key(session), head + b"\n", None)

        yield Scene(store, None, owner)


_FIELDS = ("owner", "epoch", "commits", "announced", "segments", "seconds")  # of a head

PLACES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Scene]]] = {
    "local": local,
    "memory": memory,
    "sqlite": sqlite,
    "redis": on_redis,
    "postgres": postgres,
    "objects": objects,
}
"""By name. Each is empty before, and gone after."""
