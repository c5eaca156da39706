"""The trio in Postgres: whole or not at all, whoever dies, races, or is not answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    Fenced,
    SaveOutcomeUnknown,
    ServerGone,
)
from graflow_ckpt.stores import postgres_chunks, postgres_link
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.postgres_chunks import LIFE
from graflow_ckpt.stores.postgres_link import Connection
from graflow_ckpt.testing.holdings import content, held, put_holding
from tests.postgres_servers import PostgresServer
from tests.proxy import Proxy
from tests.unit.stores.redis_trios import own_name, parts, put, read

ROOT = Path(__file__).parents[3]
CHUNK = 1 << 16


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else these tests move gigabytes, to no other end."""
    monkeypatch.setattr(postgres_chunks, "CHUNK", CHUNK)


class Rows:
    """What stands in the tables."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self.database = url.rpartition("/")[2]

    def ask(self, statement: str, *args: object) -> list[tuple[object, ...]]:
        return self.server.ask(statement, *args, database=self.database)

    def chunks(self) -> list[tuple[object, ...]]:
        return self.ask("select put, part, number from graflow_ckpt.chunks order by 1, 2, 3")

    def lost(self, *columns: str) -> None:
        """The last chunks of some parts are not there any more."""
        self.ask(f"update graflow_ckpt.checkpoints set {', '.join(f'{column} = null' for column in columns)}")

    def staged(self) -> int:
        return len(self.ask("select put from graflow_ckpt.staging"))


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    store.close()


@pytest.fixture
def rows(postgres_server: PostgresServer, postgres_url: str) -> Rows:
    return Rows(postgres_server, postgres_url)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server) as proxy:  # type: ignore[arg-type]
        yield proxy


@pytest.fixture
def far(proxy: Proxy, rows: Rows, postgres_url: str) -> Iterator[PostgresStore]:
    """The same store, through a proxy. Unencrypted, so that the proxy can look for what passes."""
    store = PostgresStore(f"{proxy.url.rpartition('/')[0]}/{rows.database}?sslmode=disable")
    yield store
    proxy.resume()
    store.close()


# --- whole -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [own_name(), "best"])
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_what_was_put_is_read(store: PostgresStore, rows: Rows, name: str, size: int) -> None:
    path = put(store, name, "x", size=size)

    assert read(store, path) == ("x", b"x" * size, b"x")
    assert len([chunk for chunk in rows.chunks() if chunk[1] == "pkl"]) == max(0, (size - 1) // CHUNK)
    assert rows.staged() == 0


@pytest.mark.parametrize("step", [1, 1 << 10, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_what_was_written_in_any_pieces_is_read_in_any_pieces(store: PostgresStore, step: int) -> None:
    data = bytes(range(256)) * (CHUNK // 100) if step > 1 else bytes(range(256))
    buffer = bytearray(data)

    def write(sink: object) -> None:
        for at in range(0, len(data), step):
            piece = memoryview(buffer)[at : at + step]
            assert sink.write(piece) == len(piece)  # type: ignore[attr-defined]
            buffer[at : at + step] = bytes(len(piece))  # the sender's buffer is its own again

    store.put("best", [("pkl", write), *parts("one")[1:]], lease=None, stage="one")

    source, found = store.open("best", "pkl", "one"), bytearray()
    place = memoryview(bytearray(step))
    while count := source.readinto(place):
        found += place[:count]
    assert bytes(found) == data
    source.close()
    assert source.readinto(place) == 0


def test_a_newer_one_takes_the_place_of_an_older_and_its_chunks_go(store: PostgresStore, rows: Rows) -> None:
    path = put(store, "best", "one", size=CHUNK)
    assert len(rows.chunks()) == 2

    assert put(store, "best", "two") == path

    assert read(store, path) == ("two", b"two", b"two")
    assert rows.chunks() == []


def test_a_meta_alone_leaves_the_other_parts_as_they_are(store: PostgresStore, rows: Rows) -> None:
    path = put(store, "best", "one", size=CHUNK)
    before = rows.chunks()
    meta = json.dumps({"stage": "one", "sealed": "anew"}).encode()

    store.put(path, [("meta.json", lambda sink: sink.write(meta))], lease=None, stage="one")

    assert store.meta(path) == meta
    assert read(store, path) == ("one", b"one" * CHUNK, b"one")
    assert rows.chunks() == before
    put(store, "best", "two")
    assert rows.chunks() == []


def test_some_parts_alone_leave_the_others_as_they_are(store: PostgresStore) -> None:
    path = put(store, "best", "one", size=CHUNK)
    _, _, meta = parts("one")

    store.put(path, [("state.json", lambda sink: sink.write(b"anew")), meta], lease=None, stage="one")

    assert read(store, path) == ("one", b"one" * CHUNK, b"anew")


def test_deleting_takes_all_of_it_and_says_whether_there_was_one(store: PostgresStore, rows: Rows) -> None:
    put(store, "stays", "one", size=CHUNK)
    for name in (own_name(), "best"):
        path = put(store, name, "one", size=CHUNK)

        assert store.delete(path) is True
        assert store.delete(path) is False
        with pytest.raises(CheckpointNotFound):
            store.meta(path)
        with pytest.raises(CheckpointNotFound):
            store.open(path, "pkl", "one")

    assert len(rows.chunks()) == 2
    assert [path for path, _ in store.list()] == [f"{store.folder}/stays"]


@pytest.mark.parametrize("read_before", [1, 2])
def test_a_reader_whose_chunks_go_finds_out(store: PostgresStore, read_before: int) -> None:
    path = put(store, "best", "one", size=CHUNK)
    source = store.open(path, "pkl", "one")
    buffer = memoryview(bytearray(3 * CHUNK))
    for _ in range(read_before):
        assert source.readinto(buffer) == CHUNK

    put(store, "best", "two", size=CHUNK)

    with pytest.raises(CheckpointCorrupt, match=f"lacks chunk {read_before}"):
        source.readinto(buffer)
    with pytest.raises(CheckpointCorrupt, match="belongs to its meta"):
        store.open(path, "pkl", "one")


def test_chunks_that_somebody_has_deleted_are_missed(store: PostgresStore, rows: Rows) -> None:
    path = put(store, "small", "one")
    rows.lost("pkl")
    with pytest.raises(CheckpointCorrupt, match="has no pkl"):
        store.open(path, "pkl", "one")

    path = put(store, "large", "one", size=CHUNK)
    rows.ask("delete from graflow_ckpt.chunks where number = 0")
    with pytest.raises(CheckpointCorrupt, match="has no pkl"):
        store.open(path, "pkl", "one")


@pytest.mark.parametrize("wrong", [["pkl"], ["meta.json", "pkl"], ["other", "meta.json"]])
def test_parts_are_those_of_a_trio_meta_last(store: PostgresStore, wrong: list[str]) -> None:
    with pytest.raises(ValueError, match="parts are some of"):
        store.put(f"{store.folder}/best", [(name, print) for name in wrong], lease=None, stage="one")


# --- or not at all ---------------------------------------------------------------------


@pytest.mark.parametrize("part", ["pkl", "state.json", "meta.json"])
def test_a_part_that_cannot_be_written_leaves_what_was_there(
    store: PostgresStore, rows: Rows, part: str
) -> None:
    path = put(store, "best", "one")
    before = rows.chunks()

    def fail(sink: object) -> None:
        raise OSError("cannot be pickled")

    broken = [(name, fail if name == part else writer) for name, writer in parts("two", size=2 * CHUNK)]
    with pytest.raises(OSError, match="cannot be pickled"):
        store.put(path, broken, lease=None, stage="two")

    assert read(store, path)[0] == "one"
    assert rows.chunks() == before
    assert rows.staged() == 0


@pytest.mark.parametrize("name", [own_name(), "best"])
def test_a_writer_that_is_killed_before_its_commit_leaves_the_old_one_and_what_the_next_owner_clears_away(
    store: PostgresStore, rows: Rows, postgres_url: str, name: str
) -> None:
    lease = store.acquire("s")
    path = put(store, name, "one", lease)
    lease.release()
    before = rows.chunks()
    program = f"""
import os, signal
from graflow_ckpt.stores import postgres_chunks
from graflow_ckpt.stores.postgres import PostgresStore
from tests.unit.stores.redis_trios import parts
postgres_chunks.CHUNK = {CHUNK}
store = PostgresStore({postgres_url!r})
lease = store.acquire("s")
*rest, _ = parts("two", size={3 * CHUNK})
die = ("meta.json", lambda sink: os.kill(os.getpid(), signal.SIGKILL))
store.put({path!r}, [*rest, die], lease=lease, stage="two")
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL

    assert read(store, path)[0] == "one"
    assert len(set(rows.chunks()) - set(before)) == 8  # all but the last, which is kept for the commit
    assert rows.staged() == 1

    store.acquire("s").release()

    assert rows.chunks() == before
    assert rows.staged() == 0


def test_an_owner_clears_away_nothing_of_those_who_are_alive(store: PostgresStore) -> None:
    other = store.acquire("t")
    (name, values), *rest = parts("one", size=2 * CHUNK)

    def slow(sink: object) -> None:
        values(sink)  # type: ignore[arg-type]
        store.acquire("s").release()

    for lease in (None, other):
        for path in ("best", own_name(session="t")):
            store.put(path, [(name, slow), *rest], lease=lease, stage="one")

            assert read(store, path) == ("one", b"one" * 2 * CHUNK, b"one")
    other.release()


def test_what_is_older_than_a_chunk_lives_is_cleared_away_whoever_wrote_it(
    store: PostgresStore, rows: Rows
) -> None:
    for put_id, age in (("old", LIFE + 5), ("young", LIFE - 60)):
        begun = "clock_timestamp() - %s * interval '1 second'"
        rows.ask(f"insert into graflow_ckpt.staging values (%s, '', 0, {begun})", put_id, age)
        rows.ask(
            "insert into graflow_ckpt.chunks values (%s, 'pkl', 0, 'x'), (%s, 'pkl', 1, 'x')", *[put_id] * 2
        )

    store.acquire("s").release()

    assert rows.staged() == 1
    assert rows.chunks() == [("young", "pkl", 0), ("young", "pkl", 1)]


def test_who_was_fenced_clears_away_nothing_of_who_came_after(store: PostgresStore, rows: Rows) -> None:
    store.probe()
    for epoch in (4, 5, 6):
        rows.ask("insert into graflow_ckpt.staging values (%s, 's', %s)", f"put{epoch}", epoch)
    rows.ask("insert into graflow_ckpt.staging values ('put7', 't', 1)")

    assert rows.ask("select graflow_ckpt.sweep('s', 5, 3600)") == [(1,)]

    assert rows.ask("select put from graflow_ckpt.staging order by 1") == [("put5",), ("put6",), ("put7",)]


def test_chunks_that_are_gone_at_the_commit_make_no_checkpoint(store: PostgresStore, rows: Rows) -> None:
    path = put(store, "best", "one")
    before = rows.chunks()
    *rest, (name, meta) = parts("two", size=2 * CHUNK)

    def late(sink: object) -> None:
        rows.ask("delete from graflow_ckpt.chunks where part = 'pkl' and number = 3")
        meta(sink)  # type: ignore[arg-type]

    with pytest.raises(CheckpointError, match="chunks of its pkl are gone"):
        store.put(path, [*rest, (name, late)], lease=None, stage="two")

    assert read(store, path)[0] == "one"
    assert rows.chunks() == before


# --- a server that goes away -----------------------------------------------------------


def test_a_server_that_is_killed_in_the_middle_of_a_save_and_is_back_interrupts_nothing(
    store: PostgresStore, rows: Rows, postgres_server: PostgresServer
) -> None:
    lease = store.acquire("s")
    *rest, (name, meta) = parts("one", size=2 * CHUNK)
    (pkl, values), state = rest

    def again(sink: object) -> None:
        values(sink)  # type: ignore[arg-type]
        postgres_server.restart()

    def and_again(sink: object) -> None:
        postgres_server.restart()
        meta(sink)  # type: ignore[arg-type]

    store.put(own_name(), [(pkl, again), state, (name, and_again)], lease=lease, stage="one")

    assert read(store, own_name()) == ("one", b"one" * 2 * CHUNK, b"one")
    assert rows.staged() == 0
    lease.release()


def test_a_process_of_the_server_that_is_killed_in_the_middle_of_a_save_interrupts_nothing(
    store: PostgresStore, rows: Rows
) -> None:
    """All others end with it, and the server looks through its log: so it does when memory runs out."""
    lease = store.acquire("s")
    *rest, (name, meta) = parts("one", size=2 * CHUNK)

    def kill(sink: object) -> None:
        asked = "select pid from pg_stat_activity where application_name = 'graflow-ckpt' limit 1"
        ((pid,),) = rows.ask(asked)
        os.kill(int(str(pid)), signal.SIGKILL)
        meta(sink)  # type: ignore[arg-type]

    store.put(own_name(), [*rest, (name, kill)], lease=lease, stage="one")

    assert read(store, own_name()) == ("one", b"one" * 2 * CHUNK, b"one")
    assert rows.staged() == 0
    lease.check()
    lease.release()


def test_a_save_whose_server_does_not_come_back_has_failed_and_the_next_one_has_not(
    far: PostgresStore, store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(far, "best", "one")
    monkeypatch.setattr(postgres_link, "PATIENCE", 0.2)
    (pkl, values), *rest = parts("two", size=2 * CHUNK)

    def lose(sink: object) -> None:
        proxy.refuse()
        values(sink)  # type: ignore[arg-type]

    with pytest.raises(CheckpointError, match="cannot be reached") as failed:
        far.put("best", [(pkl, lose), *rest], lease=None, stage="two")

    assert not isinstance(failed.value, SaveOutcomeUnknown)
    assert "hunter2" not in f"{failed.value} {failed.value.ids} {failed.value.__cause__}"
    assert read(store, "best")[0] == "one"
    proxy.resume()
    put(far, "best", "three")
    assert read(store, "best")[0] == "three"


def test_a_commit_that_is_not_confirmed_says_so(
    far: PostgresStore, store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(far, "best", "one")
    monkeypatch.setattr(postgres_link, "PATIENCE", 0.2)
    *rest, (name, meta) = parts("two")

    def lose(sink: object) -> None:
        proxy.refuse()
        meta(sink)  # type: ignore[arg-type]

    with pytest.raises(SaveOutcomeUnknown, match="not confirmed"):
        far.put("best", [*rest, (name, lose)], lease=None, stage="two")

    assert read(store, "best")[0] == "one"


@pytest.mark.parametrize("size", [1, 2 * CHUNK])
def test_a_commit_whose_reply_is_lost_is_made_once(
    far: PostgresStore, proxy: Proxy, rows: Rows, size: int
) -> None:
    put(far, "best", "one")
    proxy.drop_next_reply(b'"stage": "two"')

    put(far, "best", "two", size=size)

    assert proxy.dropped()
    assert read(far, "best") == ("two", b"two" * size, b"two")
    # what was asked for again has drawn a number, found itself there, and changed nothing
    ((number,),) = rows.ask("select commit_number from graflow_ckpt.checkpoints")
    assert rows.ask("select last_value - 1 from graflow_ckpt.commits") == [(number,)]
    assert rows.staged() == 0


def test_an_owners_commit_whose_reply_is_lost_is_made_once(
    far: PostgresStore, proxy: Proxy, rows: Rows
) -> None:
    lease = far.acquire("s")
    proxy.drop_next_reply(b'"stage": "one"')

    path = put(far, own_name(), "one", lease)

    assert proxy.dropped()
    assert read(far, path) == ("one", b"one", b"one")
    ((number,),) = rows.ask("select commit_number from graflow_ckpt.checkpoints")
    assert rows.ask("select last_value > %s from graflow_ckpt.commits", number) == [(True,)]  # asked again
    lease.release()


def test_an_owner_writes_over_what_is_there(store: PostgresStore, rows: Rows) -> None:
    lease = store.acquire("s")
    path = put(store, "best", "one", lease, size=CHUNK)

    assert put(store, "best", "two", lease) == path

    assert read(store, path) == ("two", b"two", b"two")
    assert rows.chunks() == []
    lease.release()


def test_a_chunk_whose_reply_is_lost_is_there_once(far: PostgresStore, proxy: Proxy, rows: Rows) -> None:
    put(far, "best", "one")
    (pkl, values), *rest = parts("two", size=2 * CHUNK)

    def lose(sink: object) -> None:
        proxy.drop_next_reply(b"twotwo")
        values(sink)  # type: ignore[arg-type]

    far.put("best", [(pkl, lose), *rest], lease=None, stage="two")

    assert proxy.dropped()
    assert read(far, "best") == ("two", b"two" * 2 * CHUNK, b"two")


def test_connections_that_were_cut_are_made_anew(far: PostgresStore, proxy: Proxy) -> None:
    for n in range(3):
        put(far, "best", f"{n}")
        proxy.cut()
        assert read(far, "best")[0] == f"{n}"
        proxy.cut()
        assert len(list(far.list())) == 1


# --- two at once -----------------------------------------------------------------------


def test_two_writers_of_one_path_never_mix(postgres_url: str, rows: Rows) -> None:
    reader, over = PostgresStore(postgres_url), threading.Event()
    put(reader, "best", "a0")
    failed: list[Exception] = []

    def write(name: str) -> None:
        store, n = PostgresStore(postgres_url), 0
        try:
            while not over.is_set():
                n += 1
                put(store, "best", f"{name}{n}", size=1 + (CHUNK if n % 5 == 0 else 0))
        except Exception as error:  # noqa: BLE001  whatever it is, it is to be seen
            failed.append(error)
        store.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            stage, values, state = read(reader, "best")
            assert values[: len(stage)] == state == stage.encode()
    finally:
        over.set()
        for thread in threads:
            thread.join()

    assert failed == []
    reader.delete("best")
    assert (rows.chunks(), rows.staged()) == ([], 0)
    reader.close()


def test_a_meta_alone_is_not_put_over_what_has_taken_the_place_of_its_own(store: PostgresStore) -> None:
    path = put(store, "best", "two", size=CHUNK)
    _, _, meta = parts("one")

    with pytest.raises(CheckpointError, match="another checkpoint has taken its place"):
        store.put(path, [meta], lease=None, stage="one")

    assert read(store, path) == ("two", b"two" * CHUNK, b"two")


# --- contents --------------------------------------------------------------------------


def test_a_commit_whose_reply_was_lost_keeps_its_contents_when_its_writer_is_fenced_meanwhile(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer asks again and hears that somebody else owns the session: what it had committed stands."""
    lease, data = store.acquire("s"), content(1)
    run, taken = store._link.run, []

    def carried_out_and_lost(work: Callable[[Connection], object]) -> object:
        result = run(work)
        if result == "synced" and not taken:
            taken.append(PostgresStore(postgres_url).acquire("s", take_over=True))
            raise ServerGone("the reply was lost")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(store._link, "run", carried_out_and_lost)
        with pytest.raises(Fenced):
            put_holding(store, own_name(), "one", [data], lease=lease)
    assert store.contents.sweep() == 0

    assert held(store, f"{store.folder}/{own_name()}") == [data]
    taken[0].release()


def test_contents_that_nobody_holds_go_however_many_were_let_go_before(
    store: PostgresStore, rows: Rows
) -> None:
    path = put_holding(store, "best", "one", [content(1)])
    rows.ask("insert into graflow_ckpt.freed (content) select 0 from generate_series(1, 2500)")

    assert store.delete(path)

    assert rows.ask(
        "select (select count(*) from graflow_ckpt.contents), count(*) from graflow_ckpt.freed"
    ) == [(0, 0)]


def test_a_connection_that_has_forgotten_its_statements_learns_them_again(store: PostgresStore) -> None:
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

    assert read(store, path) == ("two", b"two", b"two")
    assert held(store, other) == [content(1)]
    assert [raw for *_, raw in store.segments("s")] == [b"ab"]
    lease.release()
