"""What puts the storage of each store back to an older state, as a backup or a failover does (`Snapshot`).

Stores stay open meanwhile, and files stay the same files: to put others in their place would be found out
by that alone. Of a bucket only the head of the session goes back: what has been written beside it stays.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg

from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.head import head_key
from tests.conformance.contracts.fencing import Snapshot
from tests.servers import Server


def in_memory(place: str) -> Snapshot:
    room = MemoryStore(place).room

    def copy() -> Callable[[], None]:
        kept = room.things.copy(), room.keys.copy(), room.rows.copy(), room.size

        def put_back() -> None:
            with room.locked():
                things, keys, rows, room.size = kept
                room.things, room.keys, room.rows = things.copy(), keys.copy(), rows.copy()

        return put_back

    return copy


def in_folder(folder: Path) -> Snapshot:
    def copy() -> Callable[[], None]:
        kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

        def put_back() -> None:
            for path in [path for path in folder.rglob("*") if path.is_file() and path not in kept]:
                path.unlink()
            for path, data in kept.items():
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with open(fd, "wb") as file:
                    file.write(data)

        return put_back

    return copy


def in_sqlite(file: Path) -> Snapshot:
    def copy() -> Callable[[], None]:
        kept = file.with_name(f"{file.name}-{uuid.uuid4().hex}")
        _copied(file, kept)
        return partial(_copied, kept, file)

    return copy


def _copied(origin: Path, target: Path) -> None:
    with closing(sqlite3.connect(origin)) as source, closing(sqlite3.connect(target, timeout=30)) as copy:
        source.backup(copy)


def in_redis(server: Server) -> Snapshot:
    def copy() -> Callable[[], None]:
        client = server.client()
        kept = {key: (max(client.pttl(key), 0), client.dump(key)) for key in client.keys("*")}

        def put_back() -> None:
            client.flushall()
            for key, (lives, data) in kept.items():
                client.restore(key, lives, data)

        return put_back

    return copy


def in_postgres(url: str) -> Snapshot:
    tables = ["graflow_ckpt.things"]

    def copy() -> Callable[[], None]:
        kept: dict[str, bytes] = {}
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            for table in tables:
                with cursor.copy(f"copy {table} to stdout".encode()) as rows:
                    kept[table] = b"".join(map(bytes, rows))

        def put_back() -> None:
            with psycopg.connect(url) as connection, connection.cursor() as cursor:
                cursor.execute(f"truncate {', '.join(tables)}".encode())
                for table, data in kept.items():
                    with cursor.copy(f"copy {table} from stdin".encode()) as rows:
                        rows.write(data)

        return put_back

    return copy


def in_head(url: str, session: str = "s") -> Snapshot:
    def copy() -> Callable[[], None]:
        bucket = ObjectStore(url).bucket
        head = bucket.get(head_key(session))
        assert head is not None
        return partial(bucket.put, head_key(session), head.data)

    return copy
