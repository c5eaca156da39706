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

import json
import logging
import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError, NoJournal, ServerError
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Lease, Owner, PartWriter
from graflow_ckpt.links.addresses import URL_VARIABLE
from graflow_ckpt.links.complaints import ResponseError, translated
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores import batches, redis_journal
from graflow_ckpt.stores.names import check_own, elsewhere, unwritten
from graflow_ckpt.stores.redis_chunks import ChunkSource
from graflow_ckpt.stores.redis_contents import RedisContents
from graflow_ckpt.stores.redis_lease import LEASE, Leases, RedisLease
from graflow_ckpt.stores.redis_names import (
    NAMED,
    Keys,
    Target,
    base_of,
    divided,
    folder_of,
    is_redis,
    path_of,
    split,
    target_of,
)
from graflow_ckpt.stores.redis_scripts import Scripts
from graflow_ckpt.stores.redis_trio import SYNCS, Put, Trios, syncs

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    link: RedisLink
    scripts: Scripts
    leases: Leases
    trios: Trios


class RedisStore:
    """Connects at the first use, not before.

    `where`: redis://host:port/db, or redis:// alone for the server that the environment names. The
    name of a checkpoint may follow, and does not matter. `lease`: seconds after which a silent owner
    on another machine counts as dead.
    """

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

    @property
    def url(self) -> str:
        return self.folder

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
        """The path as it is written here; None if it leads to another store."""
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
        try:
            for keys in (lease.keys, Keys(NAMED)):
                self._all.trios.sweep(keys, session, lease.epoch)
        except ServerError as error:
            _logger.warning("leftovers of session %s stay: %s", session, error, extra={"session": session})
        except BaseException:
            lease.release()
            raise
        return lease

    def owner(self, session: str) -> Owner | None:
        return self._all.leases.owner(check_session_id(session))

    # --- checkpoints -------------------------------------------------------------------

    def put(
        self, path: str, parts: Sequence[tuple[str, PartWriter]], *, lease: Lease | None, stage: str
    ) -> None:
        target = self._target(path)
        mine = self._own(lease) if lease is not None else None
        if mine is not None:
            mine.not_released()
            check_own(path, target.session, mine.session)  # its epoch is under another tag
        with unwritten(path):
            self.synced = self._all.trios.write(Put(target, mine, stage), parts)

    def open(self, path: str, part: str, stage: str) -> ChunkSource:
        return self._all.trios.open_part(self._target(path), part, stage)

    def meta(self, path: str) -> bytes:
        return self._all.trios.meta(self._target(path))

    def unsafe(self, path: str) -> str | None:
        """Who can write to the server is not known: the seal has to tell."""
        return None

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
                its = session in (None, keys.tag) or _field_in(raw, "session_id") == session
                if its and (wanted is None or fnmatchcase(base, wanted)):
                    yield path_of(self.folder, base), raw

    def newest(
        self,
        limit: int,
        *,
        session: str | None = None,
        workflow: str | None = None,
        status: str | None = None,
    ) -> Sequence[tuple[str, bytes]]:
        """The last accepted of those whose metas say so; looks at all of them (batches.py)."""
        return batches.newest(self.list(session), limit, workflow=workflow, status=status)

    def delete(self, path: str) -> bool:
        return self.delete_many([path]) > 0

    def delete_many(self, paths: Iterable[str]) -> int:
        """One after the other; how many there were."""
        return self._all.trios.delete([self._target(path) for path in paths])

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> redis_journal.RedisSegment:
        mine = self._own(lease)
        if not self._syncs(mine.keys):
            raise NoJournal(
                f"{self.folder} confirms what is not on its disk yet, so it can keep no journal.",
                hint="CONFIG SET appendonly yes and appendfsync always, or use durability='checkpoint'.",
                store=self.folder,
            )
        return redis_journal.open_segment(mine, self._all.scripts, after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return redis_journal.read_segments(self._all.link, check_session_id(session))

    def drop_segments(self, session: str, before: int) -> None:
        redis_journal.drop_segments(self._all.link, self._all.scripts, check_session_id(session), before)

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
        if "://" not in path:
            return target_of(base_of(path))
        if (placed := self.takes(path)) is None:
            raise elsewhere(path, self.folder)
        return target_of(base_of(placed.rpartition("/")[2]))

    def _own(self, lease: Lease) -> RedisLease:
        if not isinstance(lease, RedisLease):
            raise TypeError(f"a lease of this store is needed, not {type(lease).__name__}")
        return lease

    def _highest_epoch(self, session: str) -> int:
        """From the session's metas, should its lease have been lost."""
        epochs = (_field_in(raw, "epoch") for _, raw in self.list(session))
        return max((epoch for epoch in epochs if isinstance(epoch, int)), default=0)


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


def _field_in(raw: bytes, name: str) -> object:
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return meta.get(name) if isinstance(meta, dict) else None
