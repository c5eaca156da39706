"""The SQLite store on a disk that fails: what is said, and what is there afterwards."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.stores.texts import put, read

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys
from graflow_ckpt.core.errors import CheckpointError, JournalFailed
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.stores.denied import deny
from tests.unit.stores.texts import put, read
store = SqliteStore(sys.argv[1])
lease = store.acquire("s")
path = put(store, "best", "1", lease)
segment = store.journal(lease, 0)
segment.append(b"one")
deny(int(sys.argv[2]), *sys.argv[4:])
for _ in range(2):
    try:
        put(store, "best", "2", lease, size=int(sys.argv[3]))
    except CheckpointError as error:
        print(type(error).__name__, error, sep=": ")
try:
    segment.append(b"two")
except JournalFailed as error:
    print(error)
try:
    segment.append(b"three")
except JournalFailed as error:
    print(error)
print(read(store, path)[0])
"""
READER = """
import sys
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.stores.denied import deny
store = SqliteStore(sys.argv[1])
deny(int(sys.argv[2]), *sys.argv[3:])
for call in (lambda: store.meta("best"), lambda: list(store.list()), lambda: store.newest(5)):
    try:
        call()
    except CheckpointError as error:
        print(type(error).__name__, error, sep=": ")
"""


def said(program: str, *arguments: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


def whole(file: Path) -> SqliteStore:
    """The store, once whoever had the failing disk is gone."""
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return SqliteStore(file)


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_a_sync_that_fails_confirms_nothing_and_loses_nothing(tmp_path: Path, size: int) -> None:
    file = tmp_path / "x.db"

    first, second, append, closed, still = said(PROGRAM, file, errno.EIO, size, "fdatasync", "fsync")

    for save in (first, second):
        assert save.startswith(f"SaveOutcomeUnknown: What was last written into {file} was not confirmed")
        assert "SQLITE_IOERR_FSYNC" in save
    assert append.startswith("Cannot append to the journal of session 's'")
    assert "it was closed" in closed
    assert still == "1"
    store = whole(file)
    assert read(store, f"{store.folder}/best")[0] in {"1", "2"}
    assert b"".join(raw for _, _, raw in store.segments("s")) in {b"one", b"onetwo"}
    lease = store.acquire("s", take_over=True)
    assert read(store, put(store, "best", "3", lease))[0] == "3"
    lease.release()
    store.close()


@pytest.mark.parametrize("size", [10, 9 << 20])
@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "The disk is full: free some space"), (errno.EIO, "The device reported an error")],
)
def test_a_write_that_fails_leaves_the_former_one_and_says_what_to_do(
    tmp_path: Path, size: int, number: int, advice: str
) -> None:
    file = tmp_path / "x.db"

    first, second, append, closed, still = said(PROGRAM, file, number, size, "pwrite64")

    for save in (first, second):
        assert save.startswith(f"CheckpointError: Cannot write into {file}")
        assert advice in save
    assert append.startswith("Cannot append to the journal of session 's'")
    assert "it was closed" in closed
    assert still == "1"
    store = whole(file)
    assert read(store, f"{store.folder}/best")[0] == "1"
    assert list(store.segments("s")) == [(1, 0, b"one")]
    lease = store.acquire("s", take_over=True)
    assert read(store, put(store, "best", "3", lease, size=size))[0] == "3"
    lease.release()
    store.close()


def test_what_cannot_be_read_is_no_missing_checkpoint(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    put(store, "best", "1")
    store.close()

    errors = said(READER, store.file, errno.EIO, "pread64")

    assert len(errors) == 3
    for error in errors:
        assert error.startswith("CheckpointError: Cannot ")
        assert "The device reported an error" in error
    assert read(store, f"{store.folder}/best")[0] == "1"
    store.close()
