"""Journal segments in a SQLite store: what was appended is there, in order, by the owner alone."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed
from graflow_ckpt.stores.sqlite import SqliteStore

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "x.db", patience=0.2)
    yield store
    store.close()


def test_frames_are_read_as_they_were_appended(store: SqliteStore) -> None:
    lease = store.acquire("s")
    frames = [b"a", b"\0" * 3, bytes(range(256)) * 5000, b"z"]
    segment = store.journal(lease, 7)
    for frame in frames:
        segment.append(frame)

    assert list(store.segments("s")) == [(1, 7, b"".join(frames))]
    assert list(SqliteStore(store.url).segments("t")) == []
    lease.release()


def test_segments_are_in_order_of_epoch_and_place_and_dropped_when_a_later_one_covers_them(
    store: SqliteStore,
) -> None:
    for epoch, afters in ((1, (0, 30, 9)), (2, (12, 40))):
        lease = store.acquire("s")
        for after in afters:
            store.journal(lease, after).append(f"{epoch}.{after}".encode())
        lease.release()
    other = store.acquire("t")
    store.journal(other, 0).append(b"t")
    other.release()

    assert [segment[:2] for segment in store.segments("s")] == [(1, 0), (1, 9), (1, 30), (2, 12), (2, 40)]

    store.drop_segments("s", 12)
    assert list(store.segments("s")) == [(1, 9, b"1.9"), (2, 12, b"2.12"), (2, 40, b"2.40")]
    store.drop_segments("s", 2**62)
    assert list(store.segments("s")) == [(2, 40, b"2.40")]
    assert list(store.segments("t")) == [(1, 0, b"t")]


def test_a_long_segment_is_dropped_in_steps(store: SqliteStore) -> None:
    lease = store.acquire("s")
    store.journal(lease, 0).append(b"x")
    store.journal(lease, 5)
    with closing(sqlite3.connect(store.file)) as connection, connection:
        ((first,),) = connection.execute("SELECT id FROM frames").fetchall()
        more = [(number, b"y") for number in range(first + 1, first + 2500)]
        connection.executemany("INSERT INTO frames VALUES (?, ?)", more)
    assert len(next(store.segments("s"))[2]) == 2500

    store.drop_segments("s", 5)

    with closing(sqlite3.connect(store.file)) as connection:
        assert connection.execute("SELECT count(*) FROM frames").fetchone() == (0,)
    lease.release()


def test_a_segment_without_frames_may_be_opened_again_and_one_with_frames_may_not(store: SqliteStore) -> None:
    lease = store.acquire("s")
    store.journal(lease, 3).close()

    store.journal(lease, 3).append(b"x")

    with pytest.raises(JournalFailed, match="has records already"):
        store.journal(lease, 3)
    assert list(store.segments("s")) == [(1, 3, b"x")]
    lease.release()


def test_two_writers_of_one_segment_do_not_mix(store: SqliteStore) -> None:
    lease = store.acquire("s")
    one, two = store.journal(lease, 3), store.journal(lease, 3)
    one.append(b"one")

    with pytest.raises(JournalFailed):
        two.append(b"two")

    one.append(b"more")
    assert list(store.segments("s")) == [(1, 3, b"onemore")]
    lease.release()


def test_after_a_failure_nothing_more_is_appended(store: SqliteStore) -> None:
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


def test_a_closed_segment_takes_nothing(store: SqliteStore) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    segment.close()
    segment.close()

    with pytest.raises(JournalFailed, match="closed"):
        segment.append(b"x")
    lease.release()


def test_threads_that_append_do_not_lose_frames(store: SqliteStore) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)

    def work(name: bytes) -> None:
        for _ in range(25):
            segment.append(name)

    threads = [threading.Thread(target=work, args=[name]) for name in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    ((_, _, raw),) = store.segments("s")
    assert sorted(raw) == sorted(b"abcd" * 25)
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


def test_who_has_released_the_session_opens_no_segment(store: SqliteStore) -> None:
    lease = store.acquire("s")
    lease.release()

    with pytest.raises(Fenced):
        store.journal(lease, 0)
