"""Checkpoints in Postgres.

Promise: that of postgres_trio.py for every checkpoint and of postgres_lease.py for every session: a trio
appears whole, in one transaction that also locks its writer's epoch. What is reported as `synced` is on the
server's disk, also where the server's or the user's default is not to wait. A server that goes away and
comes back within some seconds interrupts nothing; a save that fails after that is a `CheckpointError`.

Everybody who can write to the database can write here, so seals need a key that all have (`shared`).
Tables are made by `graflow-ckpt db upgrade` and by nothing else: a program needs no right to make any.
Paths and addresses: postgres_names.py. Not here: what a checkpoint contains, and whether it can be trusted.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Unpack

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Lease, Owner, PartWriter
from graflow_ckpt.stores import postgres_lease
from graflow_ckpt.stores.batches import Filters
from graflow_ckpt.stores.fencing import clearing
from graflow_ckpt.stores.names import base_of, is_text, path_of, session_of, unwritten
from graflow_ckpt.stores.postgres_contents import PostgresContents, PostgresSource
from graflow_ckpt.stores.postgres_lease import LEASE, Leases, PostgresLease
from graflow_ckpt.stores.postgres_link import Connection, Link
from graflow_ckpt.stores.postgres_names import divided, folder_of, is_postgres, parse
from graflow_ckpt.stores.postgres_schema import Schema
from graflow_ckpt.stores.postgres_trio import Put, Trios, Wanted
from graflow_ckpt.stores.store import FencedStore

_LONGEST = 500  # bytes of a name
_PLAIN = re.compile(r"[^/?#]+\Z")


@dataclass(frozen=True, slots=True)
class _Opened:
    leases: Leases
    trios: Trios


class PostgresStore(FencedStore[PostgresLease]):
    """Connects at the first use, not before.

    `where`: postgresql://host:port/database; the name of a checkpoint may follow, and does not matter.
    `lease`: seconds after which a silent owner on another machine counts as dead.
    """

    own = PostgresLease
    shared = True

    def __init__(self, where: str | os.PathLike[str], *, lease: float = LEASE) -> None:
        arguments.real("lease", lease, above=0)
        address = parse(divided(os.fspath(where))[0])
        self.folder = str(address)
        self.synced = False  # until `probe` or a save has found out
        self._seconds = lease
        self._link = Link(address)
        self._opened: _Opened | None = None
        self._prefix = f"{self.folder}/"
        self.contents = PostgresContents(self._linked, self._base)

    @property
    def schema(self) -> Schema:
        """The tables, for who makes and changes them."""
        return Schema(self._link)

    def close(self) -> None:
        """Hang up. The next use connects anew."""
        self._link.close()

    def probe(self) -> None:
        """Do once what saving will do, and take it away again."""
        put = uuid.uuid4().hex

        def ask(connection: Connection) -> bool:
            found = connection.execute("select graflow_ckpt.durable()").fetchone()
            connection.execute("select graflow_ckpt.stage(null, null, %s, 'probe', 0, 'probe')", [put])
            connection.execute("select graflow_ckpt.withdraw(%s)", [put])
            return found == (True,)

        assert self._all is not None
        self.synced = self._link.run(ask)

    def takes(self, path: str) -> str | None:
        if not is_postgres(path):
            return None
        store, base = divided(path)
        return path_of(self.folder, base) if base and folder_of(store) == self.folder else None

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> PostgresLease:
        check_session_id(session)
        leases, trios = self._all.leases, self._all.trios
        floor = 0 if leases.known(session) else trios.highest_epoch(session)
        lease = leases.acquire(session, take_over=take_over, floor=floor)
        with clearing(lease):
            trios.sweep(lease)
        return lease

    def owner(self, session: str) -> Owner | None:
        return self._all.leases.owner(check_session_id(session))

    # --- checkpoints -------------------------------------------------------------------

    def put(
        self, path: str, parts: Sequence[tuple[str, PartWriter]], *, lease: Lease | None, stage: str
    ) -> None:
        base = self._base(path)
        mine = self._writer(path, session_of(base), lease)
        with unwritten(path):
            self.synced = self._all.trios.write(Put(base, mine, stage), parts)

    def open(self, path: str, part: str, stage: str) -> PostgresSource:
        return self._all.trios.open_part(self._base(path), part, stage)

    def meta(self, path: str) -> bytes:
        return self._all.trios.meta(self._base(path))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Paths and metas, the last committed first.

        `session`: its own paths, and those under other names whose meta names it.
        `pattern`: a glob of names, alone or after the store, instead of all.
        """
        if session is not None:
            check_session_id(session)
        names = None
        if pattern is not None:
            names = pattern.removeprefix(f"{self.folder}/")  # as a glob, in which `?` begins no options
            names = base_of(divided(names)[1] if is_postgres(names) else names)
        for base, raw in self._all.trios.metas(Wanted(session, _literal(names or ""))):
            if names is None or fnmatchcase(base, names):
                yield path_of(self.folder, base), raw

    def newest(self, limit: int, **wanted: Unpack[Filters]) -> Sequence[tuple[str, bytes]]:
        """The last committed of those whose metas say so, found by indexes."""
        if (session := wanted.get("session")) is not None:
            check_session_id(session)
        found = self._all.trios.newest(Wanted(**wanted), limit)
        return [(path_of(self.folder, base), raw) for base, raw in found]

    def delete_many(self, paths: Iterable[str]) -> int:
        """Some hundreds in one transaction; how many there were."""
        return self._all.trios.delete_many([self._base(path) for path in paths])

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> postgres_lease.PostgresSegment:
        return postgres_lease.open_segment(self._own(lease), self._link, after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        assert self._all is not None
        return postgres_lease.read_segments(self._link, check_session_id(session))

    def drop_segments(self, session: str, before: int) -> None:
        postgres_lease.drop_segments(self._link, check_session_id(session), before)

    # --- within ------------------------------------------------------------------------

    @property
    def _all(self) -> _Opened:
        if self._opened is None:  # two threads may do it at once: neither waits with a lock for the server
            self.schema.check()
            self._opened = _Opened(Leases(self._link, self._seconds), Trios(self._link, self.folder))
        return self._opened

    def _linked(self) -> Link:
        assert self._all is not None
        return self._link

    def _base(self, path: str) -> str:
        if path.startswith(self._prefix) and _PLAIN.match(path, len(self._prefix)):  # as it is saved
            path = path[len(self._prefix) :]
        base = self._name(path)
        if not is_text(base) or not 0 < len(base.encode()) <= _LONGEST or "\0" in base:
            raise CheckpointError(
                f"{base[:80]!r} cannot be the name of a checkpoint in Postgres.",
                hint=f"It is text of at most {_LONGEST} bytes.",
                path=path[:_LONGEST],
            )
        return base


def _literal(pattern: str) -> str:
    """What a glob begins with before its first special character."""
    ends = [at for at in map(pattern.find, "*?[") if at >= 0]
    return pattern[: min(ends)] if ends else pattern
