"""Checkpoints in Postgres.

Promise: that of keyed.py. What is reported as `synced` is on the server's disk, also where the server's or
the user's default is not to wait. A server that goes away and comes back within some seconds interrupts
nothing; a save that fails after that is a `CheckpointError`.

All users that can write to the database can write here, so seals need a key that all have (`shared`).
Tables are made by `graflow-ckpt db upgrade` and by nothing else: a program needs no right to make any.
Paths and addresses: names.py. Not here: what a checkpoint contains, and whether it can be trusted.
"""

from __future__ import annotations

import os

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError, NoJournal
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.drivers.postgres.driver import PostgresDriver
from graflow_ckpt.stores.drivers.postgres.link import Link
from graflow_ckpt.stores.drivers.postgres.names import divided, folder_of, is_postgres, parse
from graflow_ckpt.stores.drivers.postgres.schema import Schema
from graflow_ckpt.stores.journal import KeyedSegment
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import LEASE
from graflow_ckpt.stores.names import base_of, is_text, path_of

_LONGEST = 500  # bytes of a name


class PostgresStore(KeyedStore):
    """Connects at the first use, not before.

    `where`: postgresql://host:port/database; the name of a checkpoint may follow, and does not matter.
    `lease`: seconds after which a silent owner on another machine counts as dead.
    """

    def __init__(self, where: str | os.PathLike[str], *, lease: float = LEASE) -> None:
        arguments.real("lease", lease, above=0)
        address = parse(divided(os.fspath(where))[0])
        self._link = Link(address)
        self._checked = False
        super().__init__(PostgresDriver(self._ready), str(address), lease=lease)
        self.synced = False  # until `probe` or a save has found out

    @property
    def schema(self) -> Schema:
        """The tables, for the program that makes and changes them."""
        return Schema(self._link)

    def close(self) -> None:
        """Close the connections. The next use connects again."""
        self._link.close()

    def takes(self, path: str) -> str | None:
        if not is_postgres(path):
            return None
        store, base = divided(path)
        return path_of(self.folder, base) if base and folder_of(store) == self.folder else None

    def journal(self, lease: Lease, after: int) -> KeyedSegment:
        segment, done = super().journal(lease, after), self.driver.batch([])
        if done is None or not done.synced:
            raise NoJournal(
                f"{self.folder} confirms what is not on its disk (fsync = off), so it can keep no journal.",
                hint="Set fsync = on in its configuration, or use durability='checkpoint'.",
                store=self.folder,
            )
        return segment

    def _ready(self) -> Link:
        if not self._checked:  # two threads may do it at once: neither waits with a lock for the server
            self.schema.check()
            self._checked = True
        return self._link

    def _pattern(self, pattern: str) -> str:
        names = pattern.removeprefix(f"{self.folder}/")  # as a glob, in which `?` begins no options
        return base_of(divided(names)[1] if is_postgres(names) else names)

    def _name(self, path: str) -> str:
        base = super()._name(path)
        if not is_text(base) or not 0 < len(base.encode()) <= _LONGEST or "\0" in base:
            raise CheckpointError(
                f"{base[:80]!r} cannot be the name of a checkpoint in Postgres.",
                hint=f"It is text of at most {_LONGEST} bytes.",
                path=path[:_LONGEST],
            )
        return base
