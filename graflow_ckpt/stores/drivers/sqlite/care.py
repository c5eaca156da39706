"""Looking after the database of a SQLite store: a backup while it is used, and free pages released.

Promise: `backup` makes a copy of one moment, whole, on the disk and looked through, or none; processes that
save meanwhile do not wait, and a copy that was there before stays until the new one replaces it.
`vacuum` releases what was deleted, in steps, between which others write.

Copying the file itself does neither: its newest commits are in the log beside it. To restore a backup, put
it in the place of the database, and of its log, while no process uses them.
Not here: which checkpoints are deleted.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError
from graflow_ckpt.stores.drivers.sqlite.file import PAUSE, Database, is_damage
from graflow_ckpt.stores.drivers.sqlite.file import refusing as refusing_sqlite
from graflow_ckpt.stores.drivers.sqlite.names import file_of
from graflow_ckpt.stores.files.disk import Disk, open_own, refusing
from graflow_ckpt.stores.files.lock import held

Progress = Callable[[int, int], None]
"""Called with how many pages are done, and of how many."""

_PAGES = 2000  # copied between two calls of progress
_STEP = 500  # pages released in one transaction


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Bytes that the database took before and takes now."""

    before: int
    after: int


def backup(store: str, target: str | os.PathLike[str], progress: Progress | None = None) -> int:
    """Copy the database of a store (sqlite:///FILE) into a new file; its size."""
    database, copy = Database(file_of(store)), os.path.abspath(os.fspath(target))
    if os.path.exists(copy) and os.path.samefile(copy, database.file):
        raise CheckpointError(f"{copy} is the database itself.", hint="Name another file.", path=copy)
    _check_unused(copy)
    with refusing("write", copy), held(f"{copy}.lock"):  # what a killed backup has left is ours
        _take_away(f"{copy}.tmp")
        try:
            _into_place(database, copy, progress)
        except BaseException:
            _take_away(f"{copy}.tmp")
            raise
    return os.path.getsize(copy)


def _check_unused(copy: str) -> None:
    """Refuse a copy that has a log. A log does not say of which database it is: SQLite would
    write the pages of the former copy over those of the new one."""
    with suppress(FileNotFoundError):
        if os.path.getsize(f"{copy}-wal"):
            raise CheckpointError(
                f"{copy} is used as a database, or was when a program was killed: {copy}-wal has commits.",
                hint=f"Name another file, or move {copy} away together with {copy}-wal and {copy}-shm.",
                path=copy,
            )


def _into_place(database: Database, copy: str, progress: Progress | None) -> None:
    staged, disk = f"{copy}.tmp", Disk()
    disk.close(disk.create(staged))  # else SQLite would make it for all to read
    _copy(database, staged, progress)
    fd = open_own(staged, os.O_RDWR)
    try:
        disk.sync(fd)  # SQLite has done so, but for what it did when it closed the file
    finally:
        disk.close(fd)
    disk.rename(staged, copy)
    disk.sync_folder(os.path.dirname(copy))


def _take_away(staged: str) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(staged + ending)


def _copy(database: Database, staged: str, progress: Progress | None) -> None:
    with closing(database.open("read")) as source, refusing_sqlite("back up into", staged):
        # One look for all steps: else each commit of another writer would begin it again.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        with closing(sqlite3.connect(staged, isolation_level=None)) as copy:
            told = (lambda _, left, pages: progress(pages - left, pages)) if progress else None
            source.backup(copy, pages=_PAGES, progress=told)
            _look_through(copy, database.file)


def _look_through(copy: sqlite3.Connection, file: str) -> None:
    try:
        found = [str(row[0]) for row in copy.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        found = [str(error)]  # so much that it cannot be looked through
    if found != ["ok"]:
        raise CheckpointCorrupt(
            f"{file} is damaged, and so would its backup be: {'; '.join(found)}.",
            hint="Keep the backups that there are. What can be read: sqlite3 FILE .recover.",
            path=file,
        )


def vacuum(store: str, progress: Progress | None = None) -> Vacuumed:
    """Release the room of what was deleted to the disk."""
    database = Database(file_of(store))
    with closing(database.open("read")):
        before = _size(database.file)
    left = total = -1
    while left:
        with database.writing("vacuum", easy=True) as connection:
            if total < 0:
                total = _free(connection)
            for _ in range(_STEP):  # Python takes one step of a statement that gives no rows: one page
                connection.execute("PRAGMA incremental_vacuum")
            left = _free(connection)
        if progress is not None:
            progress(total - left, total)
        time.sleep(PAUSE)
    with closing(database.open("sync")) as connection, refusing_sqlite("vacuum", database.file):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # or, while others read, later
    return Vacuumed(before, _size(database.file))


def _free(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def _size(file: str) -> int:
    """Return the bytes of the database and its log."""
    size = os.path.getsize(file)
    with suppress(FileNotFoundError):
        size += os.path.getsize(f"{file}-wal")
    return size
