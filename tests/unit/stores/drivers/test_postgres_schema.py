"""Versions of the tables: every step whole or not at all, whoever dies and however many upgrade at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from graflow_ckpt.core.errors import GraflowError, SchemaUnsupported, ServerError, ServerGone
from graflow_ckpt.stores.drivers.postgres.link import Link
from graflow_ckpt.stores.drivers.postgres.names import parse
from graflow_ckpt.stores.drivers.postgres.schema import Migration, Schema, migrations
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.testing.drivers import at_once
from tests.postgres_servers import PostgresServer
from tests.unit.stores.texts import own_name, put, read

ROOT = Path(__file__).parents[4]
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


def test_what_a_downgrade_would_take_away_is_counted(url: str) -> None:
    store = PostgresStore(url)
    store.schema.upgrade()
    put(store, "best", "one")
    put(store, own_name(), "one", store.acquire("s"))
    assert store.schema.counts() == (2, 1)

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


GATE = 99
SLOW = """
import sys
from dataclasses import replace
from graflow_ckpt.stores.drivers.postgres.link import Link
from graflow_ckpt.stores.drivers.postgres.names import parse
from graflow_ckpt.stores.drivers.postgres.schema import Schema
from tests.unit.stores.drivers.test_postgres_schema import GATE, STEPS
wait = f"; select pg_advisory_xact_lock({GATE})"
if sys.argv[2] == "up":
    slow = replace(STEPS[2], up="create table graflow_ckpt.half (n int)" + wait)
    Schema(Link(parse(sys.argv[1])), (*STEPS[:2], slow)).upgrade()
else:
    slow = replace(STEPS[2], down=STEPS[2].down + wait)
    Schema(Link(parse(sys.argv[1])), (*STEPS[:2], slow)).downgrade(0)
"""


@contextmanager
def in_its_last_step(server: PostgresServer, url: str, way: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun the third step, and cannot end it before the block does."""
    with closing(psycopg.connect(url, autocommit=True)) as gate:
        gate.execute("select pg_advisory_lock(%s)", [GATE])
        command = [sys.executable, "-c", SLOW, url, way]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: waiting(server) == 1, process)
            try:
                yield process
            finally:
                process.kill()


def waiting(server: PostgresServer) -> int:
    """How many wait for a lock in a database of this test."""
    ((count,),) = server.ask("select count(*) from pg_locks where not granted and locktype = 'advisory'")
    return int(count)


def wait_until(comes: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 20
    while not comes():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize("who", ["program", "server"])
def test_an_upgrade_in_which_somebody_is_killed_is_taken_up_where_it_was(
    link: Link, postgres_server: PostgresServer, url: str, who: str
) -> None:
    with in_its_last_step(postgres_server, url, "up") as process:
        if who == "program":
            process.kill()
        else:
            postgres_server.restart()
        process.wait(20)

    # where the program was killed, its backend ends the step, has nobody to tell, and takes it back
    assert [step.version for step in Schema(link, STEPS).upgrade()] == [3]
    assert tables(postgres_server, url) == ["migrations", "one", "two"]
    assert Schema(link, STEPS).status().verdict == "ready"


@pytest.mark.parametrize("who", ["program", "server"])
def test_a_downgrade_in_which_somebody_is_killed_has_taken_whole_steps(
    link: Link, postgres_server: PostgresServer, url: str, who: str
) -> None:
    Schema(link, STEPS).upgrade()
    link.close()  # it would find out later that the server has gone
    with in_its_last_step(postgres_server, url, "down") as process:
        if who == "program":
            process.kill()
        else:
            postgres_server.restart()
        process.wait(20)

    assert Schema(link, STEPS).upgrade() == []  # waits for who was killed; nothing had happened
    asked = "select column_name from information_schema.columns where table_name = 'one' order by 1"
    assert postgres_server.ask(asked, database=url.rpartition("/")[2]) == [("m",), ("n",)]
    assert [step.version for step in Schema(link, STEPS).downgrade(0)] == [3, 2, 1]


# --- several at once -------------------------------------------------------------------


def test_of_many_upgrades_at_once_each_step_is_taken_by_one(url: str) -> None:
    taken: list[int] = []

    def work() -> None:
        link = Link(parse(url))
        try:
            taken.extend(step.version for step in Schema(link).upgrade())
        finally:
            link.close()

    at_once([work] * 6)

    assert sorted(taken) == [step.version for step in migrations()]
    store = PostgresStore(url)
    put(store, "best", "one")
    assert read(store, "best")[0] == "one"
    store.close()


def test_who_waits_for_an_upgrade_that_is_killed_takes_the_steps_that_it_has_not(
    postgres_server: PostgresServer, url: str
) -> None:
    taken: list[int] = []
    other = Link(parse(url))
    second = threading.Thread(
        target=lambda: taken.extend(step.version for step in Schema(other, STEPS).upgrade())
    )
    with in_its_last_step(postgres_server, url, "up") as process:
        second.start()
        wait_until(lambda: waiting(postgres_server) == 2, process)
        process.kill()
        process.wait(20)
    second.join(20)

    assert taken == [3]
    assert tables(postgres_server, url) == ["migrations", "one", "two"]
    other.close()


def test_a_routine_that_is_made_anew_while_it_is_called_may_pass(link: Link) -> None:
    said = "do $$ begin raise exception using errcode = 'XX000', message = '{}'; end $$"

    with pytest.raises(ServerGone, match="changes its tables just now"):
        link.run(lambda c: c.execute(said.format("cache lookup failed for function 7").encode()))
    with pytest.raises(ServerError, match="answers with an error") as other:
        link.run(lambda c: c.execute(said.format("something else").encode()))

    assert not isinstance(other.value, ServerGone)


def test_a_save_and_an_upgrade_at_once_are_one_after_the_other(
    postgres_server: PostgresServer, url: str
) -> None:
    """Whoever is first: the checkpoint is there, or it is said that the tables are not."""
    store = PostgresStore(url)
    store.schema.upgrade()
    put(store, "best", "one")
    failed: list[Exception] = []

    def save() -> None:
        for number in range(30):
            try:
                put(store, f"n{number}", "one")
            except GraflowError as error:
                failed.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    for _ in range(3):
        store.schema.downgrade(1)
        store.schema.upgrade()
    thread.join()

    odd = [str(error) for error in failed if "lacks what this version needs" not in str(error)]
    assert odd == []
    assert {read(store, path)[0] for path, _ in store.list()} == {"one"}
    assert len(list(store.list())) == 31 - len(failed)
    store.close()
