"""How stores lay out what they keep: two sessions as each kind of store has them, as one text file.

    python -m tests.golden.layouts        writes layout-N where there is none

A layout that was released has to be readable for ever, brought up to date by the store itself where it has
steps for that (SQLite at the first write, Postgres with `db upgrade`). So a new one gets a new number, and
what is here stays. The golden session has the trio of schema-1.0, and folders have theirs there. In the
other one checkpoints have contents in common; one of those is damaged, and a save has died.
"""

from __future__ import annotations

import json
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest

from graflow_ckpt.checkpoint.care.copying import Move
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.stores import lease as lease_module
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.golden import make
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.postgres_servers import PostgresServer
from tests.servers import Server
from tests.trios import content, name_of, own_name, put_holding

HERE = Path(__file__).parent
NUMBER = 1
KINDS = ("sqlite", "postgres", "redis", "objects")
PREFIX = "golden"
AOF = {"appendonly": "yes", "appendfsync": "always"}  # else that store keeps no journal
TABLES = ("things",)
"""Of Postgres."""


@contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """The address of an empty store, and its server if it has one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/golden.db", None
    elif kind == "postgres":
        with PostgresServer() as postgres:
            yield postgres.database(), postgres
    elif kind == "redis":
        with Server(AOF) as redis:
            yield redis.url, redis
    else:
        with ObjectServer() as objects:
            yield objects.at(PREFIX), objects


# --- values of Redis -------------------------------------------------------------------

TEXT = "latin-1"


def _raw(values: Iterable[str]) -> list[bytes]:
    return [value.encode(TEXT) for value in values]


READ: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda client, key: client.get(key).decode(TEXT),
    "hash": lambda client, key: {k.decode(TEXT): v.decode(TEXT) for k, v in client.hgetall(key).items()},
    "zset": lambda client, key: {i.decode(TEXT): s for i, s in client.zrange(key, 0, -1, withscores=True)},
}
WRITE: dict[str, Callable[[Any, bytes, Any], Any]] = {
    "string": lambda client, key, value: client.set(key, value.encode(TEXT)),
    "hash": lambda client, key, value: client.hset(
        key, mapping=dict(zip(_raw(value), _raw(value.values()), strict=True))
    ),
    "zset": lambda client, key, value: client.zadd(key, dict(zip(_raw(value), value.values(), strict=True))),
}


# --- out -------------------------------------------------------------------------------


def dump(kind: str, url: str, server: Any) -> str:
    """All that is in the store."""
    if kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            numbers = [
                f"PRAGMA {name} = {database.execute(f'PRAGMA {name}').fetchone()[0]};"
                for name in ("application_id", "user_version")
            ]
            return "\n".join([*numbers, *database.iterdump()]) + "\n"
    if kind == "postgres":
        rows = "select coalesce(json_agg(t), '[]') from graflow_ckpt.{} t"
        name = url.rpartition("/")[2]
        version = PostgresStore(url).schema.status().version
        found = {table: server.ask(rows.format(table), database=name)[0][0] for table in TABLES}
        return json.dumps({"version": version, "tables": found}, indent=1) + "\n"
    if kind == "redis":
        client = server.client()
        keys = {}
        for key in sorted(client.keys("*")):
            kind = client.type(key).decode()
            keys[key.decode(TEXT)] = [kind, READ[kind](client, key)]
        return json.dumps(keys, indent=1) + "\n"
    found = {item["path"]: item for page in obstore.list(_bucket(url), PREFIX) for item in page}
    data = {path: bytes(obstore.get(_bucket(url), path).bytes()).decode(TEXT) for path in sorted(found)}
    return json.dumps(data, indent=1) + "\n"


# --- in --------------------------------------------------------------------------------


def load(kind: str, url: str, server: Any, text: str) -> None:
    """Into an empty store, as it was when it was written."""
    if kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            database.executescript(text)
        Path(url.removeprefix("sqlite:///")).chmod(0o600)
    elif kind == "postgres":
        _load_postgres(url, server, json.loads(text))
    elif kind == "redis":
        for key, (what, value) in json.loads(text).items():
            WRITE[what](server.client(), key.encode(TEXT), value)
    else:
        for path, data in json.loads(text).items():
            obstore.put(_bucket(url), path, data.encode(TEXT))


def _load_postgres(url: str, server: Any, document: Any) -> None:
    store = PostgresStore(url)
    store.schema.upgrade(document["version"])
    name = url.rpartition("/")[2]
    for table, rows in document["tables"].items():
        if rows:
            said = json.dumps(rows).replace("'", "''")
            server.ask(
                f"insert into graflow_ckpt.{table} overriding system value "
                f"select * from json_populate_recordset(null::graflow_ckpt.{table}, '{said}')",
                database=name,
            )
    highest = max(row["number"] or 0 for row in document["tables"]["things"])
    server.ask(f"select setval('graflow_ckpt.numbers', {highest})", database=name)
    store.schema.upgrade()
    store.close()


def _bucket(url: str) -> Any:
    from obstore.store import S3Store

    endpoint = url.partition("endpoint=")[2]
    return S3Store("bucket", endpoint=endpoint, allow_http=True, virtual_hosted_style_request=False)


# --- written once ----------------------------------------------------------------------


def golden(folder: Path, url: str) -> None:
    """The golden session, copied."""
    ring = Keyring.load({"GRAFLOW_CKPT_KEY": make.KEY})
    origin = folder / "origin"
    origin.mkdir(0o700)
    for released in (HERE / "schema-1.0").iterdir():
        name_there = f".{released.name}" if released.suffix == ".journal" else released.name
        shutil.copyfile(released, origin / name_there)
        (origin / name_there).chmod(0o600)
    if url.startswith("postgres"):
        PostgresStore(url).schema.upgrade()
    moved = Move(LocalStore(origin), open_store(url), ring, ring).session("golden")
    assert moved.error is None, moved.error


SOME = [content(number, 300) for number in range(4)]
PID = 2**22 + 1  # above all that a kernel gives out
OWNER = Owner(PID, "1", "boot", "1", "golden", "golden.py", "2026-11-19T00:00:00Z")


def contents(url: str) -> None:
    """A session with an owner that has died, one content that is damaged, and a save that never ended."""
    store = open_store(url)
    assert store.contents is not None
    lease = store.acquire("s")
    first = put_holding(store, own_name(sequence=1), "one", SOME[:2], lease=lease)
    store.contents.distrust(first, name_of(SOME[1]), "one")
    lease.check()  # the head has changed
    put_holding(store, own_name(sequence=2), "two", [SOME[0], SOME[2]], lease=lease, sequence=2)
    put_holding(store, "best", "three", SOME[2:], lease=lease)
    store.contents.saving(own_name(sequence=3), lease=None, stage="four").hold([name_of(SOME[2])])


def written(folder: Path, url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "node", lambda: "golden")
        patch.setattr(lease_module, "myself", lambda: OWNER)
        golden(folder, url)
        contents(url)


def main() -> None:
    for kind in KINDS:
        file = HERE / f"layout-{NUMBER}" / f"{kind}.{'sql' if kind == 'sqlite' else 'json'}"
        if file.exists():
            continue
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            for variable, value in {"GRAFLOW_CKPT_KEY": make.KEY, **CREDENTIALS}.items():
                patch.setenv(variable, value)
            with place(kind, Path(folder)) as (url, server):
                written(Path(folder), url)
                file.parent.mkdir(exist_ok=True)
                file.write_text(dump(kind, url, server))


if __name__ == "__main__":
    main()
