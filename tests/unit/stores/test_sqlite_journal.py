"""Journal segments in a SQLite store: what was appended outlives its writer, a failure ends it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from graflow_ckpt.core.errors import JournalFailed
from graflow_ckpt.stores.sqlite import SqliteStore
from tests.unit.stores.kinds import ROOT, InSqlite, only

pytestmark = only("sqlite")


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
