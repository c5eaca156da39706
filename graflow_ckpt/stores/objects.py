"""Checkpoints in an object store: S3, Google Cloud Storage, Azure Blob Storage, and what speaks like them.

Promise: that of objects_trio.py for every checkpoint and of objects_lease.py for every session: a trio
appears whole, in one conditional put; a writer that has lost its session commits nothing, on no clock's
word. A bucket that does not honour conditional puts is refused before anything is written into it. A
server that is lost is asked again, for some seconds; a save that fails after that is a `CheckpointError`.

The journal is kept as one object per frame, at the price of a request for each commit: objects_lease.py.
Everybody who can write to the bucket can write here, so seals need a key that all have (`shared`).
Who we are there is taken from the environment, as the services' own tools do. Paths and keys:
objects_names.py. A process that was forked after any object store was used cannot use one, and is told.
Not here: what a checkpoint contains, and whether it can be trusted.

A session's own checkpoints share contents: the head, which a commit changes anyway, says what they hold, so a
commit and a deletion cannot cross. What the last of them lets go is removed after that change, or, if that is
cut short, by the session's next owner or by `sweep`. Other names share with nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from graflow_ckpt.core import arguments
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Lease, Owner, PartWriter
from graflow_ckpt.stores import objects_lease, objects_orphans
from graflow_ckpt.stores.names import base_of, elsewhere, path_of, unwritten
from graflow_ckpt.stores.objects_bucket import Bucket
from graflow_ckpt.stores.objects_chunks import PieceSource
from graflow_ckpt.stores.objects_head import Head, Heads, Names
from graflow_ckpt.stores.objects_lease import LEASE, Leases, ObjectLease
from graflow_ckpt.stores.objects_names import Target, is_objects, place_of, split, target_of
from graflow_ckpt.stores.objects_orphans import close_behind
from graflow_ckpt.stores.objects_put import ObjectSaving, Put
from graflow_ckpt.stores.objects_trio import Listings, Trios, side_by_side
from graflow_ckpt.stores.store import FencedStore


@dataclass(frozen=True, slots=True)
class _Opened:
    bucket: Bucket
    heads: Heads
    names: Names
    leases: Leases
    trios: Trios
    listings: Listings


class ObjectStore(FencedStore[ObjectLease]):
    """Connects at the first use, not before.

    `where`: s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; what the client has to know
    may follow as a query (`?endpoint=http://host:9000`). `lease`: seconds after which a silent owner on
    another machine counts as dead.
    """

    own = ObjectLease
    shared = True
    synced = True  # these services confirm what they have stored

    def __init__(self, where: str | os.PathLike[str], *, lease: float = LEASE) -> None:
        arguments.real("lease", lease, above=0)
        self._place = place_of(os.fspath(where))
        self._place.remember()
        self.folder = str(self._place)
        self._seconds = lease
        self._opened: _Opened | None = None
        self._mutex = threading.Lock()
        self.contents = ObjectContents(
            lambda: (self._all.trios, self._all.heads), self._target, self._own, self._sweep
        )

    def probe(self) -> None:
        """Do once what saving will do, and take it away again."""
        self._all.bucket.verify(again=True)

    def takes(self, path: str) -> str | None:
        if not is_objects(path):
            return None
        store, base = split(path)
        return path_of(self.folder, base) if base and str(place_of(store)) == self.folder else None

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> ObjectLease:
        check_session_id(session)
        opened = self._all
        opened.bucket.verify()
        lease = opened.leases.claim(session, take_over=take_over)
        if lease.epoch == 1:  # nobody was here before
            return lease
        try:
            close_behind(opened.bucket, opened.names, lease, lease.head)
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
        mine = self._writer(path, target.session, lease)  # the epoch of another is in another head
        with unwritten(path):
            self._all.bucket.verify()
            self._all.trios.write(Put(target, path_of(self.folder, target.base), mine, stage), parts)

    def open(self, path: str, part: str, stage: str) -> PieceSource:
        return self._all.trios.open_part(self._target(path), part, stage)

    def meta(self, path: str) -> bytes:
        return self._all.trios.meta(self._target(path))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Paths and metas, the last committed first for each session, then those under other names.

        `session`: its own paths, and those under other names whose meta names it.
        `pattern`: a glob of names, alone or after the store, instead of all.
        """
        opened = self._all
        wanted = _pattern(pattern)
        sessions = None if session is None else [check_session_id(session)]
        listings = opened.listings.of_sessions(sessions, wanted), opened.listings.of_names(session, wanted)
        for base, raw in chain(*listings):
            yield path_of(self.folder, base), raw

    def delete_many(self, paths: Iterable[str]) -> int:
        """How many were there. Those of a session go together, in one change of its head."""
        sessions: dict[str | None, dict[str, Target]] = {}
        for path in paths:
            target = self._target(path)
            sessions.setdefault(target.session, {})[target.base] = target
        named = sessions.pop(None, {})
        trios = self._all.trios
        return sum(trios.delete_own(session, own) for session, own in sessions.items() if session) + sum(
            side_by_side(trios.delete, list(named.values()))
        )

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> objects_lease.ObjectSegment:
        return objects_lease.open_segment(self._all.bucket, self._own(lease), after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return objects_lease.read_segments(self._all.bucket, self._all.heads, check_session_id(session))

    def drop_segments(self, session: str, before: int) -> None:
        objects_lease.drop_segments(self._all.bucket, self._all.heads, check_session_id(session), before)

    # --- within ------------------------------------------------------------------------

    @property
    def _all(self) -> _Opened:
        with self._mutex:
            if self._opened is None:
                bucket = Bucket(self._place)
                heads, names = Heads(bucket), Names(bucket)
                leases = Leases(bucket, heads, self._seconds)
                trios = Trios(bucket, heads, names, self.folder)
                self._opened = _Opened(bucket, heads, names, leases, trios, Listings(bucket, heads, trios))
            return self._opened

    def _target(self, path: str) -> Target:
        if "/" in path and "://" not in path:
            raise elsewhere(path, self.folder)
        return target_of(self._name(path))

    def _sweep(self) -> int:
        opened = self._all
        return objects_orphans.sweep(opened.bucket, opened.heads, self.owner, self.acquire)


def _pattern(pattern: str | None) -> str | None:
    if pattern is None:
        return None
    return split(pattern)[1] if is_objects(pattern) else base_of(pattern)


class ObjectContents:
    """Those of one store, which connects when they are used first. `sweep`: of all that is in it."""

    shares = True

    def __init__(
        self,
        opened: Callable[[], tuple[Trios, Heads]],
        target: Callable[[str], Target],
        own: Callable[[Lease], ObjectLease],
        sweep: Callable[[], int],
    ) -> None:
        self._opened, self._target, self._own = opened, target, own
        self.sweep = sweep

    def scope(self, path: str, /) -> str:
        """Its session; a name is a scope of its own, in which nothing is found again."""
        target = self._target(path)
        return target.session or f"@{target.base}"

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> ObjectSaving:
        trios, _ = self._opened()
        return trios.saving(self._target(path), self._own(lease) if lease is not None else None, stage)

    def open(self, path: str, name: str, stage: str) -> PieceSource:
        trios, _ = self._opened()
        return trios.open_content(self._target(path), name, stage)

    def distrust(self, path: str, name: str, stage: str) -> None:
        """Under another name nobody will hold it anyway."""
        target = self._target(path)
        if target.session is None:
            return

        def change(head: Head) -> Head | None:
            record = head.commits.get(target.base)
            if record is None or record.stage != stage or name not in record.contents:
                return None
            held = record.contents[name]
            return None if held in head.bad else replace(head, bad=head.bad | {held})

        _, heads = self._opened()
        heads.update(target.session, change)
