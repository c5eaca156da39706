"""A driver over a bucket: what carries a guard is one conditional put."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from graflow_ckpt.core.errors import ServerError, ServerRefuses
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag
from graflow_ckpt.stores.drivers.objects.bucket import Bucket

_AT_ONCE = 8
_BEHIND = 416  # what is asked for begins behind the end

T = TypeVar("T")
R = TypeVar("R")


class ObjectsDriver:
    """One bucket below one prefix."""

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
