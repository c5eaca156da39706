"""The bodies of checkpoints in a SQLite store, and the contents that several of them have in common, in
chunks.

    chunks     id of the body × 2**20 + number, bytes       every chunk but the last of a part has CHUNK bytes
    loose      the bodies that no checkpoint has: being written, or to be taken away
    contents   id, name, size, good      chunks: FIRST_CONTENT + id, as those of any body
    holds      holder, content           a checkpoint, or a save that is under way (minus its loose row)

A body has the parts of a checkpoint, one after the other.
Promise: what fits into HELD bytes waits in memory for the commit and is part of it. Of more, every HELD
bytes go ahead in a transaction of their own, so that no writer keeps others out for long; a sync of the
commit covers them. A body that has lost its loose row takes nothing more. Large bodies are taken away in
steps, too.

A checkpoint's holds come and go in the transactions in which it does. A content without holds is
taken away, in steps, after the transaction that took the last one; if that is cut short, by the next sweep.
What is being written is held by its save, and is good, so that others can hold it, when it is whole. Saves
that have died are found as dead bodies are, and let go of what they held.
Not here: the commit (sqlite_trio.py); digests, and who compares them.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Buffer, Lease
from graflow_ckpt.links.processes import is_gone, is_near, myself
from graflow_ckpt.stores.claims import owner_in
from graflow_ckpt.stores.names import base_of, contents_in, gone, holds_none, lacks
from graflow_ckpt.stores.pieces import cut
from graflow_ckpt.stores.sqlite_file import PAUSE, Database
from graflow_ckpt.stores.sqlite_lease import SqliteLease
from graflow_ckpt.stores.sqlite_names import split
from graflow_ckpt.stores.sqlite_schema import CHUNK, FIRST_CONTENT, FIRST_LOOSE

HELD = 4 << 20
LIFE = 3600
"""Seconds after which a writer that cannot be looked at counts as dead, unless it has committed."""

NUMBERS = 20  # bits of a chunk's id
_MOST = CHUNK << NUMBERS
_AT_ONCE = 64  # chunks that one transaction takes away
_LITTLE = 1 << 16  # bytes


class Body:
    """A body that is being written, by the owner of a session or by anybody."""

    def __init__(self, database: Database, lease: SqliteLease | None) -> None:
        self.size = 0  # gaps included
        self.loose: int | None = None
        self._database = database
        self._lease = lease
        self._full: list[Buffer] = []
        self._last = bytearray()
        self._written = 0  # chunks that went ahead

    @property
    def id(self) -> int | None:
        """None: that of its checkpoint."""
        return None if self.loose is None else FIRST_LOOSE + self.loose

    def begin_part(self) -> int:
        """Where the next part begins: in a chunk of its own, unless it would be read with little else."""
        if len(self._last) > _LITTLE:
            self.size += CHUNK - len(self._last)
            self._close_chunk()
        return self.size

    def write(self, data: Buffer, /) -> int:
        with memoryview(data) as given, given.cast("B") as view:
            at = 0
            while at < len(view):
                taken = view[at : at + CHUNK - len(self._last)]
                self._last += taken
                at += len(taken)
                taken.release()
                if len(self._last) == CHUNK:
                    self._close_chunk()
            self.size += len(view)
            return len(view)

    def settle(self, connection: sqlite3.Connection, checkpoint: int) -> None:
        """Within the commit: what is left goes into the database, and all of it belongs to the checkpoint."""
        if self._last:
            self._full.append(self._last)
        if self.loose is not None:
            still_begun(connection, self.loose, self._database.file)
            connection.execute("DELETE FROM loose WHERE id = ?", (self.loose,))
        _insert(connection, first_chunk(checkpoint, self.id) + self._written, self._full)

    def withdraw(self) -> None:
        """Take away what went ahead, unless it was committed."""
        if self.loose is not None:
            clear(self._database, self.loose)

    def _close_chunk(self) -> None:
        self._full.append(self._last)
        self._last = bytearray()
        if len(self._full) * CHUNK >= HELD:
            self._go_ahead()

    def _go_ahead(self) -> None:
        if self.size >= _MOST:
            raise CheckpointError(f"A checkpoint of more than {_MOST} bytes has no room in SQLite.")
        with self._database.writing(easy=True) as connection:
            if self._lease is not None:
                self._lease.hold(connection)  # else all would be pickled for nothing
            if self.loose is None:
                whose = (self._lease.session, self._lease.epoch) if self._lease else ("", 0)
                loose = begin(connection, *whose)
            else:
                loose = self.loose
                still_begun(connection, self.loose, self._database.file)
            _insert(connection, first_chunk(FIRST_LOOSE + loose) + self._written, self._full)
        self.loose = loose
        self._written += len(self._full)
        self._full = []


class ChunkSource:
    """Reads one part, each chunk by a look of its own: no reader keeps the log from being emptied."""

    __slots__ = ("_at", "_chunk", "_database", "_end", "_first", "_path", "size")

    def __init__(self, database: Database, first: int, offset: int, size: int, path: str) -> None:
        self.size = size
        self._database = database
        self._first = first
        self._at = offset  # in the body
        self._end = offset + size
        self._path = path
        self._chunk: tuple[int, bytes] = (-1, b"")

    def readinto(self, buffer: memoryview, /) -> int:
        if self._at >= self._end:
            return 0
        number, start = divmod(self._at, CHUNK)
        if self._chunk[0] != number:
            self._chunk = number, self._read(number)
        end = min(start + buffer.nbytes, start + self._end - self._at)
        piece = memoryview(self._chunk[1])[start:end]
        buffer.cast("B")[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._at, self._chunk = self._end, (-1, b"")

    def _read(self, number: int) -> bytes:
        with self._database.reading() as connection:
            found = None
            if connection is not None:
                select = "SELECT bytes FROM chunks WHERE id = ?"
                found = connection.execute(select, (self._first + number,)).fetchone()
        if found is None:
            raise lacks(self._path, f"chunk {number} of its parts", "something else has changed the database")
        chunk: bytes = found[0]
        return chunk


def begin(connection: sqlite3.Connection, session: str, epoch: int) -> int:
    """A loose row: what is written under it is this process's until it is settled."""
    insert = "INSERT INTO loose (session, epoch, writer, began) VALUES (?, ?, ?, ?)"
    me = json.dumps(asdict(myself()), separators=(",", ":"))
    loose = connection.execute(insert, (session, epoch, me, int(time.time()))).lastrowid
    assert loose is not None
    return loose


def still_begun(connection: sqlite3.Connection, loose: int, file: str) -> None:
    """Refuse to go on where somebody has cleared away what this writer had written."""
    select = "SELECT 1 FROM loose WHERE id = ? AND writer IS NOT NULL"
    if connection.execute(select, (loose,)).fetchone() is None:
        raise CheckpointError(
            "The checkpoint was not written: its first chunks were cleared away as a dead writer's.",
            hint=f"Another owner of the session did so, or writing took more than {LIFE} seconds.",
            path=file,
        )


def first_chunk(checkpoint: int, body: int | None = None) -> int:
    """The id of the first chunk of a body, which is that of its checkpoint unless it has another."""
    return (checkpoint if body is None else body) << NUMBERS


def chunks_of(size: int) -> int:
    return -(-size // CHUNK)


def forget(connection: sqlite3.Connection, body: int, size: int) -> int | None:
    """Within a commit that takes away a checkpoint: its body goes, too, or is made loose. The loose one."""
    if body < FIRST_LOOSE:
        first = first_chunk(body)
        connection.execute("DELETE FROM chunks WHERE id >= ? AND id < ?", (first, first + chunks_of(size)))
        return None
    loose = body - FIRST_LOOSE
    connection.execute("INSERT INTO loose VALUES (?, '', 0, NULL, ?)", (loose, int(time.time())))
    return loose


def clear(database: Database, loose: int) -> None:
    """Take away a loose body; nothing, if it belongs to a checkpoint (or to nobody) now."""
    first, gone = first_chunk(FIRST_LOOSE + loose), _AT_ONCE
    while gone == _AT_ONCE:
        with database.writing("clear away leftovers in", easy=True) as connection:
            mark = "UPDATE loose SET writer = NULL WHERE id = ?"  # from here on its writer is refused
            if not connection.execute(mark, (loose,)).rowcount:
                return
            some = "SELECT id FROM chunks WHERE id >= ? AND id < ? LIMIT ?"
            delete = f"DELETE FROM chunks WHERE id IN ({some})"
            end = first + (1 << NUMBERS)
            gone = connection.execute(delete, (first, end, _AT_ONCE)).rowcount
            if gone < _AT_ONCE:
                let_go(connection, -loose)
                connection.execute("DELETE FROM loose WHERE id = ?", (loose,))
        if gone == _AT_ONCE:
            time.sleep(PAUSE)


def let_go(connection: sqlite3.Connection, holder: int) -> None:
    """A checkpoint goes, or what was begun: contents that nobody else holds are left to be cleared away."""
    free = "DELETE FROM holds WHERE holder = ? RETURNING content"
    if held := connection.execute(free, (holder,)).fetchall():
        unheld = "NOT EXISTS (SELECT 1 FROM holds WHERE content = contents.id)"
        connection.executemany(f"UPDATE contents SET good = 0 WHERE id = ? AND {unheld}", held)


def sweep(database: Database, session: str, epoch: int) -> None:
    """Clear away what the dead have left: former owners of the session, ended processes, the very slow."""
    with database.reading() as connection:
        select = "SELECT id, session, epoch, writer, began FROM loose"
        found = connection.execute(select).fetchall() if connection is not None else []
    for loose, whose, its_epoch, writer, began in found:
        fenced = whose == session and its_epoch < epoch
        if writer is None or fenced or _is_over(writer, began):
            clear(database, loose)


def _is_over(writer: str, began: int) -> bool:
    owner = owner_in(writer, "the table of loose bodies")
    return owner is None or is_gone(owner) or (not is_near(owner) and began < time.time() - LIFE)


def _insert(connection: sqlite3.Connection, first: int, chunks: list[Buffer]) -> None:
    # in the place of what somebody has left who took a row away by hand: nothing refers to it any more
    connection.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?)", enumerate(chunks, first))


# --- contents ------------------------------------------------------------------------------


_NAMES = 500  # names in one statement


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
            raise holds_none(path, name)
        return ChunkSource(self._database, _first(found[0]), 0, found[1], path)

    def distrust(self, path: str, name: str, stage: str) -> None:
        with self._database.writing() as connection:
            if (found := _held(connection, path, name, stage)) is not None:
                connection.execute("UPDATE contents SET good = 0 WHERE id = ?", found[:1])

    def sweep(self) -> int:
        if not self._database.is_there():
            return 0
        sweep(self._database, "", 0)
        return clear_contents(self._database)


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
                    content = _insert_content(connection, loose, name, size, good=1)
                    _insert_chunks(connection, _first(content), cut(pieces, CHUNK))
        self._loose = loose
        self._waiting, self._size = [], 0

    def end(self) -> None:
        if self._loose is not None:
            clear(self._database, self._loose)
            clear_contents(self._database)

    def _add_large(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        content, written, together = 0, 0, list[Buffer]()
        for chunk in cut(pieces, CHUNK):
            together.append(chunk)
            if len(together) * CHUNK >= HELD or written + len(together) == chunks_of(size):
                with self._database.writing(easy=True) as connection:
                    loose = self._begun(connection)
                    content = content or _insert_content(connection, loose, name, size, good=0)
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
            return begin(connection, *self._whose)
        still_begun(connection, self._loose, self._database.file)
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


def clear_contents(database: Database) -> int:
    """Take away what nobody holds, in steps; how many went."""
    unheld = "NOT EXISTS (SELECT 1 FROM holds WHERE content = contents.id)"
    select = f"SELECT id, size FROM contents WHERE good = 0 AND {unheld} LIMIT {_NAMES}"
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
            first, count = _first(content), chunks_of(its_size)
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
    for start in range(0, len(names), _NAMES):
        some = names[start : start + _NAMES]
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


def _insert_content(connection: sqlite3.Connection, loose: int, name: str, size: int, *, good: int) -> int:
    insert = "INSERT INTO contents (name, size, good) VALUES (?, ?, ?)"
    content = connection.execute(insert, (name, size, good)).lastrowid
    assert content is not None
    _hold(connection, -loose, content)
    return content


def _insert_chunks(connection: sqlite3.Connection, first: int, chunks: Iterable[Buffer]) -> None:
    connection.executemany("INSERT INTO chunks VALUES (?, ?)", enumerate(chunks, first))
