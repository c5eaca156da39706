"""The objects of names: what a checkpoint is kept in whose name is not one that its session has given it.

    names/{name}     {write, name, record} \\n inline

Promise: one changes only from what its writer has seen. It stays when its checkpoint is deleted and says
that nothing is there, because without it a late writer could not be told. `write` is new in each, so that
equal contents have different tags.
Not here: when it has to change (objects_put.py, objects_fence.py).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from graflow_ckpt.core.errors import CheckpointCorrupt, ServerGone
from graflow_ckpt.stores.objects_bucket import Bucket, Patience, Tag
from graflow_ckpt.stores.objects_names import Target, decoded
from graflow_ckpt.stores.objects_record import DAMAGED, Record, document_of, records_of


@dataclass(frozen=True, slots=True)
class NameSeen:
    """What a name points at. `tag`: None if it never did."""

    record: Record | None = None
    tag: Tag | None = None


class Names:
    """Those of one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, target: Target) -> NameSeen:
        found = self._bucket.get(target.key)
        return NameSeen() if found is None else NameSeen(named(target.key, found.data)[1], found.tag)

    def swap(self, target: Target, record: Record | None, seen: NameSeen) -> bool:
        """In place of what was seen; False if that has changed."""
        said = {"write": uuid.uuid4().hex, "name": target.base, "record": record and document_of(record, {})}
        line = json.dumps(said, separators=(",", ":")).encode()
        data = b"\n".join([line, record.inline if record else b""])
        return self._bucket.swap(target.key, data, seen.tag) is not None

    def touch(self, target: Target) -> Record | None:
        """Change the object of a name and not what it says: who has seen it before can no longer write."""
        while True:
            seen = self.read(target)
            if self.swap(target, seen.record, seen):
                return seen.record

    def clear(self, target: Target) -> Record | None:
        """Let a name point at nothing; what it pointed at."""
        patience = Patience()
        gone: Record | None = None
        while True:
            try:
                seen = self.read(target)
                if seen.record is None or (gone is not None and seen.record.nonce != gone.nonce):
                    return gone  # also if the reply was lost
                gone = seen.record
                if self.swap(target, None, seen):
                    return gone
                gone = None  # somebody else was faster
            except ServerGone:
                if patience.over():
                    raise


def named(key: str, raw: bytes) -> tuple[str, Record | None]:
    """The name, and what it points at."""
    line, _, inline = raw.partition(b"\n")
    try:
        said = json.loads(line)
        found = list(records_of([said["record"]] if said["record"] else [], inline))
        return str(said["name"]), found[0] if found else None
    except DAMAGED as error:
        base = decoded(key.rpartition("/")[2])
        raise CheckpointCorrupt(
            f"What says where the checkpoint {base!r} is, is damaged ({key}): {error!r}.",
            hint="Remove that object, or restore it from a version or a backup of the bucket.",
            path=base,
        ) from error
