"""Checkpoints in Redis.

Promise: that of keyed.py. A reply that is lost is asked for again, for some seconds; a save that fails after
that is a `CheckpointError`.

All users that can write to the server can write here, so seals need a key that all have (`shared`).
Paths: names.py. Not here: what a checkpoint contains, and whether it can be trusted.
"""

from __future__ import annotations

import os
import threading

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError, NoJournal
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.links.addresses import URL_VARIABLE
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores.drivers.redis.driver import RedisDriver
from graflow_ckpt.stores.drivers.redis.names import divided, folder_of, is_redis, split
from graflow_ckpt.stores.journal import KeyedSegment
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import LEASE
from graflow_ckpt.stores.names import base_of, path_of


class RedisStore(KeyedStore):
    """Connects at the first use, not before.

    `where`: redis://host:port/db, or redis:// alone for the server that the environment names. The
    name of a checkpoint may follow, and does not matter. `lease`: seconds after which a silent owner
    on another machine counts as dead.
    """

    driver: RedisDriver

    def __init__(self, where: str | os.PathLike[str], *, lease: float = LEASE) -> None:
        arguments.real("lease", lease, above=0)
        self._where = _address(os.fspath(where))
        self._link: RedisLink | None = None
        self._mutex = threading.Lock()
        super().__init__(RedisDriver(self._opened), folder_of(self._where), lease=lease)
        self.synced = False  # until `probe` or a save has found out

    def takes(self, path: str) -> str | None:
        if not is_redis(path):
            return None
        store, base = split(path, {URL_VARIABLE: self._where})
        return path_of(self.folder, base) if base and folder_of(store) == self.folder else None

    def journal(self, lease: Lease, after: int) -> KeyedSegment:
        self._own(lease).not_released()
        if not self.driver.syncs():
            raise NoJournal(
                f"{self.folder} confirms what is not on its disk yet, so it can keep no journal.",
                hint="CONFIG SET appendonly yes and appendfsync always, or use durability='checkpoint'.",
                store=self.folder,
            )
        return super().journal(lease, after)

    def _opened(self) -> RedisLink:
        with self._mutex:
            if self._link is None:
                self._link = open_link(self._where)
            return self._link

    def _pattern(self, pattern: str) -> str:
        return split(pattern)[1] if is_redis(pattern) else base_of(pattern)


def _address(where: str) -> str:
    """Return the store alone, with its credentials, of what may be the path of a checkpoint."""
    if where.lower() in ("redis://", "rediss://"):
        where = os.environ.get(URL_VARIABLE, "").strip()
        if not where:
            raise CheckpointError(
                f"redis:// means the server that {URL_VARIABLE} names, and it is not set.",
                hint="Set it, or name the server: redis://host:port/db.",
            )
    return divided(where)[0]
