"""The schema `graflow_ckpt` of a database: which version it has, and how it gets to another.

    graflow_ckpt.migrations      version, name, digest of its text, when
    migrations/NNNN_name.up.sql, NNNN_name.down.sql

Promise: each step is one transaction with its row in `migrations`, so that a step whose process or
server dies has not happened. Steps of several programs come one after the other, by a lock, and each
looks again at what is left to do. A step whose text differs from what a database got is refused.
Nothing else makes or changes tables: a store on a database that is not ready says how to make it so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files

from graflow_ckpt.core.errors import SchemaUnsupported
from graflow_ckpt.stores.drivers.postgres.link import Connection, Link, upgrade_hint

_LOCK = 0x67726166  # of the process that changes the schema
_WAIT = "30s"  # for that lock, and for users of the tables: they must not wait behind us for ever
_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>\w+)\.up\.sql\Z")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step up, and the way back."""

    version: int
    name: str
    up: str = field(repr=False)
    down: str = field(repr=False)

    @property
    def digest(self) -> str:
        return sha256(self.up.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """A step that a database has taken."""

    version: int
    name: str
    digest: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The state of a database. `verdict`: ready, none, behind, newer or changed."""

    applied: tuple[Applied, ...]
    known: tuple[Migration, ...]

    @property
    def version(self) -> int:
        return self.applied[-1].version if self.applied else 0

    @property
    def wanted(self) -> int:
        return self.known[-1].version

    @property
    def changed(self) -> list[int]:
        """The steps that were another text there."""
        texts = {step.version: step.digest for step in self.known}
        return [step.version for step in self.applied if texts.get(step.version, step.digest) != step.digest]

    @property
    def verdict(self) -> str:
        if self.changed:
            return "changed"
        if not self.applied:
            return "none"
        if self.version == self.wanted:
            return "ready"
        return "behind" if self.version < self.wanted else "newer"


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all that this version knows, in order."""
    found = []
    folder = files("graflow_ckpt.stores.drivers.postgres") / "migrations"
    for file in folder.iterdir():
        if match := _NAME.match(file.name):
            down = folder / file.name.replace(".up.", ".down.")
            texts = (file.read_text(encoding="utf-8"), down.read_text(encoding="utf-8"))
            found.append(Migration(int(match["version"]), match["name"], *texts))
    return tuple(sorted(found, key=lambda step: step.version))


class Schema:
    """That of one database. `known`: the steps that there are."""

    def __init__(self, link: Link, known: tuple[Migration, ...] | None = None) -> None:
        self._link = link
        self._known = migrations() if known is None else known

    def status(self) -> SchemaStatus:
        return SchemaStatus(self._link.run(_applied), self._known)

    def check(self) -> None:
        """Raise unless the tables are those of this version."""
        self._refuse(self.status(), ready=True)

    def upgrade(self, to: int | None = None) -> list[Migration]:
        """Take the steps that are left, up to version `to`; return those that were taken."""
        target = self._version(self._known[-1].version if to is None else to)

        def step(connection: Connection, status: SchemaStatus) -> Migration | None:
            left = [step for step in self._known if status.version < step.version <= target]
            if not left:
                return None
            if not status.applied:
                connection.execute(_BOOK)
            connection.execute(left[0].up.encode())
            connection.execute(
                "insert into graflow_ckpt.migrations (version, name, digest) values (%s, %s, %s)",
                [left[0].version, left[0].name, left[0].digest],
            )
            return left[0]

        return self._steps(step)

    def downgrade(self, to: int) -> list[Migration]:
        """Go back to version `to`, with the loss of what later versions keep; to 0: of everything."""
        target = self._version(to)

        def step(connection: Connection, status: SchemaStatus) -> Migration | None:
            if status.version <= target:
                return None
            last = next(step for step in self._known if step.version == status.version)
            connection.execute(last.down.encode())
            connection.execute("delete from graflow_ckpt.migrations where version = %s", [last.version])
            if status.version == self._known[0].version:
                connection.execute("drop table graflow_ckpt.migrations")
                connection.execute("drop schema graflow_ckpt")  # refused if something of another's is in it
            return last

        return self._steps(step)

    def counts(self) -> tuple[int, int]:
        """Return how many checkpoints and sessions a downgrade would delete."""

        def ask(connection: Connection) -> tuple[int, int]:
            return connection.execute(_COUNTS).fetchone() or (0, 0)

        return self._link.run(ask) if self.status().version else (0, 0)

    # --- within ------------------------------------------------------------------------

    def _steps(self, step: Callable[[Connection, SchemaStatus], Migration | None]) -> list[Migration]:
        def one(connection: Connection) -> Migration | None:
            with connection.transaction():
                connection.execute(f"set local lock_timeout = '{_WAIT}'".encode())
                connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
                status = SchemaStatus(_applied(connection), self._known)
                self._refuse(status, ready=False)
                return step(connection, status)

        done = []
        while (taken := self._link.run(one)) is not None:
            done.append(taken)
        return done

    def _version(self, to: int) -> int:
        if to != 0 and to not in {step.version for step in self._known}:
            versions = ", ".join(str(step.version) for step in self._known)
            raise SchemaUnsupported(
                f"There is no version {to} of the tables.",
                hint=f"There are: 0 (none), {versions}.",
                version=to,
            )
        return to

    def _refuse(self, status: SchemaStatus, *, ready: bool) -> None:
        verdict, where = status.verdict, self._link.address
        if verdict == "ready" or (verdict in ("none", "behind") and not ready):
            return
        upgrade, step = upgrade_hint(where), next(iter(status.changed), 0)
        made = f"The tables in {where} have version {status.version}; this program"
        why, hint = {
            "newer": (f"{made} knows {status.wanted}.", "Use the newer graflow-ckpt that has upgraded them."),
            "changed": (
                f"The tables in {where} were made by another text of step {step} than this program has.",
                "Use the program that made them, or copy the checkpoints to a new database.",
            ),
            "none": (f"{where} has no tables for checkpoints yet.", upgrade),
            "behind": (f"{made} needs {status.wanted}.", upgrade),
        }[verdict]
        ids = {"store": where, "version": status.version, "wanted": status.wanted}
        raise SchemaUnsupported(why, hint=hint, **ids)


_COUNTS = b"""
select count(number), count(*) filter (where key like 'head/%' and key not like 'head/@%')
from graflow_ckpt.things"""
_BOOK = b"""
create schema if not exists graflow_ckpt;
create table if not exists graflow_ckpt.migrations (
    version integer primary key,
    name text not null,
    digest text not null,
    at timestamptz not null default clock_timestamp()
)"""


def _applied(connection: Connection) -> tuple[Applied, ...]:
    there = connection.execute("select to_regclass('graflow_ckpt.migrations') is not null").fetchone()
    if there != (True,):
        return ()
    rows = connection.execute(
        "select version, name, digest, at from graflow_ckpt.migrations order by version"
    )
    return tuple(Applied(*row) for row in rows)
