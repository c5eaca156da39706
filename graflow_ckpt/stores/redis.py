"""Checkpoints in Redis.

Promise: that of redis_trio.py for every checkpoint and of redis_lease.py for every session: a trio
appears whole, in one script; a writer that has lost its session commits nothing; a dead one leaves
chunks that expire, and that the session's next owner clears away. A reply that is lost is asked for
again, for some seconds; a save that fails after that is a `CheckpointError`.

Everybody who can write to the server can write here, so seals need a key that all have (`shared`).
Paths and keys: redis_names.py.
Not here: what a checkpoint contains, and whether it can be trusted.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError, NoJournal
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Lease, Owner, PartWriter
from graflow_ckpt.links.addresses import URL_VARIABLE
from graflow_ckpt.links.complaints import ResponseError, translated
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores import redis_lease
from graflow_ckpt.stores.fencing import clearing
from graflow_ckpt.stores.names import (
    base_of,
    highest_epoch_in,
    path_of,
    session_in,
    unwritten,
)
from graflow_ckpt.stores.redis_contents import RedisContents
from graflow_ckpt.stores.redis_lease import LEASE, Leases, RedisLease
from graflow_ckpt.stores.redis_names import (
    NAMED,
    Keys,
    Target,
    divided,
    folder_of,
    is_redis,
    split,
    target_of,
)
from graflow_ckpt.stores.redis_scripts import Scripts
from graflow_ckpt.stores.redis_trio import SYNCS, Put, RedisSource, Trios, syncs
from graflow_ckpt.stores.store import FencedStore


@dataclass(frozen=True, slots=True)
class _Opened:
    link: RedisLink
    scripts: Scripts
    leases: Leases
    trios: Trios


class RedisStore(FencedStore[RedisLease]):
    """Connects at the first use, not before.

    `where`: redis://host:port/db, or redis:// alone for the server that the environment names. The
    name of a checkpoint may follow, and does not matter. `lease`: seconds after which a silent owner
    on another machine counts as dead.
    """

    own = RedisLease
    shared = True

    def __init__(self, where: str | os.PathLike[str], *, lease: float = LEASE) -> None:
        arguments.real("lease", lease, above=0)
        self._where = _address(os.fspath(where))
        self.folder = folder_of(self._where)
        self.synced = False  # until `probe` or a save has found out
        self._seconds = lease
        self._opened: _Opened | None = None
        self._mutex = threading.Lock()
        self.contents = RedisContents(self._working, self._target, self._own)

    def probe(self) -> None:
        """Do once what saving will do, and take it away again."""
        keys = Keys(NAMED)
        key = keys.chunks(uuid.uuid4().hex, "probe")
        with translated(self.folder):
            client = self._all.link.client
            client.set(key, b"probe", ex=60)
            client.delete(key)
        self.synced = self._syncs(keys)

    def takes(self, path: str) -> str | None:
        if not is_redis(path):
            return None
        store, base = split(path, {URL_VARIABLE: self._where})
        return path_of(self.folder, base) if base and folder_of(store) == self.folder else None

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> RedisLease:
        check_session_id(session)
        leases = self._all.leases
        floor = 0 if leases.known(session) else self._highest_epoch(session)
        lease = leases.acquire(session, take_over=take_over, floor=floor)
        with clearing(lease):
            for keys in (lease.keys, Keys(NAMED)):
                self._all.trios.sweep(keys, session, lease.epoch)
        return lease

    def owner(self, session: str) -> Owner | None:
        return self._all.leases.owner(check_session_id(session))

    # --- checkpoints -------------------------------------------------------------------

    def put(
        self, path: str, parts: Sequence[tuple[str, PartWriter]], *, lease: Lease | None, stage: str
    ) -> None:
        target = self._target(path)
        mine = self._writer(path, target.session, lease)  # the epoch of another is under another tag
        with unwritten(path):
            self.synced = self._all.trios.write(Put(target, mine, stage), parts)

    def open(self, path: str, part: str, stage: str) -> RedisSource:
        return self._all.trios.open_part(self._target(path), part, stage)

    def meta(self, path: str) -> bytes:
        return self._all.trios.meta(self._target(path))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Paths and metas, the last committed first for each session.

        `session`: its own paths, and those under other names whose meta names it.
        `pattern`: a glob of names, alone or after the store, instead of all.
        """
        trios = self._all.trios
        wanted = _pattern(pattern)
        tags = trios.tags() if session is None else [Keys(check_session_id(session)), Keys(NAMED)]
        for keys in tags:
            for base, raw in trios.metas(keys):
                its = session in (None, keys.tag) or session_in(raw) == session
                if its and (wanted is None or fnmatchcase(base, wanted)):
                    yield path_of(self.folder, base), raw

    def delete_many(self, paths: Iterable[str]) -> int:
        """One after the other; how many there were."""
        return self._all.trios.delete([self._target(path) for path in paths])

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> redis_lease.RedisSegment:
        mine = self._own(lease)
        if not self._syncs(mine.keys):
            raise NoJournal(
                f"{self.folder} confirms what is not on its disk yet, so it can keep no journal.",
                hint="CONFIG SET appendonly yes and appendfsync always, or use durability='checkpoint'.",
                store=self.folder,
            )
        return redis_lease.open_segment(mine, self._all.scripts, after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return redis_lease.read_segments(self._all.link, check_session_id(session))

    def drop_segments(self, session: str, before: int) -> None:
        redis_lease.drop_segments(self._all.link, self._all.scripts, check_session_id(session), before)

    # --- within ------------------------------------------------------------------------

    @property
    def _all(self) -> _Opened:
        with self._mutex:
            if self._opened is None:
                link = open_link(self._where)
                scripts = Scripts(link)
                leases = Leases(link, scripts, self._seconds)
                self._opened = _Opened(link, scripts, leases, Trios(link, scripts, self.folder))
            return self._opened

    def _working(self) -> tuple[RedisLink, Scripts, Trios]:
        return self._all.link, self._all.scripts, self._all.trios

    def _syncs(self, keys: Keys) -> bool:
        with translated(self.folder):
            try:
                return syncs(self._all.link.client.execute_command(*SYNCS))
            except ResponseError:
                return False

    def _target(self, path: str) -> Target:
        return target_of(self._name(path))

    def _highest_epoch(self, session: str) -> int:
        """From the session's metas, should its lease have been lost."""
        return highest_epoch_in(raw for _, raw in self.list(session))


def _address(where: str) -> str:
    """The store alone, with its credentials, of what may be the path of a checkpoint."""
    if where.lower() in ("redis://", "rediss://"):
        where = os.environ.get(URL_VARIABLE, "").strip()
        if not where:
            raise CheckpointError(
                f"redis:// means the server that {URL_VARIABLE} names, and it is not set.",
                hint="Set it, or name the server: redis://host:port/db.",
            )
    return divided(where)[0]


def _pattern(pattern: str | None) -> str | None:
    if pattern is None:
        return None
    return split(pattern)[1] if is_redis(pattern) else base_of(pattern)
