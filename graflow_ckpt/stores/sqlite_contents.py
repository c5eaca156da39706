"""Contents in a SQLite database: chunks that several checkpoints have in common.

    contents   id, name, size, good      chunks: FIRST_CONTENT + id, as those of any body
    holds      holder, content           a checkpoint, or a save that is under way (minus its loose row)

Promise: a checkpoint's holds come and go in the transactions in which it does. A content without holds is
taken away, in steps, after the transaction that took the last one; if that is cut short, by the next sweep.
What is being written is held by its save, and is good, so that others can hold it, when it is whole. Saves
that have died are found as dead bodies are (sqlite_chunks.py), and let go of what they held.
Not here: digests, and who compares them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Buffer, Lease
from graflow_ckpt.stores import sqlite_chunks
from graflow_ckpt.stores.names import contents_in, gone
from graflow_ckpt.stores.sqlite_chunks import HELD, NUMBERS, ChunkSource
from graflow_ckpt.stores.sqlite_file import PAUSE, Database
from graflow_ckpt.stores.sqlite_names import base_of, split
from graflow_ckpt.stores.sqlite_schema import CHUNK, FIRST_CONTENT

_AT_ONCE = 500  # names in one statement


class SqliteContents:
    """Those of one database."""

    shares = True

    def __init__(self, database: Database) -> None:
        self._database = database

    def scope(self, path: str, /) -> str:
        return ""

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> SqliteSaving:
        return SqliteSaving(self._database, *((lease.session, lease.epoch) if lease else ("", 0)))

    def open(self, path: str, name: str, stage: str) -> ChunkSource:
        with self._database.reading() as connection:
            found = _held(connection, path, name, stage) if connection is not None else None
        if found is None:
            raise CheckpointCorrupt(
                f"The checkpoint {path} holds no content {name}.",
                hint="It was written anew meanwhile, or by something else.",
                path=path,
                part=name,
            )
        return ChunkSource(self._database, _first(found[0]), 0, found[1], path)

    def distrust(self, path: str, name: str, stage: str) -> None:
        with self._database.writing() as connection:
            if (found := _held(connection, path, name, stage)) is not None:
                connection.execute("UPDATE contents SET good = 0 WHERE id = ?", found[:1])

    def sweep(self) -> int:
        if not self._database.is_there():
            return 0
        sqlite_chunks.sweep(self._database, "", 0)
        return clear(self._database)


class SqliteSaving:
    """What one save has found and added. Small contents wait for one transaction."""

    def __init__(self, database: Database, session: str, epoch: int) -> None:
        self._database = database
        self._whose = (session, epoch)
        self._loose: int | None = None
        self._waiting: list[tuple[str, int, list[bytes]]] = []
        self._size = 0

    def hold(self, names: Sequence[str], /) -> Collection[str]:
        there: set[str] = set()
        with self._database.writing(easy=True) as connection:
            loose = self._begun(connection)
            for content, name in _find(connection, names):
                there.add(name)
                _hold(connection, -loose, content)
        self._loose = loose
        return there

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        if size > HELD:
            self._add_large(name, size, pieces)
            return
        self._waiting.append((name, size, list(pieces)))
        self._size += size
        if self._size >= HELD:
            self.settle()

    def settle(self) -> None:
        """All of it is in the database; the commit, which is synced, covers it."""
        if not self._waiting:
            return
        with self._database.writing(easy=True) as connection:
            loose = self._begun(connection)
            for name, size, pieces in self._waiting:
                if not self._is_there(connection, loose, name):
                    content = _insert(connection, loose, name, size, good=1)
                    _insert_chunks(connection, _first(content), _chunks(pieces))
        self._loose = loose
        self._waiting, self._size = [], 0

    def end(self) -> None:
        if self._loose is not None:
            sqlite_chunks.clear(self._database, self._loose)
            clear(self._database)

    def _add_large(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        content, written, together = 0, 0, list[Buffer]()
        for chunk in _chunks(pieces):
            together.append(chunk)
            if len(together) * CHUNK >= HELD or written + len(together) == sqlite_chunks.chunks_of(size):
                with self._database.writing(easy=True) as connection:
                    loose = self._begun(connection)
                    content = content or _insert(connection, loose, name, size, good=0)
                    _insert_chunks(connection, _first(content) + written, together)
                self._loose = loose
                written += len(together)
                together = []
        with self._database.writing(easy=True) as connection:
            loose = self._begun(connection)
            if self._is_there(connection, loose, name):  # somebody else was faster
                delete = "DELETE FROM holds WHERE holder = ? AND content = ?"
                connection.execute(delete, (-loose, content))
            else:
                connection.execute("UPDATE contents SET good = 1 WHERE id = ?", (content,))

    def _begun(self, connection: sqlite3.Connection) -> int:
        if self._loose is None:
            return sqlite_chunks.begin(connection, *self._whose)
        sqlite_chunks.still_begun(connection, self._loose, self._database.file)
        return self._loose

    def _is_there(self, connection: sqlite3.Connection, loose: int, name: str) -> bool:
        for content, _ in _find(connection, [name]):
            _hold(connection, -loose, content)
            return True
        return False


# --- within the transactions of others ---------------------------------------------------


def hold(connection: sqlite3.Connection, path: str, checkpoint: int, meta: bytes, former: int) -> None:
    """A checkpoint comes in the place of a former one (or of none: 0): it holds what its meta names."""
    names = contents_in(meta)
    if not names:
        return
    select = "SELECT name, content FROM holds JOIN contents ON id = content WHERE holder = ?"
    found = dict[str, int](connection.execute(select, (former,)).fetchall())
    found |= {name: content for content, name in _find(connection, sorted(names))}
    if missing := names - found.keys():
        raise gone(path, missing)
    for name in names:
        _hold(connection, checkpoint, found[name])


def clear(database: Database) -> int:
    """Take away what nobody holds, in steps; how many went."""
    unheld = "NOT EXISTS (SELECT 1 FROM holds WHERE content = contents.id)"
    select = f"SELECT id, size FROM contents WHERE good = 0 AND {unheld} LIMIT {_AT_ONCE}"
    count = 0
    while True:
        with database.reading() as connection:
            left = connection.execute(select).fetchall() if connection is not None else []
        if not left:
            return count
        while left:
            count += _clear_some(database, left)
            if left:
                time.sleep(PAUSE)


def _clear_some(database: Database, left: list[tuple[int, int]]) -> int:
    """As many as one transaction should take away; a large one chunk after chunk."""
    gone = 0
    with database.writing("clear away leftovers in", easy=True) as connection:
        size = 0
        while left and size < HELD:
            content, its_size = left[-1]
            first, count = _first(content), sqlite_chunks.chunks_of(its_size)
            select = "SELECT id FROM chunks WHERE id >= ? AND id < ? LIMIT ?"
            some = (first, first + count, HELD // CHUNK)
            deleted = connection.execute(f"DELETE FROM chunks WHERE id IN ({select})", some).rowcount
            if deleted == HELD // CHUNK:
                break  # there may be more of it
            gone += connection.execute("DELETE FROM contents WHERE id = ?", (content,)).rowcount
            size += its_size
            left.pop()
    return gone


# --- rows ------------------------------------------------------------------------------


def _first(content: int) -> int:
    return (FIRST_CONTENT + content) << NUMBERS


def _find(connection: sqlite3.Connection, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        select = f"SELECT id, name FROM contents WHERE good = 1 AND name IN ({marks})"
        yield from connection.execute(select, some).fetchall()


def _held(connection: sqlite3.Connection, path: str, name: str, stage: str) -> tuple[int, int] | None:
    """A content of a checkpoint of that stage: its id and size."""
    base = split(path)[1] if "://" in path else base_of(path)
    select = "SELECT contents.id, contents.size FROM checkpoints "
    select += "JOIN holds ON holder = checkpoints.id JOIN contents ON contents.id = content "
    select += "WHERE checkpoints.name = ? AND stage = ? AND contents.name = ?"
    row: tuple[int, int] | None = connection.execute(select, (base, stage, name)).fetchone()
    return row


def _hold(connection: sqlite3.Connection, holder: int, content: int) -> None:
    connection.execute("INSERT OR IGNORE INTO holds VALUES (?, ?)", (holder, content))


def _insert(connection: sqlite3.Connection, loose: int, name: str, size: int, *, good: int) -> int:
    insert = "INSERT INTO contents (name, size, good) VALUES (?, ?, ?)"
    content = connection.execute(insert, (name, size, good)).lastrowid
    assert content is not None
    _hold(connection, -loose, content)
    return content


def _insert_chunks(connection: sqlite3.Connection, first: int, chunks: Iterable[Buffer]) -> None:
    connection.executemany("INSERT INTO chunks VALUES (?, ?)", enumerate(chunks, first))


def _chunks(pieces: Iterable[bytes]) -> Iterator[Buffer]:
    """The same bytes in chunks of CHUNK; the pieces are whole numbers of them, but for the last."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), CHUNK):
            yield view[start : start + CHUNK]
