"""The trio in Postgres: servers that are killed, replies that are lost, and what stays in the tables."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, Fenced, SaveOutcomeUnknown, ServerGone
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.postgres_link import Connection
from graflow_ckpt.testing.trios import content, held, put_holding
from tests.proxy import Proxy
from tests.unit.stores.kinds import SMALL_CHUNK as CHUNK
from tests.unit.stores.kinds import InPostgres, only
from tests.unit.stores.redis_trios import own_name, parts, put, read

pytestmark = only("postgres")


@pytest.fixture
def near(kind: InPostgres) -> Iterator[tuple[Proxy, PostgresStore]]:
    """A proxy, and the same store behind it."""
    with kind.proxy() as (proxy, behind):
        yield proxy, kind.open(behind)


@pytest.fixture
def proxy(near: tuple[Proxy, PostgresStore]) -> Proxy:
    return near[0]


@pytest.fixture
def far(near: tuple[Proxy, PostgresStore]) -> PostgresStore:
    return near[1]


# --- whole -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 1 << 10, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_what_was_written_in_any_pieces_is_read_in_any_pieces(store: PostgresStore, step: int) -> None:
    data = bytes(range(256)) * (CHUNK // 100) if step > 1 else bytes(range(256))
    buffer = bytearray(data)

    def write(sink: Any) -> None:
        for at in range(0, len(data), step):
            piece = memoryview(buffer)[at : at + step]
            assert sink.write(piece) == len(piece)
            buffer[at : at + step] = bytes(len(piece))  # the sender's buffer is its own again

    store.put("best", [("pkl", write), *parts("one")[1:]], lease=None, stage="one")

    source, found = store.open("best", "pkl", "one"), bytearray()
    place = memoryview(bytearray(step))
    while count := source.readinto(place):
        found += place[:count]
    assert bytes(found) == data
    source.close()
    assert source.readinto(place) == 0


def test_chunks_that_somebody_has_deleted_are_missed(store: PostgresStore, kind: InPostgres) -> None:
    path = put(store, "small", "one")
    kind.ask("update graflow_ckpt.checkpoints set pkl = null")
    with pytest.raises(CheckpointCorrupt, match="has no pkl"):
        store.open(path, "pkl", "one")

    path = put(store, "large", "one", size=CHUNK)
    kind.ask("delete from graflow_ckpt.chunks where number = 0")
    with pytest.raises(CheckpointCorrupt, match="has no pkl"):
        store.open(path, "pkl", "one")


# --- or not at all ---------------------------------------------------------------------


def test_who_was_fenced_clears_away_nothing_of_who_came_after(store: PostgresStore, kind: InPostgres) -> None:
    store.probe()
    for epoch in (4, 5, 6):
        kind.ask("insert into graflow_ckpt.staging values (%s, 's', %s)", f"put{epoch}", epoch)
    kind.ask("insert into graflow_ckpt.staging values ('put7', 't', 1)")

    assert kind.ask("select graflow_ckpt.sweep('s', 5, 3600)") == [(1,)]

    assert kind.ask("select put from graflow_ckpt.staging order by 1") == [("put5",), ("put6",), ("put7",)]


# --- a server that goes away -----------------------------------------------------------


def test_a_server_that_is_killed_in_the_middle_of_a_save_and_is_back_interrupts_nothing(
    store: PostgresStore, kind: InPostgres
) -> None:
    lease = store.acquire("s")
    *rest, (name, meta) = parts("one", size=2 * CHUNK)
    (pkl, values), state = rest

    def again(sink: Any) -> None:
        values(sink)
        kind.server.restart()

    def and_again(sink: Any) -> None:
        kind.server.restart()
        meta(sink)

    store.put(own_name(), [(pkl, again), state, (name, and_again)], lease=lease, stage="one")

    assert read(store, own_name()) == ("one", b"one" * 2 * CHUNK, b"one")
    assert kind.begun() == 0
    lease.release()


def test_a_process_of_the_server_that_is_killed_in_the_middle_of_a_save_interrupts_nothing(
    store: PostgresStore, kind: InPostgres
) -> None:
    """All others end with it, and the server looks through its log: so it does when memory runs out."""
    lease = store.acquire("s")
    *rest, (name, meta) = parts("one", size=2 * CHUNK)

    def kill(sink: Any) -> None:
        asked = "select pid from pg_stat_activity where application_name = 'graflow-ckpt' limit 1"
        ((pid,),) = kind.ask(asked)
        os.kill(int(str(pid)), signal.SIGKILL)
        meta(sink)

    store.put(own_name(), [*rest, (name, kill)], lease=lease, stage="one")

    assert read(store, own_name()) == ("one", b"one" * 2 * CHUNK, b"one")
    assert kind.begun() == 0
    lease.check()
    lease.release()


def test_a_commit_that_is_not_confirmed_says_so(
    far: PostgresStore, store: PostgresStore, proxy: Proxy, kind: InPostgres
) -> None:
    put(far, "best", "one")
    *rest, (name, meta) = parts("two")

    def lose(sink: Any) -> None:
        proxy.refuse()
        meta(sink)

    with kind.impatient(0.2), pytest.raises(SaveOutcomeUnknown, match="not confirmed"):
        far.put("best", [*rest, (name, lose)], lease=None, stage="two")

    assert read(store, "best")[0] == "one"


@pytest.mark.parametrize("size", [1, 2 * CHUNK])
def test_a_commit_whose_reply_is_lost_is_made_once(
    far: PostgresStore, proxy: Proxy, kind: InPostgres, size: int
) -> None:
    put(far, "best", "one")
    proxy.drop_next_reply(b'"stage": "two"')

    put(far, "best", "two", size=size)

    assert proxy.dropped()
    assert read(far, "best") == ("two", b"two" * size, b"two")
    # what was asked for again has drawn a number, found itself there, and changed nothing
    ((number,),) = kind.ask("select commit_number from graflow_ckpt.checkpoints")
    assert kind.ask("select last_value - 1 from graflow_ckpt.commits") == [(number,)]
    assert kind.begun() == 0


def test_an_owners_commit_whose_reply_is_lost_is_made_once(
    far: PostgresStore, proxy: Proxy, kind: InPostgres
) -> None:
    lease = far.acquire("s")
    proxy.drop_next_reply(b'"stage": "one"')

    path = put(far, own_name(), "one", lease)

    assert proxy.dropped()
    assert read(far, path) == ("one", b"one", b"one")
    ((number,),) = kind.ask("select commit_number from graflow_ckpt.checkpoints")
    assert kind.ask("select last_value > %s from graflow_ckpt.commits", number) == [(True,)]  # asked again
    lease.release()


def test_an_owner_writes_over_what_is_there(store: PostgresStore, kind: InPostgres) -> None:
    lease = store.acquire("s")
    path = put(store, "best", "one", lease, size=CHUNK)

    assert put(store, "best", "two", lease) == path

    assert read(store, path) == ("two", b"two", b"two")
    assert kind.pieces() == []
    lease.release()


def test_a_chunk_whose_reply_is_lost_is_there_once(
    far: PostgresStore, proxy: Proxy, kind: InPostgres
) -> None:
    put(far, "best", "one")
    (pkl, values), *rest = parts("two", size=2 * CHUNK)

    def lose(sink: Any) -> None:
        proxy.drop_next_reply(b"twotwo")
        values(sink)

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


# --- contents --------------------------------------------------------------------------


def test_a_commit_whose_reply_was_lost_keeps_its_contents_when_its_writer_is_fenced_meanwhile(
    store: PostgresStore, kind: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer asks again and hears that somebody else owns the session: what it had committed stands."""
    lease, data = store.acquire("s"), content(1)
    run, taken = store._link.run, []

    def carried_out_and_lost(work: Callable[[Connection], object]) -> object:
        result = run(work)
        if result == "synced" and not taken:
            taken.append(kind.open().acquire("s", take_over=True))
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
    store: PostgresStore, kind: InPostgres
) -> None:
    path = put_holding(store, "best", "one", [content(1)])
    kind.ask("insert into graflow_ckpt.freed (content) select 0 from generate_series(1, 2500)")

    assert store.delete(path)

    assert kind.ask(
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
