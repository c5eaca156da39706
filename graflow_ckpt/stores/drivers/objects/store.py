"""Checkpoints in an object store: S3, Google Cloud Storage, Azure Blob Storage, and what has their protocols.

Promise: that of keyed.py; a claim and a commit are one conditional put each. A bucket that does not honour
conditional puts is refused before anything is written into it. A server that is lost is asked again, for some
seconds; a save that fails after that is a `CheckpointError`.

A journal is one object per record: each append is a request (tens of milliseconds at the large services, and
a price), so `durability="journal"` suits sessions of slow tasks here. All users that can write to the bucket
can write here, so seals need a key that all have (`shared`). The credentials are taken from the environment,
as the services' own tools do. Paths: names.py. A process that was forked after any object store was
used cannot use one, and is refused. Not here: what a checkpoint contains, and whether it can be trusted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError, ServerError, ServerRefuses
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag
from graflow_ckpt.stores.drivers.objects.bucket import Bucket
from graflow_ckpt.stores.drivers.objects.names import is_objects, place_of, split
from graflow_ckpt.stores.head import encoded
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import LEASE
from graflow_ckpt.stores.names import base_of, elsewhere, path_of

_LONGEST = 800  # bytes of a name in a key: 1024 are allowed for all of it, with prefix, mark and content
_AT_ONCE = 8
_BEHIND = 416  # what is asked for begins behind the end

T = TypeVar("T")
R = TypeVar("R")


class ObjectsDriver:
    """One bucket below one prefix: what carries a guard is one conditional put."""

    atomic = False
    inline = 32 << 10
    chunk = 8 << 20

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def now(self) -> float:
        try:
            return self.bucket.now()
        except ServerRefuses:  # we may only read there
            return time.time()

    def get(self, *keys: str) -> Sequence[Stored | None]:
        return list(_side_by_side(self.bucket.get, keys))

    def read(self, key: str, start: int, length: int) -> Buffer | None:
        try:
            found = self.bucket.get_range(key, start, length)
        except ServerError as error:
            if error.ids.get("status") != _BEHIND:
                raise
            return None
        return found if found is not None and len(found) == length else None

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        needs: Sequence[str] = (),
        soft: bool = False,
    ) -> BatchDone | None:
        bucket = self.bucket
        bucket.verify()
        if guards:
            ((key, wanted),), (put,) = guards.items(), puts
            tags = [bucket.swap(key, put.data, wanted)]
        else:
            asked = [partial(bucket.create if put.fresh else bucket.put, put.key, put.data) for put in puts]
            tags = list(_side_by_side(lambda ask: ask(), asked))
        if None in tags:
            return None
        bucket.delete(list(drops))
        return BatchDone(str(tags[-1]) if tags else "")

    def keys(self, prefix: str) -> Iterator[Entry]:
        listed = self.bucket.list(prefix.rstrip("/"))
        return (entry for entry in listed if entry.key.startswith(prefix))

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit] | None:
        return None


def _side_by_side(ask: Callable[[T], R], of: Sequence[T]) -> Iterator[R]:
    """Return the answers of several that are asked at the same time, in their order."""
    if len(of) < 2:
        return map(ask, of)
    with ThreadPoolExecutor(min(_AT_ONCE, len(of)), thread_name_prefix="objects") as pool:
        return iter(list(pool.map(ask, of)))


class ObjectStore(KeyedStore):
    """Connects at the first use, not before.

    `where`: s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; what the client has to know
    may follow as a query (`?endpoint=http://host:9000`). `lease`: seconds after which a silent owner on
    another machine counts as dead.
    """

    shared = True

    def __init__(self, where: str | os.PathLike[str], *, lease: float = LEASE) -> None:
        arguments.real("lease", lease, above=0)
        place = place_of(os.fspath(where))
        place.remember()
        self.bucket = Bucket(place)
        super().__init__(ObjectsDriver(self.bucket), str(place), lease=lease)

    def probe(self) -> None:
        """Do once what saving will do, and delete it again."""
        self.bucket.verify(again=True)

    def takes(self, path: str) -> str | None:
        if not is_objects(path):
            return None
        store, base = split(path)
        return path_of(self.folder, base) if base and str(place_of(store)) == self.folder else None

    def _pattern(self, pattern: str) -> str:
        return split(pattern)[1] if is_objects(pattern) else base_of(pattern)

    def _name(self, path: str) -> str:
        if "/" in path and "://" not in path:
            raise elsewhere(path, self.folder)
        return checked(super()._name(path))


def checked(base: str) -> str:
    """Return the name; refuse it if no key can hold it."""
    if not base or base in (".", "..") or len(encoded(base)) > _LONGEST:
        raise CheckpointError(
            f"{base!r} cannot be the name of a checkpoint.",
            hint="Give it a name that is not empty, `.` or `..`, and shorter.",
            path=base,
        )
    return base
