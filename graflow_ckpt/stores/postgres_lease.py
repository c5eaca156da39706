"""Leases and journals in Postgres: one owner per session, by the server's clock, and the frames of the owner.

    graflow_ckpt.sessions    session, epoch, owner (as JSON), until, term, claim

Promise: of several who acquire a session at once exactly one gets it. Who has lost it finds out at the
next write: each write locks the row of its session, with its epoch and its claim, in the statement that
commits it: with both, since a server that was put back to an older state gives an epoch out once more.
A thread renews the lease every third of its term. A dead owner of this machine is told by its process
and taken over at once. One of another machine shows that it lives by renewing; if it does not, its
lease ends by the server's clock, or, should that have been set back, when it has been silent for a
whole term before the eyes of who waits.

Journal segments in Postgres: rows that frames are appended to, one segment after each cut.

    graflow_ckpt.segments    session, epoch, after
    graflow_ckpt.frames      session, epoch, after, number, data

Promise: a frame is on the server's disk when `append` returns, once, and it was appended by the
session's owner: the transaction that writes it locks epoch and claim. After a failure nothing more is
appended, ever. Not here: that the server syncs at all (postgres.py refuses one with fsync off),
what is in a frame, and which frames count (checkpoint/journal.py).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from typing import NoReturn

from graflow_ckpt.core.errors import NoJournal
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import is_gone, myself
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.fencing import FencedLease, FencedSegment, Watch, used
from graflow_ckpt.stores.postgres_link import Connection, Link, Prepared

LEASE = 15.0
HELD = """ from (select session, epoch from graflow_ckpt.sessions
    where session = %s and epoch = %s::bigint and claim = %s for share) as held"""
"""What a routine is called from: not at all, if the session is somebody else's. The lock lasts until the
commit, and comes before the call, because the planner leaves a query that locks as it is."""

_MINE = " where session = %s and epoch = %s and claim = %s"


class PostgresLease(FencedLease):
    """One in Postgres."""

    def __init__(
        self, link: Link, session: str, epoch: int, claim: str, taken_from: Owner | None, seconds: float
    ) -> None:
        self._link = link
        super().__init__(link.address, session, epoch, claim, taken_from, seconds)

    @property
    def fence(self) -> list[str | int]:
        """What a write has to find in the row of the session."""
        return [self.session, self.epoch, self.claim]

    def check(self) -> None:
        self.not_released()
        asked = "select epoch, claim, owner from graflow_ckpt.sessions where session = %s"
        found = self._link.sure(lambda connection: connection.execute(asked, [self.session]).fetchone())
        if found is None or found[:2] != (self.epoch, self.claim):
            raise self.lost_to(found[0] if found else None, owner_of(found[2] if found else None))

    def lost(self) -> NoReturn:
        """Raise what is to be raised when the server has refused the claim."""
        self.check()
        raise self.lost_to(None, None)  # it was there again when it was asked: somebody plays with the tables

    def _let_go(self) -> None:
        asked = "update graflow_ckpt.sessions set owner = null, until = null" + _MINE
        self._link.run(lambda connection: connection.execute(asked.encode(), self.fence))

    def _renew(self) -> bool:
        until = "clock_timestamp() + %s * interval '1 second'"
        asked, args = f"update graflow_ckpt.sessions set until = {until}{_MINE}", [self._seconds, *self.fence]
        return self._link.run(lambda connection: connection.execute(asked.encode(), args).rowcount) == 1


class Leases:
    """The leases of the sessions in one store."""

    def __init__(self, link: Link, seconds: float) -> None:
        self._link = link
        self._seconds = seconds

    def acquire(self, session: str, *, take_over: bool, floor: int) -> PostgresLease:
        """Become the owner. `floor`: the highest epoch known from elsewhere, if the row was lost."""
        claim, how = uuid.uuid4().hex, "take" if take_over else "ask"
        me = json.dumps(asdict(myself()), separators=(",", ":"))
        watch = Watch(session)
        while True:
            args = [session, claim, me, int(self._seconds * 1000), how, floor]
            granted, epoch, said, until, term = self._link.sure(lambda c, args=args: _claim(c, args))  # type: ignore[misc]
            owner = owner_of(said)
            if granted:
                return PostgresLease(self._link, session, epoch, claim, owner, self._seconds)
            how = "ask"
            if owner is None or is_gone(owner):
                how = str(epoch)  # not "take": somebody else may have found out, too, and be the owner now
                continue
            if watch.silent(owner, until, term / 1000):
                how = str(epoch)

    def owner(self, session: str) -> Owner | None:
        """The living owner, without taking anything."""
        asked = "select owner from graflow_ckpt.sessions where session = %s and until > clock_timestamp()"
        found = self._link.sure(lambda connection: connection.execute(asked, [session]).fetchone())
        owner = owner_of(found[0] if found else None)
        return None if owner is None or is_gone(owner) else owner

    def known(self, session: str) -> bool:
        """Whether the server remembers an epoch."""
        asked = "select from graflow_ckpt.sessions where session = %s"
        return self._link.sure(lambda connection: connection.execute(asked, [session]).fetchone()) is not None


def _claim(connection: Connection, args: list[object]) -> tuple[bool, int, str | None, datetime, int]:
    asked = "select * from graflow_ckpt.claim(%s, %s, %s, %s::bigint, %s, %s::bigint)"
    found = connection.execute(asked, args).fetchone()
    assert found is not None
    return found[0], found[1], found[2], found[3], found[4]


def owner_of(said: str | None) -> Owner | None:
    return claims.owner_in(said, "the table of sessions")


# --- journals ------------------------------------------------------------------------------


_PAGE = 1000  # frames that are read at once
_APPEND = Prepared(
    "append", f"select graflow_ckpt.append(session, epoch, %s::bigint, %s::bigint, %b::bytea){HELD}"
)
_BEGIN = (
    f"select outcome, synced{HELD}, graflow_ckpt.begin_segment(held.session, held.epoch, %s::bigint)".encode()
)


class PostgresSegment(FencedSegment):
    """One in Postgres."""

    def __init__(self, lease: PostgresLease, link: Link, after: int) -> None:
        super().__init__(lease, _key(link, lease, after))
        self._lease, self._link, self._after = lease, link, after

    def _write(self, frame: bytes) -> bool:
        args = [self._after, self._count, frame, *self._lease.fence]
        found = self._link.sure(lambda connection: _APPEND.row(connection, args))
        if found is None:
            self._lease.lost()
        return found[0] == b"ok"


def _key(link: Link, lease: PostgresLease, after: int) -> str:
    return f"{lease.epoch}:{after} in {link.address}"


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
        raise used(lease.session, _key(link, lease, after))
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
