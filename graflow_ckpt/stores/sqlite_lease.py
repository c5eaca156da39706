"""Leases in a SQLite store: one owner per session, under an epoch that only grows.

    leases    session, epoch, owner (as JSON, with the id of the claim), ends, ends_by_date (milliseconds)

Promise: of several who acquire a session at once exactly one gets it, and who has lost it finds out at the
next write, which is refused by its epoch and claim in the same transaction: by both, since a database that
was put back to an older state gives an epoch out once more. A thread renews the lease every third of
its time. A dead owner whose process can be looked at is taken over at once; one in another container
shows that it lives by renewing. If it does not, its lease runs out, and `acquire` waits for that.

A lease ends by the clock that counts from the boot of the machine, which nobody can set: all processes
that use the database have it in common. After a reboot the date is all there is.
Not here: what the epoch guards (sqlite_trio.py, sqlite_journal.py).
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from dataclasses import asdict

from graflow_ckpt.core.errors import Fenced, GraflowError
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import is_gone, is_near, myself, named
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.claims import busy, lost, released
from graflow_ckpt.stores.sqlite_file import Database

LEASE = 15.0
_WAITED = 4  # lease times: an end that is further off comes of a clock that was wrong, or of somebody else
_WHERE = "the table of leases"

_POLL = 0.1
_Row = tuple[int, str | None, int, int]
_logger = logging.getLogger(__name__)


class SqliteLease:
    """A session that this process owns until it releases it, dies, or is fenced."""

    def __init__(
        self,
        database: Database,
        session: str,
        epoch: int,
        claimed: str,
        taken_from: Owner | None,
        seconds: float,
    ) -> None:
        self.session = session
        self.epoch = epoch
        self._claimed = claimed  # the owner as this claim has written it
        self.taken_from = taken_from
        self._database = database
        self._seconds = seconds
        self._process = os.getpid()
        self._released = False
        self._over = threading.Event()  # nothing is left to renew
        self._keeper = threading.Thread(target=self._keep, name=f"lease-{session}", daemon=True)
        self._keeper.start()

    def check(self) -> None:
        """Raise `Fenced` unless the session is still ours."""
        self.not_released()
        with self._database.reading() as connection:
            self.hold(connection)

    def hold(self, connection: sqlite3.Connection | None) -> None:
        """The same within a transaction: nobody else gets the session before that ends."""
        self.not_released()
        found = None
        if connection is not None:
            found = _row(connection, self.session)
        if found is None or found[:2] != (self.epoch, self._claimed):
            raise self._lost(found)

    def release(self) -> None:
        """Let the session go. What cannot be written then does not matter: the lease runs out."""
        if self._process != os.getpid() or self._released:
            return
        self._released = True
        self._over.set()
        if not self._database.is_there():
            return
        try:
            with self._database.writing(easy=True) as connection:
                update = "UPDATE leases SET owner = NULL, ends = 0 WHERE "
                update += "session = ? AND epoch = ? AND owner = ?"
                connection.execute(update, (self.session, self.epoch, self._claimed))
        except GraflowError as error:
            _logger.info("session %s let go without a word: %s", self.session, error)

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise released(self.session, self.epoch)

    def _lost(self, found: _Row | None) -> Fenced:
        self._over.set()
        if found is None:
            return Fenced(
                f"{self._database.file} does not know session {self.session!r}: it was removed or replaced.",
                hint="Nothing more is written, because another process could own the session now.",
                session=self.session,
                epoch=self.epoch,
            )
        return lost(self.session, self.epoch, found[0], _owner_of(found))

    def _keep(self) -> None:
        """The keeper's thread: whatever goes wrong in one pass, the next one tries again."""
        while not self._over.wait(self._seconds / 3):
            try:
                kept = self._database.is_there() and self._renew()
            except Exception as error:  # noqa: BLE001  a keeper's pass
                _logger.warning("cannot renew session %s: %s", self.session, error)
                continue
            if not kept:
                return  # the next write says so, where somebody can hear it

    def _renew(self) -> bool:
        with self._database.writing(easy=True) as connection:
            update = "UPDATE leases SET ends = ?, ends_by_date = ? "
            update += "WHERE session = ? AND epoch = ? AND owner = ?"
            values = (*_ends(self._seconds), self.session, self.epoch, self._claimed)
            return connection.execute(update, values).rowcount == 1


class Leases:
    """The leases of the sessions in one database."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds

    def acquire(self, session: str, *, take_over: bool) -> SqliteLease:
        me = json.dumps({**asdict(myself()), "claim": os.urandom(16).hex()}, separators=(",", ":"))
        seen, since = None, 0.0
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
            if is_near(owner) or (seen is not None and found[2:4] != seen):
                raise busy(session, owner)
            if seen is None:
                _logger.info("waiting to see whether %s is alive", named(owner), extra={"session": session})
                since = time.monotonic()
            elif time.monotonic() - since > _WAITED * self._seconds:
                raise busy(session, owner)
            seen = found[2:4]
            time.sleep(_POLL)
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
