"""Journal segments in Postgres: rows that frames are appended to, one segment after each cut.

    graflow_ckpt.segments    session, epoch, after
    graflow_ckpt.frames      session, epoch, after, number, data

Promise: a frame is on the server's disk when `append` returns, once, and it was appended by the
session's owner: the transaction that writes it locks epoch and claim. After a failure nothing more is
appended, ever. Not here: that the server syncs at all (postgres.py refuses one with fsync off),
what is in a frame, and which frames count (checkpoint/journal.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

from graflow_ckpt.core.errors import CheckpointError, JournalFailed, NoJournal, ServerError
from graflow_ckpt.stores.postgres_lease import HELD, PostgresLease
from graflow_ckpt.stores.postgres_link import Connection, Link
from graflow_ckpt.stores.postgres_prepared import Prepared

_PAGE = 1000  # frames that are read at once
_APPEND = Prepared(
    "append", f"select graflow_ckpt.append(session, epoch, %s::bigint, %s::bigint, %b::bytea){HELD}"
)
_BEGIN = (
    f"select outcome, synced{HELD}, graflow_ckpt.begin_segment(held.session, held.epoch, %s::bigint)".encode()
)


class PostgresSegment:
    """One open segment."""

    def __init__(self, lease: PostgresLease, link: Link, after: int) -> None:
        self._lease = lease
        self._link = link
        self._after = after
        self._count = 0
        self._open = True
        self._mutex = threading.Lock()

    def append(self, frame: bytes, /) -> None:
        """On the disk when it returns. JournalFailed closes the segment; so does Ctrl-C in the middle."""
        with self._mutex:
            if not self._open:
                raise self._failed("it was closed")
            self._lease.not_released()
            self._open = False  # until it is known that nothing went wrong
            try:
                outcome = self._link.sure(lambda connection: self._append(connection, frame))
            except (ServerError, CheckpointError) as error:
                raise self._failed(error.message.rstrip(".")) from error
            if outcome == "fenced":
                self._lease.lost()
            if outcome != "ok":
                raise self._failed("another writer has appended to it")
            self._count += 1
            self._open = True

    def close(self) -> None:
        self._open = False

    def _append(self, connection: Connection, frame: bytes) -> str:
        args = [self._after, self._count, frame, *self._lease.fence]
        found = _APPEND.row(connection, args)
        return "fenced" if found is None else (found[0] or b"").decode()

    def _failed(self, why: str) -> JournalFailed:
        session, epoch, after = self._lease.session, self._lease.epoch, self._after
        return JournalFailed(
            f"Cannot append to the journal of session {session!r} ({epoch}:{after} in {self._link.address}): "
            f"{why}.",
            hint="The session stops here; what was appended before is safe. Mend the server and resume.",
            session=session,
            path=f"{epoch}:{after}",
        )


def open_segment(lease: PostgresLease, link: Link, after: int) -> PostgresSegment:
    """A new segment for the records after `after`."""
    lease.not_released()

    def ask(connection: Connection) -> tuple[str, bool]:
        found = connection.execute(_BEGIN, [*lease.fence, after]).fetchone()
        return ("fenced", False) if found is None else (found[0], found[1])

    outcome, synced = link.sure(ask)
    if outcome == "fenced":
        lease.lost()
    if outcome == "used":
        raise JournalFailed(
            f"The journal segment {lease.epoch}:{after} of session {lease.session!r} has records already.",
            hint="Two writers of one epoch cannot be; resume the session to open a new epoch.",
            session=lease.session,
            path=f"{lease.epoch}:{after}",
        )
    if not synced:
        raise NoJournal(
            f"{link.address} confirms what is not on its disk yet (fsync = off), so it can keep no journal.",
            hint="Set fsync = on in its configuration, or use durability='checkpoint'.",
            store=link.address,
        )
    return PostgresSegment(lease, link, after)


def read_segments(link: Link, session: str) -> Iterator[tuple[int, int, bytes]]:
    """(epoch, after, bytes) in that order."""
    asked = """select data from graflow_ckpt.frames
        where session = %s and epoch = %s and after = %s and number >= %s order by number limit %s"""
    for epoch, after in _segments(link, session):
        frames: list[bytes] = []
        while True:
            args = [session, epoch, after, len(frames), _PAGE]
            page = link.sure(lambda c, args=args: c.execute(asked, args, binary=True).fetchall())  # type: ignore[misc]
            frames += [row[0] for row in page]
            if len(page) < _PAGE:
                break
        yield epoch, after, b"".join(frames)


def drop_segments(link: Link, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    gone = [segment for segment, (_, ended) in pairwise(_segments(link, session)) if ended <= before]
    asked = """delete from graflow_ckpt.segments where session = %s
        and (epoch, after) in (select * from unnest(%s::bigint[], %s::bigint[]))"""
    if gone:
        args = [session, [epoch for epoch, _ in gone], [after for _, after in gone]]
        link.sure(lambda connection: connection.execute(asked, args))


def _segments(link: Link, session: str) -> list[tuple[int, int]]:
    asked = "select epoch, after from graflow_ckpt.segments where session = %s order by epoch, after"
    return link.sure(lambda connection: connection.execute(asked, [session]).fetchall())
