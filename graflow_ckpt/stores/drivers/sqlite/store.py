"""Checkpoints in a SQLite database: one file, nothing to set up, for all processes of one machine.

Promise: that of keyed.py; what is confirmed is on the disk (WAL, synchronous=FULL).

A file of this user's, like those in a folder: seals are made with the local key.
Paths: names.py. Backup and vacuum: care.py.
Not here: what a checkpoint contains, and whether it can be trusted. What is deleted is not overwritten.
"""

from __future__ import annotations

import os

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.drivers.sqlite.driver import SqliteDriver
from graflow_ckpt.stores.drivers.sqlite.file import PATIENCE, Database
from graflow_ckpt.stores.drivers.sqlite.names import file_of, folder_of, is_sqlite, split
from graflow_ckpt.stores.files.disk import anyones
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import LEASE
from graflow_ckpt.stores.names import base_of, is_text, path_of


class SqliteStore(KeyedStore):
    """Opened at the first use, made at the first write.

    `where`: sqlite:///FILE, or sqlite:// alone for the user's own. `lease`: seconds after which a silent
    owner counts as dead. `patience`: seconds to wait for others that write.
    """

    shared = False

    def __init__(
        self, where: str | os.PathLike[str], *, lease: float = LEASE, patience: float = PATIENCE
    ) -> None:
        arguments.real("lease", lease, above=0)
        arguments.real("patience", patience, least=0)
        text = os.fspath(where)
        self.file = file_of(text if is_sqlite(text) else folder_of(os.path.abspath(text)))
        self._database = Database(self.file, patience=patience)
        super().__init__(SqliteDriver(self._database), folder_of(self.file), lease=lease)

    def takes(self, path: str) -> str | None:
        if not is_sqlite(path):
            return None
        store, base = split(path)
        return path_of(self.folder, base) if base and (not store or file_of(store) == self.file) else None

    def close(self) -> None:
        """Close the file until the next use."""
        self._database.close()

    def unsafe(self, path: str) -> str | None:
        """Return why every user could have written that checkpoint; None if that is not so."""
        return anyones((self.file, f"{self.file}-wal"), os.path.dirname(self.file))

    def _pattern(self, pattern: str) -> str:
        return split(pattern)[1] if is_sqlite(pattern) else base_of(pattern)

    def _name(self, path: str) -> str:
        own = f"{self.folder}/"  # as it is listed and saved
        base = base_of(path[len(own) :]) if path.startswith(own) else super()._name(path)
        if not base or "/" in base or "\0" in base or not is_text(base):
            raise CheckpointError(
                f"{path!r} is no name for a checkpoint in SQLite.",
                hint="Give it one without slashes.",
                path=path,
            )
        return base
