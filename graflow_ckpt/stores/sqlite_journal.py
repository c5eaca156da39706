"""Journal segments in a SQLite store: frames in the order of their appends, a segment after each cut.

    segments  id, session, epoch, after
    frames    id of the segment × 2**32 + number, bytes

Promise: a frame is on the disk when `append` returns, and it was appended by the session's owner. After a
failure nothing more is appended, ever.
Not here: what is in a frame, and which frames count (checkpoint/journal.py).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

from graflow_ckpt.core.errors import CheckpointError, JournalFailed
from graflow_ckpt.stores.sqlite_file import PAUSE, Database
from graflow_ckpt.stores.sqlite_lease import SqliteLease

_FRAMES = 32  # bits of a frame's id
_AT_ONCE = 1000  # frames that one transaction takes away


class SqliteSegment:
    """One open segment."""

    def __init__(self, database: Database, lease: SqliteLease, number: int, after: int) -> None:
        self._database = database
        self._lease = lease
        self._next = number << _FRAMES
        self._after = after
        self._open = True
        self._mutex = threading.Lock()

    def append(self, frame: bytes, /) -> None:
        """Durable when it returns. JournalFailed closes the segment; so does Ctrl-C in the middle."""
        with self._mutex:
            if not self._open:
                raise self._failed("it was closed")
            self._open = False  # until it is known that nothing went wrong
            try:
                with self._database.writing("append to the journal in") as connection:
                    self._lease.hold(connection)
                    connection.execute("INSERT INTO frames VALUES (?, ?)", (self._next, frame))
            except CheckpointError as error:
                raise self._failed(error.message.rstrip(".")) from error
            self._next += 1
            self._open = True

    def close(self) -> None:
        self._open = False

    def _failed(self, why: str) -> JournalFailed:
        return _failed(self._database, self._lease, self._after, why)


def open_segment(database: Database, lease: SqliteLease, after: int) -> SqliteSegment:
    """A new segment for the records after `after`."""
    lease.not_released()
    row = (lease.session, lease.epoch, after)
    with database.writing("begin a journal in") as connection:
        lease.hold(connection)
        select = "SELECT id FROM segments WHERE (session, epoch, after) = (?, ?, ?)"
        found = connection.execute(select, row).fetchone()
        if found is not None and _frames(connection, found[0], limit=1):
            raise _failed(database, lease, after, "it has records already, of another writer")
        if found is None:  # one that got no frame may be opened again (two cuts with nothing between)
            insert = "INSERT INTO segments (session, epoch, after) VALUES (?, ?, ?) RETURNING id"
            found = connection.execute(insert, row).fetchone()
    return SqliteSegment(database, lease, found[0], after)


def read_segments(database: Database, session: str) -> Iterator[tuple[int, int, bytes]]:
    """(epoch, after, bytes) in that order."""
    with database.reading("read the journal in") as connection:
        found = _segments(connection, session) if connection is not None else []
    for number, epoch, after in found:
        with database.reading("read the journal in") as connection:
            if connection is None:
                return
            raw = b"".join(_frames(connection, number))
        yield epoch, after, raw


def drop_segments(database: Database, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    with database.reading("look into") as connection:
        found = _segments(connection, session) if connection is not None else []
    for (number, _, _), (_, _, ended) in pairwise(found):
        if ended <= before:
            _drop(database, number)


def _drop(database: Database, number: int) -> None:
    """From its end, so that what a crash leaves of it is a shorter journal and no damaged one."""
    gone = _AT_ONCE
    while gone == _AT_ONCE:
        with database.writing("drop a journal segment in", easy=True) as connection:
            some = "SELECT id FROM frames WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT ?"
            delete = f"DELETE FROM frames WHERE id IN ({some})"
            gone = connection.execute(delete, (*_range(number), _AT_ONCE)).rowcount
            if gone < _AT_ONCE:
                connection.execute("DELETE FROM segments WHERE id = ?", (number,))
        if gone == _AT_ONCE:
            time.sleep(PAUSE)


def _segments(connection: sqlite3.Connection, session: str) -> list[tuple[int, int, int]]:
    select = "SELECT id, epoch, after FROM segments WHERE session = ? ORDER BY epoch, after"
    return connection.execute(select, (session,)).fetchall()


def _frames(connection: sqlite3.Connection, number: int, limit: int = -1) -> list[bytes]:
    select = "SELECT bytes FROM frames WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
    return [row[0] for row in connection.execute(select, (*_range(number), limit))]


def _range(number: int) -> tuple[int, int]:
    return number << _FRAMES, (number + 1) << _FRAMES


def _failed(database: Database, lease: SqliteLease, after: int, why: str) -> JournalFailed:
    return JournalFailed(
        f"Cannot append to the journal of session {lease.session!r} (epoch {lease.epoch}, after {after}) "
        f"in {database.file}: {why}.",
        hint="The session stops here; what was appended before is safe. Mend the disk and resume.",
        session=lease.session,
        path=database.file,
    )
