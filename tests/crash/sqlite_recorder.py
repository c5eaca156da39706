"""What SQLite does to its files, call by call, as its own layer for operating systems sees it.

    calls = recorded(folder)

A process of its own saves into a database there. That layer (a VFS) is copied within the process and made
the default; of each file that it opens, the calls that write, cut off and sync are noted before they are
passed on. Nothing of SQLite or of the store is replaced. Between the calls stands what was promised
(`Note`). The log is carried over into the database after a few pages, so that this is seen, too.
Not here: what a disk may have kept of it (test_trio_crash_states.py).
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import pickle
import subprocess
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast, pointer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from graflow_ckpt.stores.drivers.sqlite.file import Database, FileConnection
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.names import base_of
from tests.crash.doomed import small_chunks
from tests.trios import content, put_holding

ROOT = Path(__file__).parents[2]
PAGES = 30  # of the log, until it is carried over
SAVES = 6


class Write(NamedTuple):
    file: str
    offset: int
    data: bytes


class Truncate(NamedTuple):
    file: str
    size: int


class Sync(NamedTuple):
    file: str


class Delete(NamedTuple):
    file: str
    synced: bool


class Note(NamedTuple):
    """That checkpoint was reported to be durable."""

    name: str
    stage: str


Call = Write | Truncate | Sync | Delete | Note
_calls: list[Call] = []

_Write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = CFUNCTYPE(c_int, c_void_p, c_int)
_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)  # names stay pointers: they are kept
_Delete = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)


class _Methods(Structure):
    """sqlite3_io_methods, version 3."""

    _fields_ = [
        ("version", c_int), ("close", c_void_p), ("read", c_void_p), ("write", _Write),
        ("truncate", _Truncate), ("sync", _Sync), ("rest", c_void_p * 13),
    ]  # fmt: skip


class _File(Structure):
    """sqlite3_file."""

    _fields_ = [("methods", POINTER(_Methods))]


class _Vfs(Structure):
    """sqlite3_vfs, version 3."""

    _fields_ = [
        ("version", c_int), ("file_size", c_int), ("longest", c_int), ("next", c_void_p), ("name", c_char_p),
        ("data", c_void_p), ("open", _Open), ("delete", _Delete), ("rest", c_void_p * 14),
    ]  # fmt: skip


_kept: list[Any] = []  # what SQLite has pointers to


def record() -> None:
    """From now on, in this process."""
    library = ctypes.CDLL(_sqlite3.__file__)  # finds the functions of that SQLite which Python uses
    library.sqlite3_vfs_find.restype = POINTER(_Vfs)
    real = library.sqlite3_vfs_find(None)
    assert real.contents.version == 3
    vfs = _Vfs.from_buffer_copy(real.contents)

    def opened(_: int, name: int | None, file: int, flags: int, out: int) -> int:
        status: int = real.contents.open(cast(real, c_void_p), name, file, flags, out)
        if status == 0 and name is not None:
            place = cast(file, POINTER(_File)).contents
            methods = _noting(_called(name), place.methods.contents)
            _kept.append(methods)
            place.methods = pointer(methods)
        return status

    def deleted(_: int, name: int, sync: int) -> int:
        _calls.append(Delete(_called(name), bool(sync)))
        status: int = real.contents.delete(cast(real, c_void_p), name, sync)
        return status

    vfs.name, vfs.open, vfs.delete = b"recording", _Open(opened), _Delete(deleted)
    _kept.append(vfs)
    assert library.sqlite3_vfs_register(pointer(vfs), 1) == 0


def _called(name: int) -> str:
    return os.path.basename(ctypes.string_at(name).decode())


def _noting(name: str, real: _Methods) -> _Methods:
    methods = _Methods.from_buffer_copy(real)

    def write(file: int, data: int, size: int, offset: int) -> int:
        _calls.append(Write(name, offset, ctypes.string_at(data, size)))
        status: int = real.write(file, data, size, offset)
        return status

    def truncate(file: int, size: int) -> int:
        _calls.append(Truncate(name, size))
        status: int = real.truncate(file, size)
        return status

    def sync(file: int, flags: int) -> int:
        status: int = real.sync(file, flags)
        _calls.append(Sync(name))
        return status

    methods.write, methods.truncate, methods.sync = _Write(write), _Truncate(truncate), _Sync(sync)
    return methods


def main(folder: str, synchronous: str) -> None:
    """Within that process."""
    settle = Database._settle

    def settled(self: Database, connection: FileConnection, kind: Any) -> bool:
        there = settle(self, connection, kind)
        connection.execute(f"PRAGMA wal_autocheckpoint = {PAGES}")
        if synchronous != "as it is":
            connection.execute(f"PRAGMA synchronous = {synchronous}")
        return there

    Database._settle = settled  # type: ignore[method-assign]
    small_chunks(pytest.MonkeyPatch())  # contents go ahead of the commit, in transactions of their own
    record()
    store = SqliteStore(f"{folder}/x.db")
    lease = store.acquire("s")
    for number in range(SAVES):
        name = ("best.pkl", f"session_s_step_1_17-{number}.pkl")[number % 2]
        path = put_holding(
            store, name, f"stage{number}", [content(1), content(number + 2)], lease=lease, sequence=number + 1
        )
        _calls.append(Note(base_of(path.rpartition("/")[2]), f"stage{number}"))
        if number == SAVES // 2:
            store.delete(f"{store.folder}/session_s_step_1_17-1.pkl")
    lease.release()
    store.close()
    sys.stdout.buffer.write(pickle.dumps(_calls))


def recorded(folder: Path, synchronous: str = "as it is") -> list[Call]:
    """What is done to a database in that folder. `synchronous`: what its connections are set to."""
    program = "import sys; from tests.crash.sqlite_recorder import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(folder), synchronous]
    calls: list[Call] = pickle.loads(
        subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    )
    return calls
