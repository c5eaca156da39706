"""How stores lay out what they keep: the golden session as each kind of store has it, as one text file.

    python -m tests.golden.layouts        writes layout-N for stores that have none of that number

A layout that was released has to be readable for ever, brought up to date by the store itself where it has
steps for that (SQLite at the first write, Postgres with `db upgrade`). So a new one gets a new number, and
what is here stays. The trio in it is that of schema-1.0; folders have theirs there.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest

from graflow_ckpt.checkpoint.copying import Move
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.keys import Keyring
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.postgres import PostgresStore
from tests.golden import make
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.postgres_servers import PostgresServer
from tests.servers import Server

HERE = Path(__file__).parent
NUMBER = 1
KINDS = ("sqlite", "postgres", "redis", "objects")
PREFIX = "golden"
AOF = {"appendonly": "yes", "appendfsync": "always"}  # else that store keeps no journal
TABLES = ("sessions", "lines", "checkpoints", "chunks", "segments", "frames", "contents", "holds")
"""Of Postgres, in the order in which they refer to each other."""


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
        keys = {key.decode("latin-1"): _value(client, key) for key in sorted(client.keys("*"))}
        return json.dumps(keys, indent=1) + "\n"
    found = {item["path"]: item for page in obstore.list(_bucket(url), PREFIX) for item in page}
    data = {path: bytes(obstore.get(_bucket(url), path).bytes()).decode("latin-1") for path in sorted(found)}
    return json.dumps(data, indent=1) + "\n"


def _value(client: Any, key: bytes) -> Any:
    kind = client.type(key).decode()
    text = "latin-1"
    if kind == "string":
        return [kind, client.get(key).decode(text)]
    if kind == "hash":
        return [kind, {k.decode(text): v.decode(text) for k, v in client.hgetall(key).items()}]
    if kind == "list":
        return [kind, [item.decode(text) for item in client.lrange(key, 0, -1)]]
    if kind == "set":
        return [kind, sorted(item.decode(text) for item in client.smembers(key))]
    if kind == "zset":
        return [
            kind,
            {item.decode(text): score for item, score in client.zrange(key, 0, -1, withscores=True)},
        ]
    raise NotImplementedError(f"{key!r} is a {kind}")


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
            _set(server.client(), key.encode("latin-1"), what, value)
    else:
        for path, data in json.loads(text).items():
            obstore.put(_bucket(url), path, data.encode("latin-1"))


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
    highest = max((row["commit_number"] for row in document["tables"]["checkpoints"]), default=0)
    server.ask(f"select setval('graflow_ckpt.commits', {highest + 1})", database=name)
    store.schema.upgrade()
    store.close()


def _set(client: Any, key: bytes, what: str, value: Any) -> None:
    if what == "string":
        client.set(key, value.encode("latin-1"))
    elif what == "hash":
        client.hset(key, mapping={k.encode("latin-1"): v.encode("latin-1") for k, v in value.items()})
    elif what == "list":
        client.rpush(key, *(item.encode("latin-1") for item in value))
    elif what == "set":
        client.sadd(key, *(item.encode("latin-1") for item in value))
    else:
        client.zadd(key, {item.encode("latin-1"): score for item, score in value.items()})


def _bucket(url: str) -> Any:
    from obstore.store import S3Store

    endpoint = url.partition("endpoint=")[2]
    return S3Store("bucket", endpoint=endpoint, allow_http=True, virtual_hosted_style_request=False)


# --- written once ----------------------------------------------------------------------


def main(target: Path) -> None:
    ring = Keyring.load({"GRAFLOW_CKPT_KEY": make.KEY})
    target.mkdir(exist_ok=True)
    for kind in KINDS:
        file = target / f"{kind}.{'sql' if kind == 'sqlite' else 'json'}"
        if file.exists():
            continue
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
            for variable, value in CREDENTIALS.items():
                patch.setenv(variable, value)
            origin = folder / "origin"
            origin.mkdir(0o700)
            for released in (HERE / "schema-1.0").iterdir():
                name_there = f".{released.name}" if released.suffix == ".journal" else released.name
                shutil.copyfile(released, origin / name_there)
                (origin / name_there).chmod(0o600)
            url, server = stack.enter_context(place(kind, folder))
            if kind == "postgres":
                PostgresStore(url).schema.upgrade()
            moved = Move(LocalStore(origin), open_store(url), ring, ring).session("golden")
            assert moved.error is None, moved.error
            file.write_text(dump(kind, url, server))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / f"layout-{NUMBER}")
