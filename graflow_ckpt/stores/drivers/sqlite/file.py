"""The database file of a SQLite store: connections and transactions.

Promise: `writing` is one transaction, all or nothing, on the disk when it ends (`easy`: with the next one
that is not). Of several processes and threads that write, each waits for its turn, for `patience` seconds.
Reading never waits for writers, and makes no file. A file that was put in the place of the former one is
opened again. What SQLite's errors mean to a user is said here, too: what happened to which file, and what
to do.

The file is opened by SQLite alone: POSIX takes all locks of a process off a file as soon as that process
closes any descriptor of it.

    things   key, tag, at, size, and the bytes: here, or in `large` by id; those of a meta in `metas`
    metas    number (the order of commits), key, session, workflow, status, and the bytes: those that are
             listed, and the rest
    facts    fact, number: what metas are found by, but for those above the number of the empty fact

Promise: a database is made whole or not at all, however many processes try at once; one of a later version,
or of another program, is not touched.

Forks: SQLite notes in the memory of a process which locks that has on a file, and a child's copy of the
notes is wrong: the locks stay with the parent. A connection that a child opens would be taken for one
beside those of the parent and lock nothing, so that the parent's last one deletes the log while the
child commits to it.
Promise: all idle connections are closed before a fork, so that a child opens a file like any other process.
If one is still used then, by another thread, the child is refused that file, by name.
Not here: forks of C code without Python's hooks, and file systems that several machines share: WAL is for
processes of one.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Literal, TypeVar
from urllib.parse import quote

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    PackageMissing,
    SaveOutcomeUnknown,
    SchemaUnsupported,
)
from graflow_ckpt.stores.files.disk import Disk
from graflow_ckpt.stores.files.disk import refusing as refusing_system
from graflow_ckpt.stores.files.trio import make_folders

Identity = tuple[int, int]
"""Of a file: its device and number."""

_GRACE: Final = 1.0  # seconds for other threads to finish what they do

_gate = threading.RLock()  # no thread opens a connection while the process forks
_open: weakref.WeakSet[FileConnection] = weakref.WeakSet()
_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()
_carried: list[FileConnection] = []  # of a parent: not ours to close, so they are kept


class FileConnection(sqlite3.Connection):
    """Knows which file it was opened on."""

    identity: Identity | None = None
    lasts = True  # else it sees nothing of what others write: for one use

    def close(self) -> None:
        super().close()
        _open.discard(self)


def _before_fork() -> None:
    _gate.acquire()
    end = time.monotonic() + _GRACE
    while True:
        for pool in list(_pools):
            pool.close()
        if not len(_open) or time.monotonic() > end:
            return
        time.sleep(0.001)


def _in_child() -> None:
    _carried.extend(_open)
    _open.clear()
    _gate.release()


os.register_at_fork(before=_before_fork, after_in_parent=_gate.release, after_in_child=_in_child)


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ADVICE = {
    sqlite3.SQLITE_READONLY: "It, or its folder, is read-only for this user: change that, or use another.",
    sqlite3.SQLITE_FULL: "The disk is full: free some space or use another one, then run again.",
    sqlite3.SQLITE_CANTOPEN: "Is the folder there, and may this user write in it? WAL needs to.",
    sqlite3.SQLITE_IOERR: "The device reported an error: look at the kernel's log; do not trust this disk.",
    **dict.fromkeys(
        (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
        "This user may not open it: change its permissions or use another file.",
    ),
    sqlite3.SQLITE_NOMEM: "The process has no memory left.",
    sqlite3.SQLITE_TOOBIG: "Something in it is larger than SQLite takes.",
}


def code_of(error: sqlite3.Error) -> int:
    """Return the primary code; 0 where the error is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code_of(error) in _BUSY


def is_damage(error: sqlite3.Error) -> bool:
    return code_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_unconfirmed(error: sqlite3.Error) -> bool:
    """Return whether a commit that failed so may come back after a power cut: written, but not synced."""
    return getattr(error, "sqlite_errorcode", 0) in (
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
    )


def refusal(error: sqlite3.Error, doing: str, file: str) -> CheckpointError:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if is_unconfirmed(error):
        return SaveOutcomeUnknown(
            f"What was last written into {file} was not confirmed by the disk ({name}).",
            hint="After a power cut it is there or it is not. Look at the disk before you go on.",
            path=file,
        )
    if is_busy(error):
        return CheckpointError(
            f"Cannot {doing} {file}: another process has kept it locked all the time ({name}).",
            hint="Does a shell, a backup or a stopped process hold a transaction? End it, then run again.",
            path=file,
        )
    if is_damage(error):
        return CheckpointCorrupt(
            f"Cannot {doing} {file}: it is damaged, or no SQLite database ({name}: {error}).",
            hint="Put a backup in its place, or save what can be read: sqlite3 FILE .recover.",
            path=file,
        )
    return CheckpointError(
        f"Cannot {doing} {file}: {error} ({name}).",
        hint=_ADVICE.get(code_of(error), "Nothing was changed there."),
        path=file,
    )


@contextmanager
def refusing(doing: str, file: str) -> Iterator[None]:
    """Turn what SQLite says inside the block into a CheckpointError."""
    try:
        yield
    except sqlite3.Error as error:
        raise refusal(error, doing, file) from error


PATIENCE = 30.0
PAUSE = 0.002
"""Seconds between two transactions of a process that has many: longer than a waiting writer sleeps."""

T = TypeVar("T")
Kind = Literal["read", "sync", "easy"]

_KEPT = 4  # idle connections of each kind
_LOG = 250
"""Pages after which the log begins again. To sync what takes the place of other bytes takes half as long as
to sync what makes a file longer, so a short log pays, until carrying it over costs more than that."""
_INDEX = 32 * 1024
"""Bytes by which SQLite makes the index of its log longer."""
_LEAST = (3, 37)  # of SQLite: STRICT tables, RETURNING
_CANNOT_WRITE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
_making = threading.Lock()  # no thread opens a database while its file is made, see above


class _Pool:
    """The idle connections of this process. They are closed before each fork."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.identity: Identity | None = None  # of the file that all of them were opened on
        self.mutex = threading.Lock()
        self.idle: dict[Kind, list[FileConnection]] = {"read": [], "sync": [], "easy": []}
        with _gate:
            _pools.add(self)

    def take(self, kind: Kind, identity: Identity) -> FileConnection | None:
        with self.mutex:
            stale = self._emptied() if identity != self.identity else ()
            self.identity = identity
            found = self.idle[kind].pop() if self.idle[kind] else None
        for one in stale:
            one.close()
        return found

    def give(self, kind: Kind, connection: FileConnection) -> None:
        with self.mutex:
            self.identity = self.identity or connection.identity
            if connection.lasts and connection.identity == self.identity and len(self.idle[kind]) < _KEPT:
                self.idle[kind].append(connection)
                return
        connection.close()

    def close(self) -> None:
        if self.process != os.getpid():
            return
        with self.mutex:
            idle = self._emptied()
        for one in idle:
            with suppress(sqlite3.Error):
                one.close()

    def _emptied(self) -> list[FileConnection]:
        idle = [one for kept in self.idle.values() for one in kept]
        for kept in self.idle.values():
            kept.clear()
        return idle


class Database:
    """Opened at the first use, made at the first write."""

    def __init__(self, file: str, *, patience: float = PATIENCE) -> None:
        self.file = file
        self.patience = patience
        self._pool = self._new_pool()

    @contextmanager
    def reading(self, doing: str = "read") -> Iterator[FileConnection | None]:
        """Yield a connection for statements that each see the newest commit. None: there is no database."""
        with refusing(doing, self.file):
            connection = self._take("read")
            if connection is None:
                yield None
                return
            try:
                yield connection
            except sqlite3.Error:
                connection.close()
                raise
            except BaseException:
                self._pool_here().give("read", connection)
                raise
            self._pool_here().give("read", connection)

    @contextmanager
    def writing(self, doing: str = "write into", *, easy: bool = False) -> Iterator[FileConnection]:
        """Yield a connection in a transaction. It is rolled back if the block raises."""
        kind: Kind = "easy" if easy else "sync"
        try:  # not `refusing`: each such block costs a save some microseconds
            connection = self._take(kind)
            assert connection is not None
            try:
                self._patiently(partial(connection.execute, "BEGIN IMMEDIATE"))
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                self._give_up(connection, kind, error)
                raise
            self._pool_here().give(kind, connection)
        except sqlite3.Error as error:
            raise refusal(error, doing, self.file) from error

    def close(self) -> None:
        """Close what is idle. The next use of the database opens it again."""
        self._pool_here().close()

    def open(self, kind: Kind) -> FileConnection:
        """Return a connection of the caller's own, to be closed by the caller."""
        with refusing("open", self.file):
            connection = self._open(kind)
            if connection is None:
                raise CheckpointError(f"There is no database {self.file}.", path=self.file)
            return connection

    # --- transactions ------------------------------------------------------------------

    def _patiently(self, call: Callable[[], T]) -> T:
        """Try it again while another process writes, with pauses so short that none is overtaken for long."""
        end, pause = time.monotonic() + self.patience, 0.0002
        while True:
            try:
                return call()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > end:
                    raise
            time.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 1.5, 0.001)

    def _give_up(self, connection: FileConnection, kind: Kind, error: BaseException) -> None:
        try:
            connection.rollback()
            if isinstance(error, sqlite3.Error) and is_unconfirmed(error):
                # What was written is in the log after the last commit that counts. Unless something
                # else takes its place, a power cut would bring it back. The header of a database is
                # written also as it was; a statement that changes no row writes nothing.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute("COMMIT")
        except sqlite3.Error:
            connection.close()
        else:
            self._pool_here().give(kind, connection)

    # --- connections -------------------------------------------------------------------

    def _take(self, kind: Kind) -> FileConnection | None:
        identity = _identity(self.file)
        found = self._pool_here().take(kind, identity) if identity else None
        return found or self._open(kind)

    def _open(self, kind: Kind) -> FileConnection | None:
        if os.path.isdir(self.file):
            raise CheckpointError(
                f"{self.file} is a folder, not a database.",
                hint="A checkpoint is called by its database and its name: sqlite:///FILE.db/NAME.",
                path=self.file,
            )
        for _ in range(10):
            self._check_fork()
            if kind != "read":
                self._make()
            elif _identity(self.file) is None:
                return None
            identity = _identity(self.file)
            with refusing_system("open", self.file):
                _check_regular(self.file)
                _check_room(self.file)
            connection = self._connect(kind)
            if connection is None:
                return None
            if identity == _identity(self.file):
                connection.identity = identity
                return connection
            connection.close()
        raise CheckpointError(f"{self.file} is replaced faster than it can be opened.", path=self.file)

    def _check_fork(self) -> None:
        """Refuse a file that a parent used when this process was forked from it."""
        identity = _identity(self.file)
        if identity is not None and any(one.identity in (None, identity) for one in _carried):
            raise CheckpointError(
                f"{self.file} cannot be used in this process: "
                "another thread was using it when it was forked.",
                hint="Start such processes with 'spawn' or 'forkserver', or before the first save.",
                path=self.file,
            )

    def _connect(self, kind: Kind) -> FileConnection | None:
        try:
            return self._opened("mode=rw", kind)
        except sqlite3.OperationalError as error:
            if kind != "read" or code_of(error) not in _CANNOT_WRITE or _has_log(self.file):
                raise
        # where no process writes now, nothing changes: readable also without the log's index
        connection = self._opened("mode=ro&immutable=1", kind)
        if connection is not None:
            connection.lasts = False
        return connection

    def _opened(self, mode: str, kind: Kind) -> FileConnection | None:
        _check_version()
        with _gate:
            connection = sqlite3.connect(
                f"file:{quote(os.fsencode(self.file))}?{mode}",
                uri=True,
                timeout=self.patience if kind == "read" else 0,  # writers wait in `_patiently`, more evenly
                isolation_level=None,
                check_same_thread=False,
                factory=FileConnection,
            )
            _open.add(connection)
        there = False
        try:
            there = self._patiently(partial(self._settle, connection, kind))
        except CheckpointError as error:
            raise type(error)(
                f"{self.file} cannot be used as a store: {error.message}", hint=error.hint, path=self.file
            ) from None
        finally:
            if not there:
                connection.close()
        return connection if there else None

    def _settle(self, connection: FileConnection, kind: Kind) -> bool:
        """Make it what we need. False: there is nothing in it to be read."""
        execute = connection.execute
        execute("PRAGMA trusted_schema = OFF")  # else a writer of the file could call functions in it
        execute("PRAGMA cache_size = -8192")
        if kind == "read":
            return not is_empty(connection)
        execute(f"PRAGMA wal_autocheckpoint = {_LOG}")
        execute("PRAGMA secure_delete = OFF")  # it would write what is to be forgotten once more
        execute("PRAGMA fullfsync = ON")  # macOS: see disk.py
        execute("PRAGMA checkpoint_fullfsync = ON")
        self._prepare(connection)
        execute(f"PRAGMA synchronous = {'NORMAL' if kind == 'easy' else 'FULL'}")
        return True

    def _prepare(self, connection: FileConnection) -> None:
        execute = connection.execute
        current = is_current(connection)
        if not current and os.path.islink(self.file) and is_empty(connection):
            raise CheckpointError(
                "It is a symbolic link to a file that is no database yet.", hint="Name that file itself."
            )
        if not current:
            execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only before there is anything in it
        mode = execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise CheckpointError(
                "Its folder is on a file system that processes cannot share memory on.",
                hint="Put it on a local disk.",
            )
        if not current:
            execute("BEGIN IMMEDIATE")
            try:
                upgrade(connection)
                execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise

    def _make(self) -> None:
        """Make the empty file, ours alone to read, with its name on the disk."""
        if _identity(self.file) is not None:
            return
        folder = os.path.dirname(self.file)
        disk = Disk()
        make_folders(disk, folder)
        with refusing_system("make", self.file), _making:
            with suppress(FileExistsError):
                disk.close(disk.create(self.file))
            disk.sync_folder(folder)

    def _pool_here(self) -> _Pool:
        if self._pool.process != os.getpid():
            self._pool = self._new_pool()
        return self._pool

    def _new_pool(self) -> _Pool:
        pool = _Pool()
        weakref.finalize(self, pool.close)
        return pool


def _identity(file: str) -> Identity | None:
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_dev, found.st_ino)


def _check_regular(file: str) -> None:
    """Refuse a device or a pipe: SQLite would write into it."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise CheckpointError(
                f"{file} is not a regular file.",
                hint="Name another one: sqlite:///checkpoints.db.",
                path=file,
            )


def _check_room(file: str) -> None:
    """Refuse a full file system of small blocks.

    SQLite maps the index of its log, and makes it longer by one byte in each page. Where a page has several
    blocks, the others are missing, and touching them is SIGBUS.
    """
    found = os.statvfs(os.path.dirname(file))
    if found.f_frsize < mmap.PAGESIZE and found.f_frsize * found.f_bavail < 4 * _INDEX:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)


def _has_log(file: str) -> bool:
    try:
        return os.path.getsize(f"{file}-wal") > 0
    except OSError:
        return False


def _check_version() -> None:
    if sqlite3.sqlite_version_info < _LEAST:
        raise PackageMissing(
            f"This Python has SQLite {sqlite3.sqlite_version}; a store needs 3.37 or newer.",
            hint="Use a Python that was built with a newer one, or checkpoints in a folder.",
        )


# --- the tables ---------------------------------------------------------------------------


_APPLICATION = 0x47434B50  # "GCKP"
_STEPS = (
    """
    CREATE TABLE things (
        key TEXT PRIMARY KEY,
        tag TEXT NOT NULL,
        at REAL NOT NULL,
        size INTEGER NOT NULL,
        data BLOB,
        large INTEGER,
        meta INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE large (id INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
    CREATE TABLE metas (
        number INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        session TEXT NOT NULL,
        workflow TEXT NOT NULL,
        status TEXT NOT NULL,
        data BLOB NOT NULL,
        rest BLOB NOT NULL
    ) STRICT;
    CREATE TABLE facts (
        fact TEXT NOT NULL,
        number INTEGER NOT NULL,
        PRIMARY KEY (fact, number)
    ) STRICT, WITHOUT ROWID;
    """,
)
VERSION = len(_STEPS)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether nothing has been made in it yet. Refuse what is not ours to use."""
    # first, since the tables and the two numbers come with one commit, which can be made just now
    empty = connection.execute("SELECT NOT EXISTS (SELECT 1 FROM sqlite_master)").fetchone()[0]
    application, version = _number(connection, "application_id"), _number(connection, "user_version")
    if empty and application in (0, _APPLICATION):
        return True
    if application != _APPLICATION:
        raise CheckpointError(
            "It is the database of another program.", hint="Give another file: sqlite:///checkpoints.db."
        )
    if version > VERSION:
        raise SchemaUnsupported(
            f"It was written by a later version of this package (schema {version}, here {VERSION}).",
            hint="Install that version, or a later one.",
        )
    return False


def is_current(connection: sqlite3.Connection) -> bool:
    return not is_empty(connection) and _number(connection, "user_version") == VERSION


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring it to this version. Within a transaction that the caller has begun and commits."""
    done = 0 if is_empty(connection) else _number(connection, "user_version")
    for step in _STEPS[done:]:
        for statement in step.split(";"):
            if statement.strip():
                connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
