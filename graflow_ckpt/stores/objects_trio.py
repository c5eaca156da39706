"""The trio in an object store: a record, what it points at, and the one conditional put that changes it.

    sessions/{id}    the head: the records of the session's own checkpoints are in it (objects_head.py)
    names/{name}     the record of one under any other name (objects_head.py)

Promise: before the record is put (objects_put.py) a reader finds the previous checkpoint, after it this
one, whole. That put is refused if the writer has lost its session: its own checkpoints are committed in the
head, which a claim changes; other names are announced in the head, and the next owner changes the objects
of all announced names before it begins (objects_orphans.py), so that a late put finds something else than
it has seen. A reader whose pieces go while it reads finds out, and that meta has changed.

Whoever has just seen a meta is given the parts that were there then: nothing is asked twice for a load.
Not here: who may write (objects_lease.py), and what a path names (objects_names.py).

Contents that are fetched while the one before them is read: a load opens one after the other.
Promise: no more than AHEAD wait, whoever opens what; who stops in the middle leaves them until the next one
is opened. One that could not be fetched ahead is asked for again in its turn.

Listings give names and metas, newest first; no pickle is fetched for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar

from graflow_ckpt.core.errors import CheckpointCorrupt, GraflowError
from graflow_ckpt.core.protocols import PartWriter
from graflow_ckpt.stores.names import META, holds_none, is_content, not_found, not_its, path_of
from graflow_ckpt.stores.objects_bucket import Bucket
from graflow_ckpt.stores.objects_chunks import PieceSource
from graflow_ckpt.stores.objects_head import Head, Heads, Held, Names, Record, Seen, named
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_names import Target, decoded, target_of
from graflow_ckpt.stores.objects_put import ObjectSaving, Put, let_go, write

_FRESH = 30.0  # seconds in which somebody who has seen a meta opens its parts
_REMEMBERED = 64

_logger = logging.getLogger(__name__)


class Trios:
    """The checkpoints of one store. `folder`: what their paths start with."""

    def __init__(self, bucket: Bucket, heads: Heads, names: Names, folder: str) -> None:
        self._bucket = bucket
        self._heads = heads
        self._names = names
        self._folder = folder
        self._recent = _Recent()
        self._ahead = Ahead()
        self._savings: dict[tuple[str, str], ObjectSaving] = {}  # under way, by name and stage

    # --- writing -----------------------------------------------------------------------

    def saving(self, target: Target, lease: ObjectLease | None, stage: str) -> ObjectSaving:
        """Of the contents of the put of that stage."""
        which = target.base, stage

        def over() -> None:
            if self._savings.get(which) is found:
                del self._savings[which]

        found = ObjectSaving(self._bucket, self._heads, target, lease, over)
        self._savings[which] = found
        return found

    def write(self, put: Put, parts: Sequence[tuple[str, PartWriter]]) -> None:
        self._recent.forget(put.target.base)
        put = replace(put, saving=partial(self._savings.get, (put.target.base, put.stage)))
        done = write(self._bucket, self._heads, self._names, put, parts)
        if done.former is not None:
            self._remove(done.former.data_keys(unless=done.record))
        let_go(self._bucket, put.target.tag, done.freed)

    # --- reading -----------------------------------------------------------------------

    def find(self, target: Target) -> Record:
        record = self.record(target)
        if record is None:
            self._recent.forget(target.base)
            raise not_found(path_of(self._folder, target.base))
        return record

    def open_part(self, target: Target, part: str, stage: str) -> PieceSource:
        known = self._recent.take(target.base, part, stage)
        if known is not None:
            with suppress(CheckpointCorrupt):  # gone since: look again
                source = self.source(target.base, known, part)
                source.begin()
                return source
        record = self.find(target)
        if part not in record.parts or record.stage != stage:
            raise not_its(path_of(self._folder, target.base), part)
        return self.source(target.base, record, part)

    def open_content(self, target: Target, name: str, stage: str) -> PieceSource:
        known = self._recent.holding(target.base, stage)
        if known is not None:
            with suppress(CheckpointCorrupt):  # gone since: look again
                return self._content(target.base, known, name)
        record = self.find(target)
        if record.stage != stage:
            raise self._holds_none(target.base, name)
        return self._content(target.base, record, name)

    def _content(self, base: str, record: Record, name: str) -> PieceSource:
        if name in record.contents:
            names = list(record.contents)
            at = names.index(name)
            coming = [self._opening(base, record, record.contents[n]) for n in names[at : at + 1 + AHEAD]]
            return self._ahead.open(coming[0], coming[1:])
        if not record.alone or not is_content(name):
            raise self._holds_none(base, name)
        entries = self._bucket.list(record.key(f"{record.alone}/{name}"))
        held = Held(record.alone, name, sum(entry.size for entry in entries))
        if not held.size:
            raise self._holds_none(base, name)
        return self._opening(base, record, held)[1]()

    def _opening(self, base: str, record: Record, held: Held) -> Opening:
        key, path = record.key(held.data), path_of(self._folder, base)

        def opening() -> PieceSource:
            source = PieceSource(self._bucket, key, 0, held.size, path)
            source.begin()
            return source

        return f"{path} {key}", opening

    def _holds_none(self, base: str, name: str) -> CheckpointCorrupt:
        return holds_none(path_of(self._folder, base), name)

    def meta(self, target: Target) -> bytes:
        record = self.find(target)
        while True:
            try:
                return self.meta_of(target.base, record)
            except CheckpointCorrupt:
                newer = self.find(target)
                if newer.nonce == record.nonce:
                    raise
                record = newer

    def meta_of(self, base: str, record: Record) -> bytes:
        """CheckpointCorrupt: it is gone; maybe there is a newer one."""
        raw = self.source(base, record, META).all()
        self._recent.remember(base, record)
        return raw

    # --- deleting ----------------------------------------------------------------------

    def delete(self, target: Target) -> bool:
        return self.delete_own(target.session, [target.base]) == 1 if target.session else self._clear(target)

    def delete_own(self, session: str, bases: Collection[str]) -> int:
        """Those of a session, in one change of its head."""
        gone: Mapping[str, Record] = {}
        before = set[Held]()

        def change(head: Head) -> Head | None:
            nonlocal gone
            before.update(head.held())
            found = {base: head.commits[base] for base in bases if base in head.commits}
            if not found:
                return None
            gone = found
            return head.without(found)

        self._recent.forget(*bases)
        seen = self._heads.update(session, change)
        self._remove([key for record in gone.values() for key in record.data_keys()])
        let_go(self._bucket, session, before - seen.head.held())
        return len(gone)

    def _clear(self, target: Target) -> bool:
        self._recent.forget(target.base)
        gone = self._names.clear(target)
        if gone is not None:
            self._remove(gone.data_keys())
            let_go(self._bucket, target.tag, set(gone.held()))
        return gone is not None

    def _remove(self, keys: Sequence[str]) -> None:
        """Data that nothing points at any more. Left behind, it is in nobody's way."""
        try:
            self._bucket.delete(keys)
        except GraflowError as error:
            _logger.warning("data of a former checkpoint stays: %s", error)

    # --- within ------------------------------------------------------------------------

    def record(self, target: Target) -> Record | None:
        """What the path points at now."""
        if target.session is None:
            return self._names.read(target).record
        return self._heads.read(target.session).head.commits.get(target.base)

    def source(self, base: str, record: Record, part: str) -> PieceSource:
        data, start, size = record.parts[part]
        inline = None if data else record.inline[start : start + size]
        key = record.key(data)
        return PieceSource(self._bucket, key, start, size, path_of(self._folder, base), inline)


class _Recent:
    """Records whose meta somebody has just seen. Each part is handed out once, and soon."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Record, set[str], float]] = OrderedDict()
        self._mutex = threading.Lock()

    def remember(self, base: str, record: Record) -> None:
        parts = set(record.parts) - {META}
        with self._mutex:
            self._known[base] = record, parts, time.monotonic() + _FRESH
            self._known.move_to_end(base)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def take(self, base: str, part: str, stage: str) -> Record | None:
        with self._mutex:
            record, parts, until = self._known.get(base, (None, frozenset[str](), 0.0))
            if record is None or record.stage != stage or part not in parts or time.monotonic() > until:
                return None
            assert isinstance(parts, set)
            parts.remove(part)
            if not parts and not any(record.held()):  # contents are opened after them
                del self._known[base]
            return record

    def holding(self, base: str, stage: str) -> Record | None:
        with self._mutex:
            record, _, until = self._known.get(base, (None, None, 0.0))
            known = record is not None and record.stage == stage and time.monotonic() < until
            return record if known else None

    def forget(self, *bases: str) -> None:
        with self._mutex:
            for base in bases:
                self._known.pop(base, None)


AHEAD = 3

Opening = tuple[str, Callable[[], PieceSource]]


class Ahead:
    """For the readers of one store."""

    def __init__(self) -> None:
        self._coming: dict[str, Future[PieceSource]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._mutex = threading.Lock()

    def open(self, first: Opening, following: Sequence[Opening]) -> PieceSource:
        """What `first` opens, and `following` begun. Each has a name that no other one has."""
        with self._mutex:
            mine = self._coming.pop(first[0], None)
            wanted = dict(following)
            for name in [name for name in self._coming if name not in wanted]:
                _drop(self._coming.pop(name))
            for name, opening in following:
                if name not in self._coming:
                    self._pool = self._pool or ThreadPoolExecutor(AHEAD, thread_name_prefix="contents")
                    self._coming[name] = self._pool.submit(opening)
            if self._pool is not None and not self._coming:
                self._pool.shutdown(wait=False)
                self._pool = None
        if mine is not None:
            with suppress(GraflowError):
                return mine.result()
        return first[1]()


def _drop(future: Future[PieceSource]) -> None:
    """Nobody has opened it."""

    def close(done: Future[PieceSource]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    if not future.cancel():
        future.add_done_callback(close)


# --- listings ------------------------------------------------------------------------------


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
