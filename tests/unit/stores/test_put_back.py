"""Storages that were put back to an older state: what is not in the contract (store_fencing.py) of all."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Line
from graflow_ckpt.links.processes import myself, named
from graflow_ckpt.stores.claims import lines_of, lost, number, owner_in, parsed
from graflow_ckpt.stores.flock import Flock
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.redis_names import NAMED, Keys
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.testing.trios import listed, own_name, owning, put, put_own
from tests.postgres_servers import PostgresServer
from tests.servers import Server

# --- what is said ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "said"),
    [(9, "was taken over by process"), (8, "under the same epoch, 8"), (7, "has forgotten epoch 8")],
)
def test_who_has_lost_a_session_is_told_how(found: int, said: str) -> None:
    error = lost("s", 8, found, myself())

    assert said in error.message
    assert (error.ids["session"], error.ids["epoch"], error.ids["owner"]) == ("s", 8, myself())


def test_a_second_owner_of_one_epoch_is_evidence_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lost("s", 8, 9, myself())
        assert caplog.records == []
        lost("s", 8, 8, myself())

    (record,) = caplog.records
    assert "under the same epoch, 8" in record.getMessage()
    assert f"process {myself().pid}" in record.getMessage()
    assert vars(record)["session"] == "s"


# --- leases ----------------------------------------------------------------------------


def set_back_sqlite(file: Path) -> Callable[[], None]:
    """Who owns what, and nothing else."""
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT * FROM leases").fetchall()

    def put_back() -> None:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("DELETE FROM leases")
            database.executemany("INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?)", rows)

    return put_back


def test_in_sqlite_who_was_forgotten_renews_nobodys_lease(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.acquire("s").release()
    put_back = set_back_sqlite(tmp_path / "s.db")
    first = store.acquire("s")
    put_back()
    second = store.acquire("s")
    with closing(sqlite3.connect(tmp_path / "s.db")) as database:
        ends = database.execute("SELECT ends FROM leases").fetchone()

        assert first.epoch == second.epoch == 2
        assert first._renew() is False
        assert database.execute("SELECT ends FROM leases").fetchone() == ends
    assert second._renew() is True
    second.release()


def test_in_postgres_who_was_forgotten_renews_nobodys_lease(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    store, name = PostgresStore(postgres_url), postgres_url.rpartition("/")[2]
    store.acquire("s").release()
    first = store.acquire("s")
    postgres_server.ask("update graflow_ckpt.sessions set epoch = 1, owner = null", database=name)
    second = store.acquire("s")
    until = postgres_server.ask("select until from graflow_ckpt.sessions", database=name)

    assert first.epoch == second.epoch == 2
    assert first._renew() is False
    assert postgres_server.ask("select until from graflow_ckpt.sessions", database=name) == until
    assert second._renew() is True
    second.release()
    store.close()


def test_in_redis_who_was_forgotten_renews_nobodys_lease_and_announces_nothing(
    redis_server: Server, redis_url: str
) -> None:
    store, key = RedisStore(redis_url), Keys("s").lease
    store.acquire("s").release()
    first = store.acquire("s")
    redis_server.ask("HSET", key, "epoch", 1)
    redis_server.ask("HDEL", key, "owner", "until", "nonce")
    redis_server.ask("DEL", *Keys(NAMED).fences("s"))
    second = store.acquire("s")
    until = redis_server.ask("HGET", key, "until")

    assert first.epoch == second.epoch == 2
    assert store._all.scripts["hold"]([key], [*first.fenced, 3_600_000])[0] == 0
    assert redis_server.ask("HGET", key, "until") == until
    for keys in (Keys("s"), Keys(NAMED)):
        announced = [keys.fence("s"), keys.staging]
        assert store._all.scripts["stage"](announced, [*first.fenced, "nonce", "s"]) == 0
        assert store._all.scripts["stage"](announced, [*second.fenced, "nonce", "s"]) == 1
    second.release()


def test_in_redis_the_slot_of_other_names_remembers_an_epoch_that_the_sessions_slot_has_forgotten(
    redis_server: Server, redis_url: str
) -> None:
    store, client = RedisStore(redis_url), redis_server.client()
    store.acquire("s").release()
    lease = client.dump(Keys("s").lease)
    first = store.acquire("s")
    client.restore(Keys("s").lease, 0, lease, replace=True)

    second = store.acquire("s")

    assert (first.epoch, second.epoch, second.taken_from) == (2, 3, None)
    for name in (own_name(), "best"):
        with pytest.raises(Fenced):
            put(store, name, "late", lease=first)
        put(store, name, "mine", lease=second)
    second.release()


def test_in_redis_a_claim_that_comes_late_to_the_other_slot_does_not_take_what_was_taken_over(
    redis_server: Server, redis_url: str
) -> None:
    store, other = RedisStore(redis_url), RedisStore(redis_url)
    scripts, taken = store._all.scripts, []
    sure = scripts.sure

    def late(name: str, keys: object, args: object = ()) -> object:
        if name == "raise" and not taken:
            taken.append(other.acquire("s", take_over=True))
        return sure(name, keys, args)  # type: ignore[arg-type]

    scripts.sure = late  # type: ignore[method-assign,assignment]

    with pytest.raises(SessionBusy):
        store.acquire("s")

    taken[0].check()
    put(other, "best", "mine", lease=taken[0])
    taken[0].release()


# --- journals --------------------------------------------------------------------------


def test_a_segment_of_another_claim_is_not_continued_in_sqlite(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.acquire("s").release()

    refuses_what_is_there(store, set_back_sqlite(tmp_path / "s.db"))


def test_a_segment_of_another_claim_is_not_continued_in_postgres(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    store, name = PostgresStore(postgres_url), postgres_url.rpartition("/")[2]
    store.acquire("s").release()

    def put_back() -> None:
        asked = "update graflow_ckpt.sessions set epoch = 1, owner = null, until = null"
        postgres_server.ask(asked, database=name)

    refuses_what_is_there(store, put_back)
    store.close()


def refuses_what_is_there(store: CheckpointStore, put_back: Callable[[], None]) -> None:
    """Where the leases alone were put back, and the records of the former owner have stayed."""
    first = store.acquire("s")
    old = store.journal(first, 1)
    old.append(b"stays;")
    put_back()
    second = store.acquire("s")

    with pytest.raises(JournalFailed, match="records already"):
        store.journal(second, 1)
    with pytest.raises(Fenced):
        old.append(b"late;")

    second.release()
    third = store.acquire("s")
    store.journal(third, 1).append(b"new;")
    assert (first.epoch, second.epoch, third.epoch) == (2, 2, 3)
    assert list(store.segments("s")) == [(2, 1, b"stays;"), (3, 1, b"new;")]
    third.release()


def test_in_a_bucket_that_was_put_back_as_a_whole_nobody_reads_what_a_forgotten_owner_appends(
    objects_url: str,
) -> None:
    store = ObjectStore(objects_url)
    store.acquire("s").release()
    bucket = store._all.bucket
    kept = {entry.key: bucket.get(entry.key) for entry in bucket.list("sessions")}
    first = store.acquire("s")
    old = store.journal(first, 1)
    old.append(b"lost;")
    bucket.delete([entry.key for kind in ("alive", "journal") for entry in bucket.list(kind)])
    for key, found in kept.items():
        assert found is not None
        bucket.put(key, found.data)
    second = store.acquire("s")
    new = store.journal(second, 1)
    new.append(b"one;")

    old.append(b"late;")  # the price of an append that asks for nothing else: confirmed, and in no history

    new.append(b"two;")
    assert first.epoch == second.epoch == 2
    assert list(store.segments("s")) == [(2, 1, b"one;two;")]
    for refused in (lambda: store.journal(first, 2), lambda: put_own(store, first, 1)):
        with pytest.raises(Fenced, match="under the same epoch, 2"):
            refused()
    assert listed(store) == []
    second.release()


# --- a folder --------------------------------------------------------------------------


def test_the_lock_file_of_an_earlier_commit_is_read_and_the_session_continued(tmp_path: Path) -> None:
    def slot(**said: object) -> bytes:
        body = json.dumps(said).encode()
        return (b"%08x %s\n" % (zlib.crc32(body), body)).ljust(8192, b"\0")

    former = slot(turn=4, epoch=5, owner=None, lines=[[2, 1]])
    newer = slot(turn=5, epoch=6, claim="c", owner=None, lines=[[2, 1], [6, 4]])
    (tmp_path / ".s.lock").write_bytes(former + newer)
    (tmp_path / ".s.6.alive").touch()
    store = LocalStore(tmp_path)

    assert [line.epoch for line in store.former_lines("s")] == [2, 6]
    with owning(store) as lease:
        assert (lease.epoch, lease.taken_from) == (7, None)
        put_own(store, lease, 1)

    assert [line.epoch for line in store.former_lines("s")] == [2, 6]
    assert [path.name for path in tmp_path.glob(".s*")] == [".s.lock", ".s.owner"]


def test_a_living_owner_of_an_earlier_commit_keeps_its_session(tmp_path: Path) -> None:
    alive = Flock(f"{tmp_path}/.s.6.alive")
    alive.take()

    with pytest.raises(SessionBusy):
        LocalStore(tmp_path).acquire("s")

    alive.close()
    LocalStore(tmp_path).acquire("s").release()


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"epoch": 4', b'{"epoch": -1, "owner": null, "lines": []}'])
def test_a_damaged_record_is_no_obstacle_and_no_epoch_is_given_out_again(raw: bytes, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with owning(store):
        pass
    with owning(store) as lease:
        put_own(store, lease, 1)
    with owning(store) as lease:
        store.journal(lease, 1).append(b"frame")
    (tmp_path / ".s.owner").write_bytes(raw)

    with owning(store) as lease:
        assert lease.epoch == 4


def test_an_owner_whose_folder_was_put_back_with_other_files_is_fenced(tmp_path: Path) -> None:
    store, copy = LocalStore(tmp_path / "c"), tmp_path / "copy"
    with owning(store) as lease:
        put_own(store, lease, 1)
    shutil.copytree(tmp_path / "c", copy)
    first = store.acquire("s")
    shutil.rmtree(tmp_path / "c")
    copy.rename(tmp_path / "c")

    with owning(store) as second:
        assert second.epoch == first.epoch
        with pytest.raises(Fenced, match="under the same epoch"):
            put_own(store, first, 2)
        with pytest.raises(Fenced):
            store.journal(first, 2)
        first.release()
        second.check()


# --- claims -----------------------------------------------------------------------------


ME = myself()
SAID = asdict(ME)


def test_an_owner_comes_back_and_so_do_lines() -> None:
    assert owner_in(json.dumps(SAID), "here") == owner_in(json.dumps(SAID).encode(), "here") == ME
    assert owner_in(None, "here") is owner_in(b"", "here") is None
    assert lines_of([[1, 2], [b"3", b"4"]], "here") == (Line(1, 2), Line(3, 4))


@pytest.mark.parametrize(
    "said",
    [
        b"{", b"\xff", b"[" * 100_000, b"[]", b"7", b'"x"', b"{}", json.dumps(SAID | {"pid": "../../x"}),
        json.dumps(SAID | {"pid": -1}), json.dumps(SAID | {"pid": 2**40}), json.dumps(SAID | {"pid": True}),
        json.dumps(SAID | {"host": 7}), json.dumps({k: v for k, v in SAID.items() if k != "boot"}),
    ],
    ids=count(),  # not what they say: processes that run tests side by side have to agree on names
)  # fmt: skip
def test_an_owner_that_nobody_can_have_written_is_refused(said: str | bytes) -> None:
    with pytest.raises(
        CheckpointCorrupt, match="owners of a session in here was not written by this package"
    ):
        owner_in(said, "here")


@pytest.mark.parametrize(
    "said", [7, None, [1], [[1]], [[1, 2, 3]], ["x"], [[1, -2]], [[1.5, 2]], [[True, 2]]]
)
def test_lines_that_nobody_can_have_written_are_refused(said: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        lines_of(said, "here")


@pytest.mark.parametrize("said", [-1, 2**63, 1e999, "x", None, [], "9" * 5000])
def test_a_number_that_nothing_reaches_is_refused(said: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        number(said, "here")


def test_json_may_hold_anything() -> None:
    assert parsed("[1]", "here") == [1]


def test_an_owner_is_named_without_what_a_terminal_would_obey() -> None:
    said = owner_in(json.dumps(SAID | {"host": "\x1b[2Jbox", "argv": "a\nb\u202e"}), "here")

    assert "on ?[2Jbox" in named(said)
    assert "a?b?" in named(said)
