"""Cached: Redis in front of a shared store, for what many read.

    cached+s3://bucket/runs        the Redis of GRAFLOW_CKPT_CACHE_URL, else of GRAFLOW_CKPT_REDIS_URL

What is cached are the parts of a checkpoint that a process has read, each with a digest of its own and one of
the meta that it was read under. The meta itself never is: each `open` asks the store for it, so a
checkpoint that was deleted or written again is seen at once.

Promise: the cache is never the authority. Nothing is written that the store has not. A part whose digest does
not fit is read from the store, and a cache that is away is as good as none. What is in it expires.
What is to be encrypted is so before it comes here: the cache has what the store has.
Not here: trust; the reader verifies the seal, cached or not.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from blake3 import blake3

from graflow_ckpt.core.errors import CheckpointError, GraflowError
from graflow_ckpt.core.protocols import CheckpointStore, Drops, Lease, Parts, Source
from graflow_ckpt.links.addresses import URL_VARIABLE, masked
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores.around.patience import Breaker
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.names import base_of, stage_in
from graflow_ckpt.stores.streams import BytesSource, read_up_to

log = logging.getLogger("graflow_ckpt.stores")

VARIABLE = "GRAFLOW_CKPT_CACHE_URL"
LIMIT = 16 << 20
"""Bytes from which on a part is not cached: the store streams it as fast."""

SECONDS = 3600
_DIGEST = 32
_PATIENCE = 1.0
"""Seconds for the cache to answer: it is there to be quicker than the store."""


class Cached(Wrapper):
    """`cache`: the address of a Redis server; if none is given, the one that the environment names."""

    word = "cached"
    reads_shared = True

    def __init__(
        self,
        inner: CheckpointStore,
        cache: str = "",
        *,
        limit: int = LIMIT,
        seconds: int = SECONDS,
        breaker: Breaker | None = None,
    ) -> None:
        super().__init__(inner)
        named = (cache, *(os.environ.get(name, "").strip() for name in (VARIABLE, URL_VARIABLE)))
        self._cache = next(filter(None, named), "")
        if not self._cache:
            raise CheckpointError(
                f"cached+ needs to know which Redis server caches, and {VARIABLE} is not set.",
                hint=f"Set {VARIABLE} (or {URL_VARIABLE}) to an address such as redis://host:6379/0.",
                store=masked(inner.url),
            )
        self._limit = limit
        self._seconds = seconds
        self._breaker = breaker or Breaker(failures=1)
        self._opened: RedisLink | None = None

    # --- checkpoints -------------------------------------------------------------------

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        changed = [path]

        def along() -> Iterable[str]:
            changed[1:] = drops()
            return changed[1:]

        super().put(path, parts, lease=lease, stage=stage, drops=along)
        for one in changed:
            self._forget(self._inner(one))

    def open(self, path: str, part: str, stage: str) -> Source:
        inner = self._inner(path)
        raw = self.inner.meta(inner)
        under, kept = blake3(raw).digest(), self._kept(inner, part)
        if kept is not None and stage_in(raw) == stage and kept[:_DIGEST] == under:
            data = kept[2 * _DIGEST :]
            if blake3(data).digest() == kept[_DIGEST : 2 * _DIGEST]:
                return BytesSource(data)
        source = self.inner.open(inner, part, stage)
        if source.size > self._limit:
            return source
        with closing(source):
            data = bytes(read_up_to(source, source.size))
        self._keep(inner, part, under + blake3(data).digest() + data)
        return BytesSource(data)

    def delete_many(self, paths: Iterable[str]) -> int:
        wanted = [*paths]
        there = super().delete_many(wanted)
        for path in wanted:
            self._forget(self._inner(path))
        return there

    # --- the cache ---------------------------------------------------------------------

    def _kept(self, inner: str, part: str) -> bytes | None:
        found = self._asked(lambda client, key: client.hget(key, part), inner)
        return found if isinstance(found, bytes) and len(found) >= 2 * _DIGEST else None

    def _keep(self, inner: str, part: str, entry: bytes) -> None:
        def write(client: Any, key: str) -> None:
            client.pipeline(transaction=False).hset(key, part, entry).expire(key, self._seconds).execute()

        self._asked(write, inner)

    def _forget(self, inner: str) -> None:
        self._asked(lambda client, key: client.delete(key), inner)

    def _asked(self, call: Callable[[Any, str], Any], inner: str) -> Any:
        """Call the cache. Any failure makes it as good as none, for some seconds."""
        if not self._breaker.allows():
            return None
        name = hashlib.blake2b(f"{self.inner.url}\0{base_of(inner)}".encode(), digest_size=16).hexdigest()
        key = f"graflow:cache:{{{name}}}"
        try:
            if self._opened is None:
                self._opened = open_link(self._cache, timeout=_PATIENCE)
            with translated(masked(self._cache)):
                found = call(self._opened.client, key)
        except (GraflowError, OSError) as error:
            if self._breaker.bad():
                log.warning("nothing is cached: %s", error)
            return None
        self._breaker.good()
        return found
