"""Versions of the tables: every step whole or not at all, whoever dies and however many upgrade at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import GraflowError, SchemaUnsupported, ServerError
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.postgres_link import Link
from graflow_ckpt.stores.postgres_names import parse
from graflow_ckpt.stores.postgres_schema import Migration, Schema, migrations
from tests.postgres_servers import PostgresServer
from tests.unit.stores.redis_trios import put, read

ROOT = Path(__file__).parents[3]
STEPS = (
    Migration(1, "one", "create table graflow_ckpt.one (n int)", "drop table graflow_ckpt.one"),
    Migration(2, "two", "create table graflow_ckpt.two (n int)", "drop table graflow_ckpt.two"),
    Migration(3, "three", "alter table graflow_ckpt.one add m int", "alter table graflow_ckpt.one drop m"),
)


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """Of a database without tables."""
    return postgres_server.database()


@pytest.fixture
def link(url: str) -> Iterator[Link]:
    link = Link(parse(url))
    yield link
    link.close()


def tables(server: PostgresServer, url: str) -> list[str]:
    asked = "select table_name from information_schema.tables where table_schema = 'graflow_ckpt' order by 1"
    return [name for (name,) in server.ask(asked, database=url.rpartition("/")[2])]


def things(server: PostgresServer, url: str) -> set[tuple[str, ...]]:
    """Everything of ours that a catalogue knows, with how it is made."""
    asked = """select 'column', table_name || '.' || column_name, data_type || coalesce(column_default, '')
            from information_schema.columns where table_schema = 'graflow_ckpt'
        union all select 'function', routine_name, md5(routine_definition)
            from information_schema.routines where routine_schema = 'graflow_ckpt'
        union all select 'index', indexname, indexdef from pg_indexes where schemaname = 'graflow_ckpt'"""
    return set(server.ask(asked, database=url.rpartition("/")[2]))


# --- up and down -----------------------------------------------------------------------


def test_an_upgrade_takes_the_steps_that_are_left_and_then_none(link: Link) -> None:
    schema = Schema(link, STEPS)
    assert schema.status().verdict == "none"

    assert [step.version for step in schema.upgrade(2)] == [1, 2]
    assert (schema.status().version, schema.status().verdict) == (2, "behind")
    assert [step.version for step in schema.upgrade()] == [3]

    assert schema.upgrade() == []
    assert schema.upgrade(1) == []
    status = schema.status()
    assert (status.version, status.verdict) == (3, "ready")
    assert [step.name for step in status.applied] == ["one", "two", "three"]


def test_a_downgrade_goes_back_and_leaves_nothing_at_all_behind(
    link: Link, postgres_server: PostgresServer, url: str
) -> None:
    schema = Schema(link, STEPS)
    schema.upgrade()

    assert [step.version for step in schema.downgrade(1)] == [3, 2]
    assert tables(postgres_server, url) == ["migrations", "one"]
    assert [step.version for step in schema.downgrade(0)] == [1]

    asked = "select count(*) from pg_namespace where nspname = 'graflow_ckpt'"
    assert postgres_server.ask(asked, database=url.rpartition("/")[2]) == [(0,)]
    assert schema.downgrade(0) == []


def test_up_and_down_and_up_again_is_the_same_as_up(
    link: Link, postgres_server: PostgresServer, url: str
) -> None:
    schema = Schema(link)
    states = [things(postgres_server, url)]
    for step in migrations():
        schema.upgrade(step.version)
        states.append(things(postgres_server, url))

    for step in reversed(migrations()):
        assert things(postgres_server, url) == states[step.version]
        schema.downgrade(step.version - 1)

    assert things(postgres_server, url) == states[0]
    schema.upgrade()
    assert things(postgres_server, url) == states[-1]
    assert len(set(map(frozenset, states))) == len(states)


def test_checkpoints_outlive_the_steps_that_do_not_drop_them(url: str) -> None:
    store = PostgresStore(url)
    store.schema.upgrade()
    put(store, "best", "one", size=3 << 20)
    assert store.schema.counts() == (1, 0)

    store.schema.downgrade(1)
    with pytest.raises(SchemaUnsupported, match=r"have version 1; this program needs \d"):
        PostgresStore(url).probe()
    store.schema.upgrade()

    assert read(store, "best")[1] == b"one" * (3 << 20)
    store.schema.downgrade(0)
    assert store.schema.counts() == (0, 0)
    store.close()


def test_what_is_in_our_schema_and_is_not_ours_is_not_dropped(
    link: Link, postgres_server: PostgresServer, url: str
) -> None:
    schema = Schema(link, STEPS)
    schema.upgrade()
    postgres_server.ask("create table graflow_ckpt.theirs (n int)", database=url.rpartition("/")[2])

    with pytest.raises(ServerError, match="cannot drop schema"):
        schema.downgrade(0)

    assert tables(postgres_server, url) == ["migrations", "one", "theirs"]
    assert schema.status().version == 1


@pytest.mark.parametrize("to", [-1, 7])
def test_a_version_that_there_is_not_is_refused(link: Link, to: int) -> None:
    with pytest.raises(SchemaUnsupported, match="There are: 0"):
        Schema(link, STEPS).upgrade(to)
    with pytest.raises(SchemaUnsupported, match="There are: 0"):
        Schema(link, STEPS).downgrade(to)


def test_tables_of_a_newer_program_are_left_alone(link: Link) -> None:
    Schema(link, STEPS).upgrade()
    old = Schema(link, STEPS[:2])

    for call in (old.check, old.upgrade, lambda: old.downgrade(0)):
        with pytest.raises(SchemaUnsupported, match="have version 3; this program knows 2"):
            call()
    assert old.status().verdict == "newer"
    assert Schema(link, STEPS).status().verdict == "ready"


def test_a_step_that_was_another_text_is_refused_by_its_number(link: Link) -> None:
    Schema(link, STEPS[:2]).upgrade()
    other = Schema(link, (STEPS[0], replace(STEPS[1], up="create table graflow_ckpt.two (n text)"), STEPS[2]))

    for call in (other.check, other.upgrade, lambda: other.downgrade(0)):
        with pytest.raises(SchemaUnsupported, match="another text of step 2"):
            call()
    assert (other.status().verdict, other.status().changed) == ("changed", [2])


def test_steps_are_numbered_without_a_gap_and_each_has_a_way_back() -> None:
    assert [step.version for step in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(step.up.strip() and step.down.strip() for step in migrations())


# --- half done -------------------------------------------------------------------------


def test_a_step_that_fails_has_not_happened_and_those_before_it_have(
    link: Link, postgres_server: PostgresServer, url: str
) -> None:
    broken = replace(STEPS[2], up="create table graflow_ckpt.half (n int); select 1 / 0;")

    with pytest.raises(ServerError, match="division by zero"):
        Schema(link, (*STEPS[:2], broken)).upgrade()

    assert tables(postgres_server, url) == ["migrations", "one", "two"]
    assert [step.version for step in Schema(link, STEPS).upgrade()] == [3]


def test_a_first_step_that_fails_leaves_nothing(
    link: Link, postgres_server: PostgresServer, url: str
) -> None:
    with pytest.raises(ServerError, match="division by zero"):
        Schema(link, (replace(STEPS[0], up=f"{STEPS[0].up}; select 1 / 0"),)).upgrade()

    assert tables(postgres_server, url) == []
    assert Schema(link).status().verdict == "none"


SLOW = """
import sys
from graflow_ckpt.stores.postgres_link import Link
from graflow_ckpt.stores.postgres_names import parse
from graflow_ckpt.stores.postgres_schema import Migration, Schema
from tests.unit.stores.test_postgres_schema import STEPS
slow = Migration(3, "three", "create table graflow_ckpt.half (n int); select pg_sleep(60)", "-")
Schema(Link(parse(sys.argv[1])), (*STEPS[:2], slow)).upgrade()
"""


@pytest.mark.parametrize("who", ["program", "server"])
def test_an_upgrade_in_which_somebody_is_killed_is_taken_up_where_it_was(
    link: Link, postgres_server: PostgresServer, url: str, who: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW, url], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        asked = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
        while postgres_server.ask(asked) != [(1,)]:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        if who == "program":
            os.kill(process.pid, signal.SIGKILL)
            # its backend finds out when it has something to say: it is ended as an administrator would
            postgres_server.ask(asked.replace("count(*)", "pg_terminate_backend(pid)"))
        else:
            postgres_server.restart()
        process.wait(20)

    assert tables(postgres_server, url) == ["migrations", "one", "two"]
    assert (Schema(link, STEPS).status().version, Schema(link, STEPS).status().verdict) == (2, "behind")
    assert [step.version for step in Schema(link, STEPS).upgrade()] == [3]


# --- several at once -------------------------------------------------------------------


def test_of_many_upgrades_at_once_each_step_is_taken_by_one(url: str) -> None:
    taken: list[int] = []
    failed: list[Exception] = []
    start = threading.Barrier(6)

    def work() -> None:
        link = Link(parse(url))
        start.wait()
        try:
            taken.extend(step.version for step in Schema(link).upgrade())
        except GraflowError as error:
            failed.append(error)
        link.close()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert sorted(taken) == [step.version for step in migrations()]
    store = PostgresStore(url)
    put(store, "best", "one")
    assert read(store, "best")[0] == "one"
    store.close()
