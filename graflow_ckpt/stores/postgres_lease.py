"""Leases in Postgres: one row per session, one owner, an epoch that only grows, by the server's clock.

    graflow_ckpt.sessions    session, epoch, owner (as JSON), until, term, claim

Promise: of several who acquire a session at once exactly one gets it. Who has lost it finds out at the
next write: each write locks the row of its session, with its epoch and its claim, in the statement that
commits it: with both, since a server that was put back to an older state gives an epoch out once more.
A thread renews the lease every third of its term. A dead owner of this machine is told by its process
and taken over at once. One of another machine shows that it lives by renewing; if it does not, its
lease ends by the server's clock, or, should that have been set back, when it has been silent for a
whole term before the eyes of who waits.
Not here: what the epoch guards (postgres_trio.py, postgres_journal.py).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from dataclasses import asdict
from datetime import datetime

from graflow_ckpt.core.errors import Fenced, GraflowError
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import is_gone, is_near, myself, named
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.claims import busy, forgotten, released
from graflow_ckpt.stores.claims import lost as lost_to
from graflow_ckpt.stores.postgres_link import Connection, Link

LEASE = 15.0
HELD = """ from (select session, epoch from graflow_ckpt.sessions
    where session = %s and epoch = %s::bigint and claim = %s for share) as held"""
"""What a routine is called from: not at all, if the session is somebody else's. The lock lasts until the
commit, and comes before the call, because the planner leaves a query that locks as it is."""

_MINE = " where session = %s and epoch = %s and claim = %s"
_POLL = 0.1
_logger = logging.getLogger(__name__)


class PostgresLease:
    """A session that this process owns until it releases it, dies, or is fenced."""

    def __init__(
        self, link: Link, session: str, epoch: int, claim: str, taken_from: Owner | None, seconds: float
    ) -> None:
        self.session = session
        self.epoch = epoch
        self.claim = claim
        self.taken_from = taken_from
        self._link = link
        self._seconds = seconds
        self._process = os.getpid()
        self._released = False
        self._over = threading.Event()  # nothing is left to renew
        self._keeper = threading.Thread(target=self._keep, name=f"lease-{session}", daemon=True)
        self._keeper.start()

    @property
    def fence(self) -> list[str | int]:
        """What a write has to find in the row of the session."""
        return [self.session, self.epoch, self.claim]

    def check(self) -> None:
        """Raise `Fenced` unless the session is still ours: the server is asked."""
        self.not_released()
        asked = "select epoch, claim, owner from graflow_ckpt.sessions where session = %s"
        found = self._link.sure(lambda connection: connection.execute(asked, [self.session]).fetchone())
        if found is None or found[:2] != (self.epoch, self.claim):
            raise self._lost(*((found[0], found[2]) if found else (None, None)))

    def release(self) -> None:
        """Let the session go. What cannot be written then does not matter: the lease runs out."""
        if self._process != os.getpid() or self._released:
            return
        self._released = True
        self._over.set()
        asked = "update graflow_ckpt.sessions set owner = null, until = null" + _MINE
        try:
            self._link.run(lambda connection: connection.execute(asked.encode(), self.fence))
        except GraflowError as error:
            _logger.info("session %s let go without a word: %s", self.session, error)

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise released(self.session, self.epoch)

    def lost(self) -> None:
        """Raise what is to be raised when the server has refused the claim."""
        self.check()
        raise self._lost(None, None)  # it was there again when it was asked: somebody plays with the tables

    def _lost(self, epoch: int | None, owner: str | None) -> Fenced:
        self._over.set()
        if epoch is None:
            return forgotten(self._link.address, self.session, self.epoch)
        return lost_to(self.session, self.epoch, epoch, owner_of(owner))

    def _keep(self) -> None:
        """The keeper's thread: whatever goes wrong in one pass, the next one tries again."""
        while not self._over.wait(self._seconds / 3):
            try:
                kept = self._renew()
            except Exception as error:  # noqa: BLE001  a keeper's pass
                _logger.warning("cannot renew session %s: %s", self.session, error)
                continue
            if not kept:
                return  # the next write says so, where somebody can hear it

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
        seen: datetime | None = None
        since = 0.0
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
            if is_near(owner) or (seen is not None and until != seen):
                raise busy(session, owner)
            if seen is None:
                _logger.info("waiting to see whether %s is alive", named(owner), extra={"session": session})
                seen, since = until, time.monotonic()
            elif time.monotonic() - since > term / 1000:
                how = str(epoch)
            time.sleep(_POLL)

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
