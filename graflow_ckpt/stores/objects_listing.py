"""Listings of the checkpoints in a bucket: names and metas, newest first. No pickle is fetched.

Not here: what a path points at (objects_trio.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.stores.objects_bucket import Bucket
from graflow_ckpt.stores.objects_head import Head, Heads, Seen
from graflow_ckpt.stores.objects_named import named
from graflow_ckpt.stores.objects_names import decoded, target_of
from graflow_ckpt.stores.objects_put import META
from graflow_ckpt.stores.objects_record import Record
from graflow_ckpt.stores.objects_trio import Trios

log = logging.getLogger(__name__)
_AT_ONCE = 16  # objects that are read at once
_T = TypeVar("_T")
_R = TypeVar("_R")


class Listings:
    """Those of one store."""

    def __init__(self, bucket: Bucket, heads: Heads, trios: Trios) -> None:
        self._bucket = bucket
        self._heads = heads
        self._trios = trios

    def of_sessions(
        self, sessions: Sequence[str] | None, wanted: str | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Names and metas of their own checkpoints, the last committed of each first; None: of all."""
        read = self._heads.read if sessions is not None else self._sound
        for page in _pages(self._heads.sessions() if sessions is None else sessions, _AT_ONCE):
            for seen in side_by_side(read, page):
                found = sorted(seen.head.commits.items(), key=lambda item: item[1].number, reverse=True)
                yield from self._metas(None, [each for each in found if _fits(each[0], wanted)])

    def _sound(self, session: str) -> Seen:
        """One head that is damaged keeps nobody from seeing the others."""
        try:
            return self._heads.read(session)
        except CheckpointCorrupt as error:
            log.warning("%s", error, extra={"session": session})
            return Seen(Head())

    def of_names(self, session: str | None, wanted: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Those under other names whose meta names the session, or all; the last written first."""
        entries = sorted(self._bucket.list("names"), key=lambda entry: entry.at, reverse=True)
        keys = [entry.key for entry in entries if _fits(decoded(entry.key.rpartition("/")[2]), wanted)]
        records: list[tuple[str, Record]] = []
        for key, found in zip(keys, side_by_side(self._bucket.get, keys), strict=True):
            if found is None:
                continue  # gone meanwhile
            try:
                base, record = named(key, found.data)
            except CheckpointCorrupt as error:
                log.warning("%s", error)
                if session is None:  # whose it is cannot be read
                    yield decoded(key.rpartition("/")[2]), b""
                continue
            if record is not None:
                records.append((base, record))
        yield from self._metas(session, records)

    def _metas(
        self, session: str | None, listed: Sequence[tuple[str, Record]]
    ) -> Iterator[tuple[str, bytes]]:
        meta_of = partial(self._meta_of, session)
        for page in _pages(listed, 4 * _AT_ONCE):  # a reader of the newest few waits for no others
            far = any(record.parts[META].data for _, record in page)
            for (base, _), raw in zip(page, (side_by_side if far else map)(meta_of, page), strict=True):
                if raw is not None:
                    yield base, raw

    def _meta_of(self, session: str | None, listed: tuple[str, Record]) -> bytes | None:
        """None: it was deleted, or names another session by now; empty: it is there and its meta is not."""
        base, record = listed
        while session in (None, record.session):
            try:
                return self._trios.meta_of(base, record)
            except CheckpointCorrupt:
                newer = self._trios.record(target_of(base))
            if newer is None:
                return None
            if newer.nonce == record.nonce:
                return b""
            record = newer  # written anew while it was read
        return None


def _fits(base: str, wanted: str | None) -> bool:
    return wanted is None or fnmatchcase(base, wanted)


def _pages(of: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (of[at : at + size] for at in range(0, len(of), size))


def side_by_side(read: Callable[[_T], _R], of: Sequence[_T]) -> Iterator[_R]:
    """Several at once, in their order."""
    if len(of) < 2:
        return map(read, of)
    with ThreadPoolExecutor(min(_AT_ONCE, len(of)), thread_name_prefix="listing") as pool:
        return iter(list(pool.map(read, of)))
