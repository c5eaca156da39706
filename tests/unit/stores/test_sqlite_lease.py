"""Leases in a SQLite store: by a clock that nobody sets, and of a file that can be taken away."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_chunks import HELD
from graflow_ckpt.stores.sqlite_schema import CHUNK
from tests.unit.stores.kinds import ROOT, InSqlite, only
from tests.unit.stores.redis_trios import own_name, put

pytestmark = only("sqlite")


@pytest.mark.parametrize("name", [own_name(), "best"])
def test_who_was_fenced_is_told_before_all_is_pickled(name: str, store: SqliteStore, kind: InSqlite) -> None:
    old, new = store.acquire("s"), store.acquire("s", take_over=True)

    def endless(sink: Any) -> None:
        for _ in range(HELD // CHUNK):
            sink.write(bytes(CHUNK))
        raise AssertionError("pickled for nothing")

    with pytest.raises(Fenced):
        store.put(f"sqlite://{name}", [("pkl", endless), ("meta.json", endless)], lease=old, stage="one")

    assert list(store.list()) == []
    assert (kind.pieces(), kind.begun()) == ([], 0)
    new.release()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_taken_away_fences_its_owners(store: SqliteStore, replaced: bool) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    for ending in ("", "-wal", "-shm"):
        os.unlink(store.file + ending)
    if replaced:
        SqliteStore(store.url).probe()

    for call in (lease.check, lambda: put(store, "best", "one", lease), lambda: segment.append(b"x")):
        with pytest.raises(Fenced, match="removed or replaced"):
            call()
    lease.release()
    assert list(store.list()) == []


@pytest.mark.parametrize("date", [-1e7, 0.3, 1e7])
def test_a_silent_owner_in_another_container_is_waited_for_whatever_the_date_says(
    store: SqliteStore, kind: InSqlite, date: float
) -> None:
    owner = kind.owned(0.3, **kind.far)
    kind.dated(date)
    began = time.monotonic()

    lease = store.acquire("s")

    assert 0.29 <= time.monotonic() - began < 20
    assert (lease.epoch, lease.taken_from) == (5, owner)
    lease.release()


def test_an_owner_from_before_the_last_reboot_is_waited_for_by_the_date(
    store: SqliteStore, kind: InSqlite
) -> None:
    kind.owned(1e7, boot="before")
    kind.dated(0.3)
    assert store.owner("s") is not None

    lease = store.acquire("s")

    assert lease.epoch == 5
    lease.release()


def test_a_renewal_that_fails_is_tried_again(kind: InSqlite) -> None:
    store = kind.open(lease=0.2, patience=0.01)
    lease = store.acquire("s")
    deadline = time.monotonic() + 20
    with closing(sqlite3.connect(store.file, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        while store.owner("s") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        blocking.execute("ROLLBACK")

    while store.owner("s") is None:
        assert time.monotonic() < deadline, "the keeper has given up"
        time.sleep(0.01)
    lease.check()  # nobody has taken it meanwhile
    lease.release()


# --- the journal ------------------------------------------------------------------------


def test_after_a_failure_nothing_more_is_appended(kind: InSqlite) -> None:
    store = kind.open(patience=0.2)
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    segment.append(b"one")
    with closing(sqlite3.connect(store.file, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalFailed, match=r"locked all the time.*session stops here"):
            segment.append(b"two")

    with pytest.raises(JournalFailed, match="it was closed"):
        segment.append(b"three")
    assert list(store.segments("s")) == [(1, 0, b"one")]
    lease.release()


def test_what_was_appended_is_there_after_the_writer_was_killed(store: SqliteStore) -> None:
    program = f"""
import os, signal, sys
from graflow_ckpt.stores.sqlite import SqliteStore
store = SqliteStore({store.file!r})
segment = store.journal(store.acquire("s"), 0)
for number in range(10**6):
    segment.append(b"%07d" % number)
    os.write(1, b"%07d" % number)
"""
    for epoch in (1, 2, 3):
        with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = process.stdout.read(7 * 60 * epoch)
            process.kill()
            said += process.stdout.read()
        assert process.returncode == -signal.SIGKILL

        *_, (found, _, raw) = store.segments("s")

        numbers = [raw[at : at + 7] for at in range(0, len(raw), 7)]
        assert found == epoch
        assert numbers == [b"%07d" % number for number in range(len(numbers))]
        assert len(numbers) - len(said) // 7 in (0, 1)  # the last one may not have been told any more
