"""Checkpoints in a SQLite database: one file, nothing to set up, for all processes of one machine.

Promise: that of sqlite_trio.py for every checkpoint and of sqlite_lease.py for every session: a trio appears
whole, in one transaction, which is on the disk when `put` returns (WAL, synchronous=FULL); a writer that has
lost its session commits nothing; what a dead one has left, the session's next owner clears away.

A file of this user's, like those in a folder: seals are made with the local key.
Paths: sqlite_names.py. Backup and vacuum: sqlite_care.py.
Not here: what a checkpoint contains, and whether it can be trusted. What is deleted is not overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Unpack

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Lease, Owner, PartWriter
from graflow_ckpt.stores import sqlite_chunks, sqlite_lease
from graflow_ckpt.stores.batches import Filters
from graflow_ckpt.stores.disk import anyones
from graflow_ckpt.stores.fencing import clearing
from graflow_ckpt.stores.names import base_of, is_text, path_of, session_of
from graflow_ckpt.stores.sqlite_chunks import ChunkSource
from graflow_ckpt.stores.sqlite_file import PATIENCE, Database
from graflow_ckpt.stores.sqlite_lease import LEASE, Leases, SqliteLease
from graflow_ckpt.stores.sqlite_names import file_of, folder_of, is_sqlite, split
from graflow_ckpt.stores.sqlite_trio import Put, Trios
from graflow_ckpt.stores.store import FencedStore


class SqliteStore(FencedStore[SqliteLease]):
    """Opened at the first use, made at the first write.

    `where`: sqlite:///FILE, or sqlite:// alone for the user's own. `lease`: seconds after which a silent
    owner counts as dead. `patience`: seconds to wait for others that write.
    """

    own = SqliteLease
    shared = False
    synced = True

    def __init__(
        self, where: str | os.PathLike[str], *, lease: float = LEASE, patience: float = PATIENCE
    ) -> None:
        arguments.real("lease", lease, above=0)
        arguments.real("patience", patience, least=0)
        text = os.fspath(where)
        self.file = file_of(text if is_sqlite(text) else folder_of(os.path.abspath(text)))
        self.folder = folder_of(self.file)
        self._database = Database(self.file, patience=patience)
        self._leases = Leases(self._database, lease)
        self._trios = Trios(self._database, self.folder)
        self.contents = sqlite_chunks.SqliteContents(self._database)

    def probe(self) -> None:
        """Do once what saving will do, and take it away again."""
        with self._database.writing() as connection:
            connection.execute("INSERT INTO chunks VALUES (-1, x'')")
            connection.execute("DELETE FROM chunks WHERE id = -1")

    def takes(self, path: str) -> str | None:
        if not is_sqlite(path):
            return None
        store, base = split(path)
        return path_of(self.folder, base) if base and (not store or file_of(store) == self.file) else None

    def close(self) -> None:
        """Let go of the file until the next use."""
        self._database.close()

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> SqliteLease:
        lease = self._leases.acquire(check_session_id(session), take_over=take_over)
        with clearing(lease):
            sqlite_chunks.sweep(self._database, session, lease.epoch)
            sqlite_chunks.clear_contents(self._database)
        return lease

    def owner(self, session: str) -> Owner | None:
        return self._leases.owner(check_session_id(session))

    # --- checkpoints -------------------------------------------------------------------

    def put(
        self, path: str, parts: Sequence[tuple[str, PartWriter]], *, lease: Lease | None, stage: str
    ) -> None:
        base = self._base(path)
        self._trios.write(Put(base, self._writer(path, session_of(base), lease), stage), parts)

    def open(self, path: str, part: str, stage: str) -> ChunkSource:
        return self._trios.open_part(self._base(path), part, stage)

    def meta(self, path: str) -> bytes:
        return self._trios.meta(self._base(path))

    def unsafe(self, path: str) -> str | None:
        """Why anybody could have written that checkpoint; None if not everybody could."""
        return anyones((self.file, f"{self.file}-wal"), os.path.dirname(self.file))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Paths and metas, the last committed first.

        `session`: its own paths, and those under other names whose meta names it.
        `pattern`: a glob of names, alone or after the store, instead of all.
        """
        glob = None
        if pattern is not None:
            glob = split(pattern)[1] if is_sqlite(pattern) else base_of(pattern)
        for base, raw in self._trios.metas(session, glob):
            yield path_of(self.folder, base), raw

    def newest(self, limit: int, **wanted: Unpack[Filters]) -> Sequence[tuple[str, bytes]]:
        """The last committed of those whose metas say so, found by indexes."""
        return [(path_of(self.folder, base), raw) for base, raw in self._trios.newest(limit, wanted)]

    def delete(self, path: str) -> bool:
        return self._database.is_there() and self._trios.delete(self._base(path))

    def delete_many(self, paths: Iterable[str]) -> int:
        """How many there were. Much faster than one by one, and others get to write in between."""
        return self._trios.delete_many(map(self._base, paths)) if self._database.is_there() else 0

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> sqlite_lease.SqliteSegment:
        return sqlite_lease.open_segment(self._database, self._own(lease), after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return sqlite_lease.read_segments(self._database, check_session_id(session))

    def drop_segments(self, session: str, before: int) -> None:
        sqlite_lease.drop_segments(self._database, check_session_id(session), before)

    # --- within ------------------------------------------------------------------------

    def _base(self, path: str) -> str:
        own = f"{self.folder}/"  # as it is listed and saved
        base = base_of(path[len(own) :]) if path.startswith(own) else self._name(path)
        if not base or "/" in base or "\0" in base or not is_text(base):
            raise CheckpointError(
                f"{path!r} is no name for a checkpoint in SQLite.",
                hint="Give it one without slashes.",
                path=path,
            )
        return base
