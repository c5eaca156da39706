"""The Postgres store as the layers above use it: paths, listings, durability, and what is refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.stores import open_store_of, store_of
from graflow_ckpt.stores.drivers.postgres.names import divided, folder_of, parse
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.names import path_of
from graflow_ckpt.testing.drivers import at_once
from tests.postgres_servers import PASSWORD, PostgresServer
from tests.trios import content, held, put_holding
from tests.unit.stores.kinds import InPostgres, Kind, only
from tests.unit.stores.texts import names, own_name, parts, put, read


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    store.close()


@pytest.fixture
def role(postgres_server: PostgresServer, postgres_url: str) -> Iterator[str]:
    """The address as a user who may read and write rows, and nothing else."""
    database = postgres_url.rpartition("/")[2]
    postgres_server.ask("create role worker login password 'wpass'")
    for grant in (
        "usage on schema graflow_ckpt",
        "select, insert, update, delete on all tables in schema graflow_ckpt",
        "usage on all sequences in schema graflow_ckpt",
    ):
        postgres_server.ask(f"grant {grant} to worker", database=database)
    yield postgres_url.replace(f"graflow:{PASSWORD}", "worker:wpass")
    postgres_server.ask("drop owned by worker", database=database)
    postgres_server.ask("drop role worker")


# --- connections that end --------------------------------------------------------------


@only("postgres")
def test_a_process_of_the_server_that_is_killed_in_the_middle_of_a_save_interrupts_nothing(
    kind: InPostgres,
) -> None:
    """All others end with it, and the server looks through its log: so it does when memory runs out."""
    store = kind.open()
    lease = store.acquire("s")
    *rest, (name, meta) = parts("one", size=kind.large)

    def kill(sink: Any) -> None:
        asked = "select pid from pg_stat_activity where application_name = 'graflow-ckpt' limit 1"
        ((pid,),) = kind.ask(asked)
        os.kill(int(str(pid)), signal.SIGKILL)
        meta(sink)

    store.put(own_name(), [*rest, (name, kill)], lease=lease, stage="one")

    assert read(store, own_name()) == ("one", b"one" * kind.large, b"one")
    lease.check()
    lease.release()


@only("postgres")
def test_a_connection_that_has_forgotten_its_statements_learns_them_again(kind: Kind) -> None:
    store = kind.open()
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    put(store, own_name(1), "one", lease)
    segment.append(b"a")

    def forget() -> None:
        store._link.run(lambda connection: connection.execute("discard all"))

    forget()
    path = put(store, own_name(2), "two", lease)
    forget()
    segment.append(b"b")
    forget()
    other = put_holding(store, own_name(3), "three", [content(1)], lease=lease)
    forget()

    assert read(store, path) == ("two", b"two", b"two")
    assert held(store, other) == [content(1)]
    assert [raw for *_, raw in store.segments("s")] == [b"ab"]
    lease.release()


def test_no_save_or_load_looks_at_all_rows_however_few_there_were_at_first(
    postgres_server: PostgresServer,
) -> None:
    store = PostgresStore(postgres_server.database())
    store.schema.upgrade()

    def scans() -> Any:
        store._link.run(lambda connection: connection.execute("select pg_stat_force_next_flush()"))
        asked = "select pg_stat_get_numscans('graflow_ckpt.things'::regclass)"
        return store._link.run(lambda connection: connection.execute(asked.encode()).fetchone())

    lease, paths = store.acquire("s"), [path_of(store.folder, own_name(number)) for number in range(1, 30)]
    before = scans()
    for at, path in enumerate(paths):
        store.put(path, parts("one"), lease=lease, stage="one", drops=lambda at=at: paths[: max(0, at - 3)])
        assert read(store, path)[0] == "one"

    assert scans() == before
    lease.release()
    store.close()


def test_a_rare_fact_is_found_without_a_walk_through_all_metas(postgres_server: PostgresServer) -> None:
    store = PostgresStore(postgres_server.database())
    store.schema.upgrade()
    put(store, "named", "one")
    many = b"""insert into graflow_ckpt.things (key, tag, at, data, listed, number, session, workflow, status)
        select 'data/big/1-' || n || '/m.' || n, '', 1, '{}', 2, nextval('graflow_ckpt.numbers'), 'big', 'w',
            'running' from generate_series(1, 20000) n"""

    def read_by_number() -> Any:
        store._link.run(lambda connection: connection.execute("select pg_stat_force_next_flush()"))
        asked = b"select idx_tup_read from pg_stat_user_indexes where indexrelname = 'things_number'"
        return store._link.run(lambda connection: connection.execute(asked).fetchone())[0]

    store._link.run(lambda connection: connection.execute(many))
    store._link.run(lambda connection: connection.execute("analyze graflow_ckpt.things"))
    before = read_by_number()
    for _ in range(8):  # a plan that is kept is made at the sixth
        assert len(store.newest(5, session="s")) == len([*store.list("s")]) == 1
        assert store.newest(5, status="none") == []

    assert read_by_number() - before < 1000
    store.close()


# --- paths -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x" * 501, "a\0b", "caf\udce9", "/", "a/b"])
def test_what_cannot_be_a_name_is_refused(store: PostgresStore, name: str) -> None:
    with pytest.raises(errors.CheckpointError, match="name"):
        put(store, name, "one")


# --- durability ------------------------------------------------------------------------


def test_what_is_confirmed_is_on_the_disk_also_where_the_default_is_not_to_wait(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    database = store.folder.rpartition("/")[2]
    postgres_server.ask(f"alter database {database} set synchronous_commit = off")
    try:
        lease = store.acquire("s")
        path = put(store, own_name(), "one", lease, size=3 << 20)
        segment = store.journal(lease, 0)
        segment.append(b"frame")
        put(store, "best", "two")

        postgres_server.restart()

        assert store.synced is True
        assert read(store, path) == ("one", b"one" * (3 << 20), b"one")
        assert read(store, "best")[0] == "two"
        assert list(store.segments("s")) == [(1, 0, b"frame")]
        lease.check()
        lease.release()
    finally:
        postgres_server.ask(f"alter database {database} reset synchronous_commit")


@pytest.fixture
def nothing_synced(postgres_server: PostgresServer) -> Iterator[None]:
    """The server with fsync off."""

    def become(how: str) -> None:
        deadline = time.monotonic() + 20
        postgres_server.ask("select pg_reload_conf()")
        while postgres_server.ask("show fsync") != [(how,)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    postgres_server.ask("alter system set fsync = off")
    become("off")
    yield
    postgres_server.ask("alter system reset fsync")
    become("on")


@pytest.mark.usefixtures("nothing_synced")
def test_a_server_that_syncs_nothing_is_not_believed_and_keeps_no_journal(store: PostgresStore) -> None:
    store.probe()
    assert store.synced is False

    put(store, "best", "one")

    assert store.synced is False
    lease = store.acquire("s")
    with pytest.raises(errors.CheckpointError, match="fsync = on"):
        store.journal(lease, 0)
    lease.release()


# --- what is wrong with a server -------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ((f":{PASSWORD}@", ":hunter3@"), errors.ServerRefuses),
        (("graflow:", "nobody:"), errors.ServerRefuses),
        (("/test_", "/none_"), errors.ServerError),
        (("127.0.0.1", "nohost.invalid"), errors.ServerGone),
        (("@127", "@127"), None),
    ],
)
def test_what_is_wrong_is_told_at_once_and_without_the_password(
    postgres_url: str, change: tuple[str, str], kind: type[Exception] | None
) -> None:
    store = PostgresStore(postgres_url.replace(*change))
    if kind is None:
        store.probe()
        store.close()
        return

    with pytest.raises(kind) as refused:
        store.probe()

    assert type(refused.value) is kind
    assert "hunter" not in f"{refused.value}{refused.value.ids}{refused.value.__cause__}"


def test_an_option_that_is_none_is_refused(postgres_url: str) -> None:
    with pytest.raises(errors.ServerError, match="speed"):
        PostgresStore(f"{postgres_url}?speed=high").probe()


def test_a_database_without_tables_says_how_to_make_them(postgres_server: PostgresServer) -> None:
    store = PostgresStore(postgres_server.database())

    for call in (store.probe, lambda: put(store, "best", "one"), lambda: list(store.list())):
        with pytest.raises(errors.SchemaUnsupported, match="graflow-ckpt db upgrade"):
            call()
    assert store.schema.status().version == 0
    store.close()


def test_tables_that_go_while_it_works_are_missed_by_name(postgres_server: PostgresServer) -> None:
    store = PostgresStore(postgres_server.database())
    store.schema.upgrade()
    put(store, "best", "one")
    store.schema.downgrade(0)

    for call in (lambda: put(store, "best", "two"), lambda: store.meta("best")):
        with pytest.raises(errors.SchemaUnsupported, match="graflow-ckpt db upgrade"):
            call()
    store.close()


def test_a_user_needs_no_more_than_to_read_and_write_rows(role: str) -> None:
    store = PostgresStore(role)
    store.probe()
    lease = store.acquire("s")

    path = put(store, own_name(), "one", lease, size=3 << 20)

    assert read(store, path)[0] == "one"
    assert store.delete(path) is True
    with pytest.raises(errors.ServerRefuses, match="must be owner"):
        store.schema.downgrade(0)
    lease.release()
    store.close()


def test_a_user_who_may_only_read_is_refused_by_name(role: str, postgres_server: PostgresServer) -> None:
    revoked = "revoke insert, update, delete on all tables in schema graflow_ckpt from worker"
    postgres_server.ask(revoked, database=role.rpartition("/")[2])
    store = PostgresStore(role)

    assert names(store) == []
    with pytest.raises(errors.CheckpointError, match="permission denied") as refused:
        put(store, "best", "one")

    assert isinstance(refused.value.__cause__, errors.ServerRefuses)
    assert "wpass" not in str(refused.value)
    store.close()


def test_a_server_that_takes_no_writes_is_found_out_by_the_probe(
    role: str, postgres_server: PostgresServer
) -> None:
    postgres_server.ask("alter role worker set default_transaction_read_only = on")
    store = PostgresStore(role)

    with pytest.raises(errors.ServerReadOnly, match="read-only"):
        store.probe()

    store.close()


# --- processes and threads -------------------------------------------------------------


@only("postgres")
def test_a_child_that_is_forked_while_a_thread_waits_for_the_server_does_not_wait_for_that_thread(
    kind: Kind,
) -> None:
    said = kind.run("""
path = put(store, "first", "parent")
with store._link._connections._turn:  # as a thread has it that gets a connection
    if not os.fork():
        signal.alarm(20)
        read(store, path)
        os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
""")

    assert said == ["0"]


def test_more_threads_than_connections_get_their_turn(store: PostgresStore) -> None:
    def work(number: int) -> None:
        for n in range(5):
            put(store, f"t{number}", f"{number}.{n}")

    at_once([partial(work, number) for number in range(24)])

    assert sorted(read(store, f"t{number}")[0] for number in range(24)) == sorted(f"{n}.4" for n in range(24))


# --- names and addresses ----------------------------------------------------------------


SECRET = "hun%2Fter2"


@pytest.mark.parametrize(
    ("where", "folder"),
    [
        ("postgresql://h/d", "postgresql://h:5432/d"),
        ("POSTGRES://u:p@h:1/d", "postgresql://h:1/d"),
        ("postgresql://a,b:7/d?sslmode=require", "postgresql://a:5432,b:7/d"),
        ("postgresql://[::1]:9/d", "postgresql://[::1]:9/d"),
        ("postgresql:///d", "postgresql://localhost:5432/d"),
        ("postgresql:///d?host=/run/pg&port=9", "postgresql://%2Frun%2Fpg:9/d"),
        ("postgresql://%2Frun%2Fpg:9/d", "postgresql://%2Frun%2Fpg:9/d"),
        ("postgresql://h/a%20b", "postgresql://h:5432/a%20b"),
    ],
)
def test_a_store_has_one_name_without_who_asks(where: str, folder: str) -> None:
    assert folder_of(where) == folder
    assert folder_of(folder) == folder


def test_libpq_is_told_all_that_the_address_says() -> None:
    address = parse(f"postgresql://me%40x:{SECRET}@a,[::1]:7/d%20b?sslmode=require")

    assert address.arguments() == {
        "host": "a,::1",
        "port": "5432,7",
        "dbname": "d b",
        "user": "me@x",
        "password": "hun/ter2",
        "sslmode": "require",
    }


def test_a_socket_is_told_as_a_folder() -> None:
    assert parse("postgresql:///d?host=/run/pg").arguments()["host"] == "/run/pg"


def test_what_is_shown_holds_no_secret() -> None:
    for where in (f"postgresql://me:{SECRET}@h/d", f"postgresql://h/d?user=me&password={SECRET}"):
        address = parse(where)

        assert address.arguments()["password"] == "hun/ter2"
        for text in (str(address), repr(address)):
            assert "hun" not in text
            assert "me" not in text


@pytest.mark.parametrize(
    "where",
    [
        f"postgresql://me:{SECRET}@h",
        f"postgresql://me:{SECRET}@h/",
        f"postgresql://me:{SECRET}@h:x/d",
        f"postgresql://me:{SECRET}@h:99999/d",
        f"postgresql://me:{SECRET}@h/d#f",
        f"postgresql://me:a@{SECRET}@h/d",
        f"postgresql://me:a/{SECRET}@h/d",
        f"postgresql://me:a?{SECRET}@h/d",
        f"postgresql://me:{SECRET}@h/d/a/b",
        f"mysql://me:{SECRET}@h/d",
    ],
)
def test_what_cannot_be_read_is_refused_without_being_shown(where: str) -> None:
    with pytest.raises(errors.CheckpointError if "/a/b" in where else errors.BadAddress) as refused:
        parse(divided(where)[0])

    assert "hun" not in f"{refused.value} {refused.value.ids}"


def test_a_path_is_a_store_and_a_name() -> None:
    own = "session_s_step_1_1700000000-1"

    assert divided(f"postgresql://u:{SECRET}@h/d/best?sslmode=disable") == (
        f"postgresql://u:{SECRET}@h/d?sslmode=disable",
        "best",
    )
    assert divided("postgresql://h/d/best.state.json")[1] == "best"
    assert divided("postgresql://h/d")[1] == ""
    assert path_of("postgresql://h:1/d", own) == f"postgresql://h:1/d/{own}.pkl"
    assert path_of("postgresql://h:1/d", "best") == "postgresql://h:1/d/best"
    assert store_of("postgresql://h:1/d/best") == "postgresql://h:1/d"
    assert (
        open_store_of("postgresql://h:1/d/best").takes("postgres://h:1/d/best") == "postgresql://h:1/d/best"
    )


def test_credentials_are_those_that_have_opened_it_or_those_of_the_environment() -> None:
    text = parse("postgresql://remembered/d")
    environment = {"GRAFLOW_CKPT_STORE": f"postgresql://env:{SECRET}@remembered/d/name?sslmode=require"}
    assert text.with_credentials({}).secrets == {}
    assert text.with_credentials(environment).arguments()["sslmode"] == "require"
    assert text.with_credentials(environment).secrets["user"] == "env"
    assert parse("postgresql://other/d").with_credentials(environment).secrets == {}

    parse(f"postgresql://me:{SECRET}@remembered/d?sslmode=disable").remember()

    assert text.with_credentials(environment).secrets == {"user": "me", "password": "hun/ter2"}
    assert text.with_credentials(environment).options == {"sslmode": "disable"}
    own = parse("postgresql://own@remembered/d").with_credentials(environment)
    assert own.secrets == {"user": "own"}
