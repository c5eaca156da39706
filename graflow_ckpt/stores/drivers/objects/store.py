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

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.drivers.objects.bucket import Bucket
from graflow_ckpt.stores.drivers.objects.driver import ObjectsDriver
from graflow_ckpt.stores.drivers.objects.names import is_objects, place_of, split
from graflow_ckpt.stores.head import encoded
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import LEASE
from graflow_ckpt.stores.names import base_of, elsewhere, path_of

_LONGEST = 800  # bytes of a name in a key: 1024 are allowed for all of it, with prefix, mark and content


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
