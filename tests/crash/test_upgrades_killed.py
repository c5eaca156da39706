"""Upgrades that are killed at every step: a database has the one version or the other, with all that it
held, and the next upgrade ends it. Of stores without versions of their own, golden files are read
(tests/golden).
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.drivers.postgres.link import Link
from graflow_ckpt.stores.drivers.postgres.names import parse
from graflow_ckpt.stores.drivers.postgres.schema import Schema, migrations
from graflow_ckpt.stores.drivers.sqlite import schema as sqlite_schema
from tests.crash.doomed import Doomed
from tests.crash.ways import Way, far
from tests.golden import layouts, make
from tests.postgres_servers import PostgresServer
from tests.proxy import Proxy
from tests.unit.stores.drivers.test_postgres_schema import things

pytestmark = pytest.mark.crash

LAYOUT = Path(__file__).parents[1] / "golden" / "layout-1" / "sqlite.sql"
EVERY = 11  # of the messages of a migration, one; a step has more


def tables(file: Path) -> tuple[int, list[tuple[str, str]]]:
    """The version of a SQLite database, and how all that is in it was made."""
    with closing(sqlite3.connect(file)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        asked = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        return version, connection.execute(asked).fetchall()


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """The golden session in a database of the first version."""
    file = tmp_path / "former.db"
    layouts.load("sqlite", f"sqlite:///{file}", None, LAYOUT.read_text())
    return file


@pytest.mark.parametrize("begins", ["with version 1", "with nothing"])
def test_a_sqlite_database_whose_upgrade_is_killed_has_the_one_version_or_the_other(
    begins: str, former: Path, tmp_path: Path, doomed: Doomed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", make.KEY)
    versions: list[int] = []
    for at in count(1, 2):
        file = tmp_path / f"{at}.db"
        if begins == "with version 1":
            shutil.copyfile(former, file)
        doomed.told("open", at, "sqlite", store=f"sqlite:///{file}")
        doomed.begins()
        status = doomed.ended()

        version, made = tables(file)
        versions.append(version)
        if begins == "with version 1" and version == 1:
            assert (version, made) == tables(former)
        elif version == 0:
            assert made == []
        store = open_store(f"sqlite:///{file}")
        store.probe()
        assert tables(file) == tables_of_a_new_one(tmp_path)
        if begins == "with version 1":
            ((path, found),) = history.newest(store, Keyring.load(), "golden")
            assert isinstance(found, archive.Found), path
            lease = store.acquire("golden")
            assert lease.epoch > 4
            lease.release()
        if status == 0:
            break
        assert status == -signal.SIGKILL

    assert (versions[0], versions[-1]) == (1 if "1" in begins else 0, sqlite_schema.VERSION)
    assert len(versions) > (10 if versions[0] < sqlite_schema.VERSION else 2)


def tables_of_a_new_one(folder: Path) -> tuple[int, list[tuple[str, str]]]:
    file = folder / "new.db"
    if not file.exists():
        open_store(f"sqlite:///{file}").probe()
    return tables(file)


@pytest.fixture
def way(postgres_server: PostgresServer, doomed: Doomed) -> Iterator[Way]:
    """To a database without tables."""
    with Proxy(postgres_server) as proxy:  # type: ignore[arg-type]
        yield far("postgres", postgres_server, postgres_server.database(), proxy, doomed)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_postgres_database_whose_migration_is_killed_has_taken_whole_steps(
    direction: str, way: Way, postgres_server: PostgresServer
) -> None:
    link = Link(parse(way.url))
    schema, newest = Schema(link), len(migrations())
    states = [things(postgres_server, way.url)]
    for step in migrations():
        schema.upgrade(step.version)
        states.append(things(postgres_server, way.url))
    begin, end = (0, newest) if direction == "up" else (newest, 0)
    versions: list[int] = []

    for at in way.steps(EVERY):
        moved(schema, begin)
        status = way.killed("migrate", at, to=end)

        versions.append(schema.status().version)
        assert things(postgres_server, way.url) == states[versions[-1]]
        moved(schema, end)
        assert things(postgres_server, way.url) == states[end]
        if status == 0:
            break

    link.close()
    assert (versions[0], versions[-1]) == (begin, end)
    assert set(versions) == set(range(newest + 1))


def moved(schema: Schema, to: int) -> None:
    if schema.status().version < to:
        schema.upgrade(to)
    else:
        schema.downgrade(to)
