"""A backup is one moment of a database; a vacuum gives room back; a disk that fails loses nothing."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError
from graflow_ckpt.stores.drivers.sqlite.care import backup, vacuum
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.measured import unmeasured
from tests.unit.stores.programs import ROOT, command, printed
from tests.unit.stores.texts import own_name, put, read


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "x.db")
    yield store
    store.close()


def test_a_backup_is_a_store_of_its_own(store: SqliteStore, tmp_path: Path) -> None:
    lease = store.acquire("s")
    for number in range(30):
        put(store, own_name(number), f"{number}", lease, size=200_000)
    store.journal(lease, 0).append(b"frame")
    told: list[tuple[int, int]] = []

    size = backup(store.url, tmp_path / "b.db", lambda *numbers: told.append(numbers))

    found = SqliteStore(tmp_path / "b.db")
    assert size == os.path.getsize(tmp_path / "b.db")
    assert [path.rpartition("/")[2] for path, _ in found.list()] == [own_name(n) for n in range(29, -1, -1)]
    assert read(found, f"{found.folder}/{own_name(7)}")[1] == b"7" * 200_000
    assert list(found.segments("s")) == [(1, 0, b"frame")]
    assert len(told) > 1
    assert told[-1][0] == told[-1][1]
    assert os.stat(tmp_path / "b.db").st_mode & 0o777 == 0o600
    lease.release()
    assert found.acquire("s", take_over=True).epoch == 2  # whoever goes on with it knows the epochs
    found.close()


def test_a_backup_is_one_moment_and_keeps_nobody_waiting(store: SqliteStore, tmp_path: Path) -> None:
    """Each save writes the same into two checkpoints in turn: a copy of two moments would have a gap."""
    put(store, "filling", "x", size=40 << 20)
    saved = 0

    def save(done: int, pages: int) -> None:
        nonlocal saved
        saved += 1
        put(store, own_name(saved), "new")

    backup(store.url, tmp_path / "b.db", save)

    found = SqliteStore(tmp_path / "b.db")
    assert saved > 3
    assert len(list(store.list())) == 1 + saved
    assert [path.rpartition("/")[2] for path, _ in found.list()] == ["filling"]
    found.close()


def test_a_backup_takes_the_place_of_the_former_one_when_it_is_whole(
    store: SqliteStore, tmp_path: Path
) -> None:
    put(store, "best", "one")
    backup(store.url, tmp_path / "b.db")
    put(store, "best", "two", size=10 << 20)
    program = f"""
import os, signal
from graflow_ckpt.stores.drivers.sqlite.care import backup
backup({store.url!r}, {str(tmp_path / "b.db")!r}, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""
    killed = subprocess.run(command(program), cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL

    found = SqliteStore(tmp_path / "b.db")
    assert read(found, f"{found.folder}/best")[0] == "one"
    found.close()
    assert "b.db.tmp" in os.listdir(tmp_path)
    backup(store.url, tmp_path / "b.db")
    assert read(found, f"{found.folder}/best")[0] == "two"
    found.close()
    assert [name for name in os.listdir(tmp_path) if not name.startswith("x.db")] == ["b.db"]


def test_a_backup_that_fails_leaves_nothing(store: SqliteStore, tmp_path: Path) -> None:
    put(store, "best", "one")

    def stop(done: int, pages: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(store.url, tmp_path / "b.db", stop)
    with pytest.raises(CheckpointError, match="the database itself"):
        backup(store.url, store.file)
    with pytest.raises(CheckpointError, match="There is no database"):
        backup(f"sqlite:///{tmp_path}/none.db", tmp_path / "b.db")
    with pytest.raises(CheckpointError, match="Cannot write"):
        backup(store.url, tmp_path / "none" / "b.db")

    assert {name for name in os.listdir(tmp_path) if not name.startswith("x.db")} == set()


def test_what_is_damaged_is_not_backed_up_over_a_good_copy(store: SqliteStore, tmp_path: Path) -> None:
    for number in range(50):
        put(store, own_name(number), "x" * 300)
    store.close()
    backup(store.url, tmp_path / "b.db")
    good = (tmp_path / "b.db").read_bytes()
    with closing(sqlite3.connect(store.file)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'facts'")
    with open(store.file, "r+b") as opened:
        opened.seek((root - 1) * 4096)
        opened.write(b"\xa5" * 4096)

    with pytest.raises(CheckpointCorrupt, match=r"(?s)damaged.*Keep the backups"):
        backup(store.url, tmp_path / "b.db")

    assert (tmp_path / "b.db").read_bytes() == good


def test_a_vacuum_gives_back_what_was_deleted(store: SqliteStore) -> None:
    put(store, "kept", "1")
    paths = [put(store, own_name(number), f"{number}", size=1_000_000) for number in range(12)]
    store.delete_many(paths[:10])
    told: list[tuple[int, int]] = []

    done = vacuum(store.url, lambda *numbers: told.append(numbers))

    store.close()
    assert done.before > 12_000_000
    assert done.after == os.path.getsize(store.file)
    assert done.after < 5_000_000
    assert told[-1][0] == told[-1][1] > 2000
    assert read(store, f"{store.folder}/kept")[0] == "1"
    assert read(store, paths[11])[1] == b"11" * 1_000_000
    with closing(sqlite3.connect(store.file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    again = vacuum(store.url)
    assert again.after == again.before


def test_others_save_while_a_vacuum_goes_on(store: SqliteStore) -> None:
    store.delete(put(store, "large", "x", size=40 << 20))
    saved, over = 0, threading.Event()

    def save() -> None:
        nonlocal saved
        while not over.is_set():
            put(store, own_name(saved), "x")
            saved += 1

    saver = threading.Thread(target=save)
    saver.start()
    seen = set()
    vacuum(store.url, lambda *_: seen.add(saved))
    over.set()
    saver.join()

    assert len(seen) > 3
    assert len(list(store.list())) == saved


def test_a_backup_does_not_take_the_place_of_a_copy_that_is_used(store: SqliteStore, tmp_path: Path) -> None:
    """The log of the former copy would be read as that of the new one, and make a mixture of them."""
    put(store, "best", "one")
    backup(store.url, tmp_path / "b.db")
    used = SqliteStore(tmp_path / "b.db")
    put(used, "mine", "one", size=100_000)
    put(store, "best", "two")

    with pytest.raises(CheckpointError, match="is used as a database"):
        backup(store.url, tmp_path / "b.db")

    assert read(used, f"{used.folder}/mine")[1] == b"one" * 100_000
    used.close()
    backup(store.url, tmp_path / "b.db")  # whoever closes it leaves no log behind
    assert read(used, f"{used.folder}/best")[0] == "two"
    used.close()


# --- a disk that fails ----------------------------------------------------------------


PROGRAM = """
import sys
from graflow_ckpt.core.errors import CheckpointError, JournalFailed
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.unit.stores.denied import deny
from tests.unit.stores.programs import ROOT, command, printed
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


said = partial(printed, env=unmeasured())  # a disk that fails cannot be told what was measured


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
