"""Leases and journals in a SQLite store: one owner per session, and the frames of the owner.

    leases    session, epoch, owner (as JSON, with the id of the claim), ends, ends_by_date (milliseconds)

Promise: of several who acquire a session at once exactly one gets it, and who has lost it finds out at the
next write, which is refused by its epoch and claim in the same transaction: by both, since a database that
was put back to an older state gives an epoch out once more. A thread renews the lease every third of
its time. A dead owner whose process can be looked at is taken over at once; one in another container
shows that it lives by renewing. If it does not, its lease runs out, and `acquire` waits for that.

A lease ends by the clock that counts from the boot of the machine, which nobody can set: all processes
that use the database have it in common. After a reboot the date is all there is.

Journal segments in a SQLite store: frames in the order of their appends, a segment after each cut.

    segments  id, session, epoch, after
    frames    id of the segment × 2**32 + number, bytes

Promise: a frame is on the disk when `append` returns, and it was appended by the session's owner. After a
failure nothing more is appended, ever.
Not here: what is in a frame, and which frames count (checkpoint/journal.py).
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise

from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import is_gone, myself
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.claims import busy
from graflow_ckpt.stores.fencing import FencedLease, FencedSegment, Watch, used
from graflow_ckpt.stores.sqlite_file import PAUSE, Database

LEASE = 15.0
_WAITED = 4  # lease times: an end that is further off comes of a clock that was wrong, or of somebody else
_WHERE = "the table of leases"

_Row = tuple[int, str | None, int, int]


class SqliteLease(FencedLease):
    """One in SQLite. Its claim is the owner as it has written it."""

    def __init__(
        self,
        database: Database,
        session: str,
        epoch: int,
        claim: str,
        taken_from: Owner | None,
        seconds: float,
    ) -> None:
        self._database = database
        super().__init__(database.file, session, epoch, claim, taken_from, seconds)

    def check(self) -> None:
        self.not_released()
        with self._database.reading() as connection:
            self.hold(connection)

    def hold(self, connection: sqlite3.Connection | None) -> None:
        """The same within a transaction: nobody else gets the session before that ends."""
        self.not_released()
        found = None
        if connection is not None:
            found = _row(connection, self.session)
        if found is None or found[:2] != (self.epoch, self.claim):
            raise self.lost_to(found[0] if found else None, _owner_of(found))

    def _let_go(self) -> None:
        if not self._database.is_there():
            return
        with self._database.writing(easy=True) as connection:
            update = "UPDATE leases SET owner = NULL, ends = 0 WHERE "
            update += "session = ? AND epoch = ? AND owner = ?"
            connection.execute(update, (self.session, self.epoch, self.claim))

    def _renew(self) -> bool:
        if not self._database.is_there():
            return False
        with self._database.writing(easy=True) as connection:
            update = "UPDATE leases SET ends = ?, ends_by_date = ? "
            update += "WHERE session = ? AND epoch = ? AND owner = ?"
            values = (*_ends(self._seconds), self.session, self.epoch, self.claim)
            return connection.execute(update, values).rowcount == 1


class Leases:
    """The leases of the sessions in one database."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds

    def acquire(self, session: str, *, take_over: bool) -> SqliteLease:
        me = json.dumps({**asdict(myself()), "claim": os.urandom(16).hex()}, separators=(",", ":"))
        watch = Watch(session)
        while True:
            with self._database.writing() as connection:
                found = _row(connection, session)
                owner = _owner_of(found)
                if found is None or owner is None or take_over or not _is_alive(owner, found):
                    epoch = _next_epoch(connection, session, found)
                    insert = "INSERT INTO leases VALUES (?, ?, ?, ?, ?, '[]') ON CONFLICT DO UPDATE SET "
                    insert += "epoch = excluded.epoch, owner = excluded.owner, ends = excluded.ends, "
                    insert += "ends_by_date = excluded.ends_by_date"
                    connection.execute(insert, (session, epoch, me, *_ends(self._seconds)))
                    break
            if watch.silent(owner, found[2:4], _WAITED * self._seconds):
                raise busy(session, owner)
        return SqliteLease(self._database, session, epoch, me, owner, self._seconds)

    def owner(self, session: str) -> Owner | None:
        """The living owner, without taking anything."""
        with self._database.reading() as connection:
            found = _row(connection, session) if connection is not None else None
        owner = _owner_of(found)
        return owner if found is not None and owner is not None and _is_alive(owner, found) else None


def _row(connection: sqlite3.Connection, session: str) -> _Row | None:
    select = "SELECT epoch, owner, ends, ends_by_date FROM leases WHERE session = ?"
    row: _Row | None = connection.execute(select, (session,)).fetchone()
    return row


def _next_epoch(connection: sqlite3.Connection, session: str, found: _Row | None) -> int:
    last: int = found[0] if found is not None else 0
    if not last:  # its row may have been lost; its checkpoints say how far it was
        select = "SELECT max(epoch) FROM checkpoints WHERE session = ?"
        last = connection.execute(select, (session,)).fetchone()[0] or 0
    return last + 1


def _ends(seconds: float) -> tuple[int, int]:
    return int((time.monotonic() + seconds) * 1000), int((time.time() + seconds) * 1000)


def _is_alive(owner: Owner, found: _Row) -> bool:
    """Whether the lease has not ended, nor the process."""
    _, _, ends, ends_by_date = found
    now, end = (time.monotonic(), ends) if owner.boot == myself().boot else (time.time(), ends_by_date)
    return end >= now * 1000 and not is_gone(owner)


def _owner_of(found: _Row | None) -> Owner | None:
    return claims.owner_in(found[1], _WHERE) if found is not None else None


# --- journals ------------------------------------------------------------------------------


_FRAMES = 32  # bits of a frame's id
_AT_ONCE = 1000  # frames that one transaction takes away


class SqliteSegment(FencedSegment):
    """One in SQLite."""

    mend = "disk"

    def __init__(self, database: Database, lease: SqliteLease, number: int, key: str) -> None:
        super().__init__(lease, key)
        self._database, self._lease = database, lease
        self._first = number << _FRAMES

    def _write(self, frame: bytes) -> bool:
        with self._database.writing("append to the journal in") as connection:
            self._lease.hold(connection)
            connection.execute("INSERT INTO frames VALUES (?, ?)", (self._first + self._count, frame))
        return True


def open_segment(database: Database, lease: SqliteLease, after: int) -> SqliteSegment:
    """A new segment for the records after `after`."""
    lease.not_released()
    row, key = (lease.session, lease.epoch, after), f"epoch {lease.epoch}, after {after}, in {database.file}"
    with database.writing("begin a journal in") as connection:
        lease.hold(connection)
        select = "SELECT id FROM segments WHERE (session, epoch, after) = (?, ?, ?)"
        found = connection.execute(select, row).fetchone()
        if found is not None and _frames(connection, found[0], limit=1):
            raise used(lease.session, key)
        if found is None:  # one that got no frame may be opened again (two cuts with nothing between)
            insert = "INSERT INTO segments (session, epoch, after) VALUES (?, ?, ?) RETURNING id"
            found = connection.execute(insert, row).fetchone()
    return SqliteSegment(database, lease, found[0], key)


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
