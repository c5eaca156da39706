"""A store over a driver: checkpoints in any place that can change several keys at once.

    W1 what is large goes ahead, in chunks    W2 one batch: the head is another one, the rest of the chunks
    and the meta are there, and what was replaced is gone

Promise: before W2 a reader finds the previous checkpoint, after it this one, whole; a writer that has lost
its session commits nothing. A commit holds contents that the head knows as it is then, or that its own save
has written; else it is refused (`gone`). A reader whose chunks go while it reads finds out, and that the
meta has changed. What is listed is read from metas alone.

A save that fails before W2 deletes what it has written; after W2 has begun only if it is sure that it was
refused. Whatever is left is removed by the session's next owner.
Not here: which owner may write (lease.py), what the head says (head.py), how a place does it (drivers), and
what a checkpoint contains.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Unpack
from weakref import WeakValueDictionary

from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Buffer, Drops, Lease, Owner, Parts
from graflow_ckpt.stores import names
from graflow_ckpt.stores.contents import KeyedContents, KeyedSaving
from graflow_ckpt.stores.driver import Driver, Hit, Put, Row
from graflow_ckpt.stores.head import (
    Head,
    HeadRecord,
    Held,
    Pin,
    base_in,
    chunk_keys,
    meta_key,
    new_mark,
    scope_of,
)
from graflow_ckpt.stores.journal import KeyedSegment, drop_segments, open_segment, read_segments
from graflow_ckpt.stores.lease import (
    LEASE,
    Change,
    Heads,
    KeyedLease,
    Leases,
    Seen,
    Stale,
    Step,
    close_behind,
    left_behind,
)
from graflow_ckpt.stores.owners import clearing
from graflow_ckpt.stores.store import Filters, Store, newest_of, within
from graflow_ckpt.stores.streams import BytesSource, RangeReader, Stream

_INLINE = 128 << 10  # bytes of checkpoints that a head may have
_BEHIND = 64 << 10  # bytes of a stream that are put behind its meta, and are read along with it
_WHOLE = 4 << 20  # bytes of a stream that are fetched with the first of its parts
_PAGE = 200  # metas that are read at once
_FRESH = 30.0  # seconds in which a reader that has seen a meta opens its parts
_REMEMBERED = 64
_TOGETHER = 500  # checkpoints that one batch deletes
_DROPS = 1000  # keys that one batch drops

log = logging.getLogger("graflow_ckpt.stores")


class KeyedStore(Store[KeyedLease]):
    """`folder`: what its paths start with."""

    own = KeyedLease
    shared = True
    drops_along = True

    def __init__(self, driver: Driver, folder: str, *, lease: float = LEASE) -> None:
        self.folder = folder
        self.driver = driver
        self.heads = Heads(driver)
        self.savings: dict[tuple[str, str], KeyedSaving] = {}  # under way, by name and stage
        self.synced = True
        self._leases = Leases(self.heads, folder, lease)
        self._owned: WeakValueDictionary[str, KeyedLease] = WeakValueDictionary()  # by session
        self._recent = _Recent()

    @property
    def contents(self) -> KeyedContents:
        return KeyedContents(self)  # not kept: nothing of a store is to outlive it

    def takes(self, path: str) -> str | None:
        folder, _, base = path.rpartition("/")
        return (
            names.path_of(folder, names.base_of(base))
            if folder == self.folder and names.base_of(base)
            else None
        )

    def probe(self) -> None:
        """Do once what saving will do, and delete it again."""
        done = self.driver.batch([Put("probe", b"", fresh=False)])
        self.driver.batch([], ["probe"])
        self.synced = done is not None and done.synced

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        lease = self._owned[session] = self._leases.claim(check_session_id(session), take_over=take_over)
        if lease.epoch == 1:  # there was no owner before
            return lease
        try:
            if not self.driver.atomic:
                close_behind(self.heads, lease)
        except BaseException:
            lease.release()
            raise
        with clearing(lease):
            self.drop([entry.key for entry in left_behind(self.driver, session, lease.head)])
        return lease

    def owner(self, session: str) -> Owner | None:
        return self._leases.owner(check_session_id(session))

    # --- writing -----------------------------------------------------------------------

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        base, mine = self._name(path), None
        if lease is not None:
            mine = self._own(lease)
            mine.not_released()
            names.check_own(path, names.session_of(base), mine.session)
        names.check_parts([part for part, _ in parts])
        self._put(PutTarget(self, base, mine, stage), parts, drops)

    def _put(self, to: PutTarget, parts: Parts, drops: Drops) -> None:
        self._recent.forget(to.base)
        stream = Stream(self.driver, to.scope, to.mark)
        sent = False
        try:
            placed: dict[str, tuple[int, int]] = {}
            for part, writer in parts[:-1]:
                start = stream.size
                writer(stream)
                placed[part] = (start, stream.size - start)
            meta = names.Collected()
            parts[-1][1](meta)
            record = HeadRecord(to.base, to.mark, 0, to.stage, placed, stream.size, (to.mark, len(meta.data)))
            asked = dict.fromkeys(map(self._name, drops()))
            going = [name for name in asked if to.owns and scope_of(name) == to.scope]
            sent = True
            self._commit(to, record, bytes(meta.data), stream, going)
            self._recent.forget(*going)
        except BaseException as error:
            unknown = isinstance(error, errors.SaveOutcomeUnknown)
            if not unknown and (not sent or self._was_refused(to, error)):
                stream.withdraw()
            elif saving := self.savings.get((to.base, to.stage)):
                saving.committed()  # it may be committed: nothing of it may be deleted
            if sent and isinstance(error, errors.ServerGone):
                raise names.unconfirmed(to.path, error) from error
            if isinstance(error, errors.ServerError):
                raise names.unwritten(to.path, error) from error
            raise

    def _was_refused(self, to: PutTarget, error: BaseException) -> bool:
        """Return whether it is sure that a commit is not there, and will not be."""
        if isinstance(error, errors.ServerGone) or not isinstance(error, errors.GraflowError):
            return False  # a Ctrl-C comes at any time
        with suppress(errors.GraflowError):  # a reply may have been lost before it was refused
            kept = self.heads.read(to.scope).head.get(to.base)
            return kept is None or to.mark not in (kept.mark, kept.meta[0])
        return False

    def _commit(
        self, to: PutTarget, record: HeadRecord, meta: bytes, stream: Stream, going: Sequence[str]
    ) -> None:
        """Do W2."""
        contents, facts = names.contents_in(meta), names.facts_in(meta)
        saving = self.savings.get((to.base, to.stage))
        its = names.session_of(to.base) or facts.get("session_id")
        row = _row(its, facts.get("workflow"), facts.get("status"))
        chunks, key = stream.rest(), meta_key(to.scope, to.mark, to.base)
        added = saving.added if saving is not None else {}
        needs = [*stream.sent, *self.keys_of(to.scope, added.values())] if added else stream.sent

        def change(head: Head) -> Step | None:
            kept = head.get(to.base)
            if kept is not None and to.mark in (kept.mark, kept.meta[0]):
                return None  # the reply was lost
            new = to.over(kept, record)
            pin = head.pins.get(saving.mark) if saving is not None else None
            holds = to.holds(contents, head, kept, pin, added) if contents else ()
            inline, tail = self._placed(head, kept, new, chunks, meta)
            new = new._replace(number=head.number + 1, contents=holds, inline=inline, behind=bool(tail))
            puts = [*chunks] if new.stream is None and not tail else []
            if not inline:
                puts.append(Put(key, b"".join((meta, tail)), row=row, listed=len(meta)))
            went = [old for base in going if base != to.base and (old := head.get(base)) is not None]
            after = head.holding(new, [old.base for old in went])
            drops = [key for old in went for key in old.keys(to.scope, self.driver.chunk)]
            if kept is not None:
                went.append(kept)
                its = new.keys(to.scope, self.driver.chunk)
                drops += [key for key in kept.keys(to.scope, self.driver.chunk) if key not in its]
            free = [held for old in went for held in old.contents]
            if pin is not None and saving is not None:
                after = after.without_pin(saving.mark)
                free += pin.held
            mine = to.lease if to.owns else None
            return self.letting_go(to.scope, after, free, mine, puts, drops, needs)

        self.synced = to.change(self.heads, change).synced
        if saving is not None:
            saving.committed()

    def _inline(self, head: Head, record: HeadRecord, chunks: Sequence[Put], meta: bytes) -> bytes:
        """Return what of a checkpoint is put into the head: its meta, or all of it, or nothing."""
        if record.inline:  # the stream that a meta is put over
            return record.inline + meta
        if len(meta) > (most := self.driver.inline):
            return b""
        room = _INLINE - sum([len(kept.inline) for kept in head.records.values() if kept.base != record.base])
        if len(meta) > room:
            return b""
        stream = b"".join(put.data for put in chunks) if len(chunks) < 2 else b""
        its = record.size <= min(most, room - len(meta)) and len(stream) == record.size
        return stream + meta if its else meta

    def _placed(
        self, head: Head, kept: HeadRecord | None, new: HeadRecord, chunks: Sequence[Put], meta: bytes
    ) -> tuple[bytes, Buffer]:
        """Return what of a checkpoint is put into the head, and what behind its meta: a small stream."""
        # a meta alone: the stream goes with it
        if kept is not None and kept.behind and new.mark == kept.mark:
            tail = self._behind(kept)
            if tail is None:
                raise Stale(names.replaced(names.path_of(self.folder, new.base)))
            return b"", tail
        inline = self._inline(head, new, chunks, meta)
        behind = not inline and len(chunks) == 1 and len(chunks[0].data) == new.size <= _BEHIND
        return inline, chunks[0].data if behind else b""

    def _behind(self, record: HeadRecord) -> bytes | None:
        """Return the stream behind its meta, if that is still there."""
        (found,) = self.driver.get(meta_key(scope_of(record.base), record.meta[0], record.base))
        return None if found is None else record.divided(found.data)[1]

    def letting_go(
        self,
        scope: str,
        after: Head,
        went: Iterable[Held],
        mine: KeyedLease | None,
        puts: Sequence[Put] = (),
        drops: Sequence[str] = (),
        needs: Sequence[str] = (),
    ) -> Step:
        """Return the step to that head. `went`: contents of which a holder has gone. Those that nothing holds
        any more are dropped, but for those that the owner may just have found."""
        free = [*went, *after.freed]
        if not (free or after.bad):
            return Step(after, puts, drops, needs)
        loose = after.loose(free)
        finding = loose if mine is None and after.owner is not None else set()
        if mine is not None:
            finding = {held for found in mine.finding for held in found.values() if held in loose}
        bad = after.bad - (after.loose(after.bad) - finding)
        after = after._replace(freed=frozenset(finding), bad=bad)
        return Step(after, puts, [*drops, *self.keys_of(scope, loose - finding)], needs)

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete; return how many were there. Those of a session go together."""
        scopes, count = dict[str, list[str]](), 0
        for base in dict.fromkeys(map(self._name, paths)):
            scopes.setdefault(scope_of(base), []).append(base)
        for scope, its in sorted(scopes.items()):
            for at in range(0, len(its), _TOGETHER):
                count += self._delete(scope, its[at : at + _TOGETHER])
        return count

    def _delete(self, scope: str, bases: Sequence[str]) -> int:
        count = 0
        mine = self._owned.get(scope)  # else what it has seen of the head would be stale

        def change(head: Head) -> Step | None:
            nonlocal count
            there = [record for base in bases if (record := head.get(base)) is not None]
            if not there:
                return None  # also if the reply was lost
            count = len(there)
            drops = [key for record in there for key in record.keys(scope, self.driver.chunk)]
            held = [held for record in there for held in record.contents]
            return self.letting_go(scope, head.without(bases), held, mine, drops=drops)

        self._recent.forget(*bases)
        if mine is not None and mine.live:
            with suppress(errors.Fenced):
                return count if mine.change(change).changed else 0
        mine = None
        return count if self.heads.change(scope, change).changed else 0

    # --- reading -----------------------------------------------------------------------

    def meta(self, path: str) -> bytes:
        base = self._name(path)
        while True:
            record = self._record(base)
            found = self._meta_of(base, record)
            if found is not None:
                return found
            if self._record(base).meta == record.meta:
                raise names.lacks(
                    names.path_of(self.folder, base), "its meta", "something else has removed it"
                )

    def _meta_of(self, base: str, record: HeadRecord) -> bytes | None:
        if record.inline:
            raw, stream = record.inline[len(record.inline) - record.meta[1] :], record.stream
        else:
            (found,) = self.driver.get(meta_key(scope_of(base), record.meta[0], base))
            if found is None:
                return None
            raw, stream = record.divided(found.data)
        self._recent.remember(base, record, stream)
        return raw

    def open(self, path: str, part: str, stage: str) -> RangeReader | BytesSource:
        base = self._name(path)
        for record, stream in self._known(base):
            if part in record.parts and record.stage == stage:
                start, size = record.parts[part]
                keys = chunk_keys(scope_of(base), record.mark, record.size, self.driver.chunk)
                if stream is None and record.size <= _WHOLE:
                    stream = self._whole(base, record, keys)
                if stream is not None:
                    return BytesSource(memoryview(stream)[start : start + size])
                source = RangeReader(self.driver, keys, start, size, path)
                if source.is_there():
                    return source
        raise names.not_its(names.path_of(self.folder, base), part)

    def _whole(self, base: str, record: HeadRecord, keys: Sequence[str]) -> bytes | None:
        """Read all parts at once: a reader that opens one opens the others next."""
        if record.behind:
            stream = self._behind(record)
        else:
            found = [one.data for one in self.driver.get(*keys) if one is not None]
            stream = found[0] if len(found) == 1 else b"".join(found)
        if stream is None or len(stream) != record.size:
            return None
        self._recent.remember(base, record, stream)
        return stream

    def open_content(self, path: str, name: str, stage: str) -> RangeReader:
        base = self._name(path)
        for record, _ in self._known(base):
            held = record.held.get(name)
            if held is not None and record.stage == stage:
                source = RangeReader(self.driver, self.keys_of(scope_of(base), [held]), 0, held.size, path)
                if source.is_there():
                    return source
        raise names.holds_none(names.path_of(self.folder, base), name)

    def _known(self, base: str) -> Iterator[tuple[HeadRecord, bytes | None]]:
        """Yield what was seen a moment ago, and if that does not do, what is there now; with its stream, if
        that is small."""
        recent = self._recent.get(base)
        if recent is not None:
            yield recent
        record = self._record(base)
        yield record, record.stream

    def _record(self, base: str) -> HeadRecord:
        record = self.heads.read(scope_of(base)).head.get(base)
        if record is None:
            self._recent.forget(base)
            raise names.not_found(names.path_of(self.folder, base))
        return record

    # --- listing -----------------------------------------------------------------------

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield paths and metas, the last committed first.

        `session`: its own paths, and those under other names whose meta names it.
        `pattern`: a glob of names, alone or after the store, instead of all.
        """
        wanted = None if pattern is None else self._pattern(pattern)
        if session is not None:
            check_session_id(session)
        for base, raw in self._metas(session, wanted):
            if wanted is None or fnmatchcase(base, wanted):
                yield names.path_of(self.folder, base), raw

    def newest(self, limit: int, **wanted: Unpack[Filters]) -> Sequence[tuple[str, bytes]]:
        if limit <= 0:
            return []
        session, workflow, status = wanted.get("session"), wanted.get("workflow"), wanted.get("status")
        row = _row(session, workflow, status)
        hits = self.driver.find(row, within(limit))
        if hits is None:
            listed = self.list(session or None)
            return newest_of(listed, limit, workflow=workflow or None, status=status or None)
        return [(names.path_of(self.folder, base_in(hit.key)), hit.data) for hit in hits]

    def _metas(self, session: str | None, wanted: str | None) -> Iterator[tuple[str, bytes]]:
        hits = self.driver.find(_row(session), _PAGE)
        if hits is None:
            yield from self._in_heads(session, wanted)
            return
        newest, seen = hits[0].number if hits else 0, set[str]()
        for hit in self._hits(session, hits):
            seen.add(base_in(hit.key))
            yield base_in(hit.key), hit.data
        if len(hits) < _PAGE:
            return
        # what was written again meanwhile has moved to the front, which was passed
        for hit in self._hits(session, self.driver.find(_row(session), _PAGE) or ()):
            base = base_in(hit.key)
            if hit.number <= newest:
                return
            if base not in seen and (names.session_of(base) is None or self._is_sealed_anew(base)):
                yield base, hit.data

    def _hits(self, session: str | None, page: Sequence[Hit]) -> Iterator[Hit]:
        """Yield all of them, page after page."""
        while True:
            yield from page
            if len(page) < _PAGE:
                return
            page = self.driver.find(_row(session), _PAGE, page[-1].number) or ()

    def _is_sealed_anew(self, base: str) -> bool:
        """Return whether it was there before its meta. A session's own is new otherwise, and does not belong
        at the end."""
        record = self.heads.read(scope_of(base)).head.get(base)
        return record is not None and record.mark != record.meta[0]

    def _in_heads(self, session: str | None, wanted: str | None) -> Iterator[tuple[str, bytes]]:
        """Yield metas where rows are not kept: the session whose head was written last first."""
        heads = sorted(self.driver.keys("head/"), key=lambda entry: entry.at, reverse=True)
        for scope in [entry.key.partition("/")[2] for entry in heads]:
            if session not in (None, scope) and not scope.startswith("@"):
                continue
            try:
                records = [*self.heads.read(scope).head.all()]
            except (errors.CheckpointCorrupt, errors.SchemaUnsupported) as error:
                if session is not None:
                    raise
                log.warning("%s", error)  # one head that cannot be read hides no others
                continue
            for record in reversed(records):
                fits = wanted is None or fnmatchcase(record.base, wanted)
                raw = self._meta_now(record.base, record) if fits else None
                if raw is not None and (
                    session in (None, scope) or names.facts_in(raw).get("session_id") == session
                ):
                    yield record.base, raw

    def _meta_now(self, base: str, record: HeadRecord) -> bytes | None:
        """Return the meta of one that may change or be deleted meanwhile; None, if its meta was removed."""
        try:
            raw = self._meta_of(base, record)
            return self.meta(base) if raw is None else raw
        except errors.CheckpointNotFound:
            return None
        except errors.CheckpointCorrupt:
            return b""

    def _pattern(self, pattern: str) -> str:
        """Return the pattern of names, from one that may name the store, too."""
        return names.base_of(pattern.removeprefix(f"{self.folder}/"))

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> KeyedSegment:
        return open_segment(self.driver, self._own(lease), after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return read_segments(self.heads, check_session_id(session))

    def drop_segments(self, session: str, before: int) -> None:
        drop_segments(self.heads, check_session_id(session), before)

    # --- within ------------------------------------------------------------------------

    def keys_of(self, scope: str, contents: Iterable[Held]) -> Sequence[str]:
        """Return all keys of these contents."""
        chunk = self.driver.chunk
        return [key for held in contents for key in chunk_keys(scope, held.stream, held.size, chunk)]

    def drop(self, keys: Sequence[str]) -> None:
        """Remove what no head names any more."""
        for at in range(0, len(keys), _DROPS):
            self.driver.batch([], keys[at : at + _DROPS])

    def target(self, path: str, lease: Lease | None, stage: str) -> PutTarget:
        """Return where a save goes."""
        return PutTarget(self, self._name(path), self._own(lease) if lease is not None else None, stage)

    def scope(self, path: str) -> str:
        """Return the scope whose head lists that path."""
        return scope_of(self._name(path))


class PutTarget:
    """The target of a put, and its lease."""

    def __init__(self, store: KeyedStore, base: str, lease: KeyedLease | None, stage: str) -> None:
        self.base, self.lease, self.stage = base, lease, stage
        self.scope = scope_of(base)
        self.owns = lease is not None and self.scope == lease.session
        self.mark = self.new_mark()
        self._folder = store.folder

    @property
    def path(self) -> str:
        return names.path_of(self._folder, self.base)

    def new_mark(self) -> str:
        return new_mark(self.lease.epoch if self.lease is not None and self.owns else 0)

    def change(self, heads: Heads, change: Change) -> Seen:
        """Change the head that says what is there."""
        if self.lease is None or self.owns:
            return self.lease.change(change) if self.lease is not None else heads.change(self.scope, change)
        seen = heads.change(self.scope, change, beside=self.lease)
        self.lease.over(self.scope)
        return seen

    def holds(
        self,
        contents: Sequence[str],
        head: Head,
        kept: HeadRecord | None,
        pin: Pin | None,
        added: Mapping[str, Held],
    ) -> tuple[Held, ...]:
        """Return what the checkpoint holds, in that order."""
        known = head.find(contents)
        if pin is not None:
            known |= {held.name: held for held in pin.held}
        if kept is not None and kept.stage == self.stage:
            known |= kept.held
        if pin is not None or self.owns:
            known |= added
        if missing := [name for name in contents if name not in known]:
            raise names.gone(self.path, missing)
        return tuple([known[name] for name in contents])

    def over(self, former: HeadRecord | None, record: HeadRecord) -> HeadRecord:
        """Return the record in the place of a former one: a meta alone goes with the parts of its stage."""
        if former is None or record.parts or not former.parts:
            return record
        if former.stage != record.stage:
            raise names.replaced(self.path)
        stream = former.stream or b""
        return record._replace(mark=former.mark, parts=former.parts, size=former.size, inline=stream)


class _Recent:
    """Records whose meta a reader has just seen, and what was read along with it."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[HeadRecord, bytes | None, float]] = OrderedDict()
        self._mutex = threading.Lock()

    def remember(self, base: str, record: HeadRecord, stream: bytes | None) -> None:
        with self._mutex:
            for name, (known, large, until) in self._known.items():
                if large is not None and known.size > _BEHIND:  # at most one of those
                    self._known[name] = known, None, until
            self._known[base] = record, stream, time.monotonic() + _FRESH
            self._known.move_to_end(base)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def get(self, base: str) -> tuple[HeadRecord, bytes | None] | None:
        with self._mutex:
            record, stream, until = self._known.get(base, (None, None, 0.0))
            return (record, stream) if record is not None and time.monotonic() < until else None

    def forget(self, *bases: str) -> None:
        if not self._known:
            return
        with self._mutex:
            for base in bases:
                self._known.pop(base, None)


def _row(*facts: object) -> Row:
    """Return the row as every place can hold it."""
    return Row(*[ascii(fact)[1:-1] if isinstance(fact, str) else "" for fact in facts])
