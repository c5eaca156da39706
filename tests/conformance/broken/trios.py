"""Stores that keep checkpoints badly. Each has one thing wrong, which its docstring says; the rest is sound.

Not here: those that are wrong about owners and journals (owners.py), or about processes
(folders.py), and which test finds what (test_broken.py).
"""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from graflow_ckpt.core.errors import CheckpointNotFound
from graflow_ckpt.core.protocols import Buffer, Lease, PartWriter, Sink
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import head_key, scope_of
from graflow_ckpt.stores.names import META, Collected, facts_in, path_of
from graflow_ckpt.stores.store import within
from graflow_ckpt.stores.streams import BytesSource
from tests import things
from tests.trios import all_of, writer

Parts = Sequence[tuple[str, PartWriter]]


def written(write: PartWriter) -> bytes:
    sink = Collected()
    write(sink)
    return bytes(sink.data)


def put_through(writer: PartWriter, sink: type) -> PartWriter:
    """The same part, by way of another sink."""

    def write(inner: Sink) -> None:
        writer(sink(inner))

    return write


class _Rewriting(MemoryStore):
    """Sound, and what it is made of for those below: what stands there is read, and written anew."""

    def former(self, path: str) -> dict[str, bytes]:
        """Part by part, the meta last; nothing if it is not there."""
        base = self._name(path)
        record = self.heads.read(scope_of(base)).head.get(base)
        if record is None:
            return {}
        found = {
            part: all_of(super(_Rewriting, self).open(path, part, record.stage)) for part in record.parts
        }
        return found | {META: self.meta(path)}

    def write(self, path: str, parts: dict[str, bytes], stage: str) -> None:
        """Whoever owns the session."""
        ready = [(part, writer(data)) for part, data in parts.items() if part != META]
        super().put(path, [*ready, (META, writer(parts[META]))], lease=None, stage=stage)


# --- writing ---------------------------------------------------------------------------


class LosesReplacements(_Rewriting):
    """A name that is taken keeps what it had, and the put is confirmed."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if not self.former(path):
            super().put(path, parts, lease=lease, stage=stage)


class LosesUnderLoad(MemoryStore):
    """Reads the head, changes its copy, writes it back: what another thread has put meanwhile is gone."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        base = self._name(path)
        before = self.heads.read(scope_of(base)).head.records
        time.sleep(0.002)
        super().put(path, parts, lease=lease, stage=stage)
        head = self.heads.read(scope_of(base)).head
        records = {name: kept for name, kept in head.records.items() if name in before or name == base}
        things.write(self, head_key(scope_of(base)), head._replace(records=records).encode())


class WritesInPlace(_Rewriting):
    """Each part is in its place when it is written, and the meta comes last."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        there, done = self.former(path), dict[str, bytes]()
        for part, write in parts[:-1]:
            done[part] = written(write)
            if there:
                self.write(path, there | done, json.loads(there[META])["stage"])
            time.sleep(0.001)  # as a disk would
        ready = [(part, writer(data)) for part, data in done.items()]
        super().put(path, [*ready, parts[-1]], lease=lease, stage=stage)


class ShowsMetaFirst(_Rewriting):
    """The name is there as soon as somebody begins to write it."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if not self.former(path):
            self.write(path, {META: b"{}"}, stage)
        super().put(path, parts, lease=lease, stage=stage)


class SwallowsErrors(MemoryStore):
    """A writer that fails has written a short part."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        def forgiving(writer: PartWriter) -> PartWriter:
            def write(sink: Sink) -> None:
                try:
                    writer(sink)
                except BaseException:  # noqa: BLE001  that is what is wrong with it
                    sink.write(b" (sorry)")

            return write

        forgiven = [(part, forgiving(writer)) for part, writer in parts]
        super().put(path, forgiven, lease=lease, stage=stage)


class LosesPartsOfResealed(MemoryStore):
    """A meta that is put alone takes the place of the whole trio."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        self.delete(path)
        super().put(path, parts, lease=lease, stage=stage)


class KeepsBuffers(MemoryStore):
    """Remembers the buffers that it was given instead of their bytes."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        class Lazy:
            def __init__(self, inner: Sink) -> None:
                self.kept: list[Buffer] = []

            def write(self, data: Buffer, /) -> int:
                self.kept.append(data)
                return memoryview(data).nbytes

        def lazily(writer: PartWriter) -> PartWriter:
            def write(sink: Sink) -> None:
                lazy = Lazy(sink)
                writer(lazy)
                for data in lazy.kept:
                    sink.write(data)

            return write

        late = [(part, lazily(writer)) for part, writer in parts]
        super().put(path, late, lease=lease, stage=stage)


class CountsItems(MemoryStore):
    """Takes the length of a buffer for its size in bytes."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        class Counting:
            def __init__(self, inner: Sink) -> None:
                self.inner = inner

            def write(self, data: Buffer, /) -> int:
                self.inner.write(memoryview(data).tobytes())
                return len(data)

        counted = [(part, put_through(writer, Counting)) for part, writer in parts]
        super().put(path, counted, lease=lease, stage=stage)


class CutsLargeParts(MemoryStore):
    """A row of it holds 16 MiB, and the rest falls off."""

    def open(self, path: str, part: str, stage: str) -> BytesSource:
        return BytesSource(all_of(super().open(path, part, stage))[: 16 << 20])


class LosesTheLastChunk(MemoryStore):
    """What does not fill a chunk of 64 KiB is not written, unless it is the only one."""

    def open(self, path: str, part: str, stage: str) -> BytesSource:
        data = all_of(super().open(path, part, stage))
        whole = len(data) >> 16 << 16
        return BytesSource(data[:whole] if whole else data)


class ReadsWhatIsThereNow(MemoryStore):
    """A source looks up its bytes at each read, whatever has been put there since."""

    def open(self, path: str, part: str, stage: str) -> BytesSource:
        store, sound = super(), all_of(super().open(path, part, stage))

        class Live(BytesSource):
            def readinto(self, buffer: memoryview, /) -> int:
                now = json.loads(store.meta(path))["stage"]
                self._data = memoryview(all_of(store.open(path, part, now)))
                return super().readinto(buffer)

        return Live(sound)


# --- deleting --------------------------------------------------------------------------


class DeletesHalf(_Rewriting):
    """Takes the meta away and leaves the parts to whoever comes next."""

    _left: dict[str, dict[str, bytes]] = {}  # noqa: RUF012  of the place, like everything here

    def delete(self, path: str) -> bool:
        if found := self.former(path):
            self._left[path] = found
        return super().delete(path)

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=lease, stage=stage)
        if left := self._left.pop(path, None):
            self.write(path, left | self.former(path), stage)


class DeletesByPattern(MemoryStore):
    """Takes what it is told to delete for a pattern."""

    def delete(self, path: str) -> bool:
        base = self._name(path)
        gone = [found for found, _ in self.list() if fnmatch.fnmatchcase(self._name(found), base)]
        for one in gone:
            super().delete(one)
        return bool(gone)


class DeletesByPrefix(MemoryStore):
    """Takes along whatever begins with the same letters."""

    def delete(self, path: str) -> bool:
        found = super().delete(path)
        for other in [other for other, _ in self.list() if found]:
            if self._name(other).startswith(self._name(path)[:4]):
                super().delete(other)
        return found


class AlwaysDeletes(MemoryStore):
    """Says that there was something, whether there was or not."""

    def delete(self, path: str) -> bool:
        super().delete(path)
        return True


class FindsNothing(MemoryStore):
    """Gives an empty meta for what is not there."""

    def meta(self, path: str) -> bytes:
        try:
            return super().meta(path)
        except CheckpointNotFound:
            return b""


# --- listing and names -----------------------------------------------------------------


class ListsFromACache(MemoryStore):
    """Each handle asks once, and answers from what it knew then."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._cached: list[tuple[str, bytes]] | None = None

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        if session or pattern:
            return super().list(session, pattern)
        if self._cached is None:
            self._cached = [*super().list()]
        return iter(self._cached)


class ListsByName(MemoryStore):
    """Newest first in the order of letters: 9 is newer than 10."""

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        return iter(sorted(super().list(session, pattern), reverse=True))


class ListsOnePage(MemoryStore):
    """There is never a second page."""

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        return iter([*super().list(session, pattern)][:100])


class HidesDamage(MemoryStore):
    """What it cannot parse is not there."""

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        for path, raw in super().list(session, pattern):
            try:
                json.loads(raw)
            except (ValueError, RecursionError):
                continue
            yield path, raw


class WritesMetaAnew(MemoryStore):
    """Keeps what the meta says, not its bytes: no seal would fit any more."""

    def meta(self, path: str) -> bytes:
        raw = super().meta(path)
        try:
            return json.dumps(json.loads(raw)).encode()
        except (ValueError, RecursionError):
            return raw


class ListsWhatIsBeingWritten(MemoryStore):
    """A listing walks over the table itself, and breaks when somebody writes."""

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        names = [*super().list(session, pattern)]
        count = len(self.room.rows)
        for at, found in enumerate(names):
            if at and len(self.room.rows) != count:
                return  # the rest is left out
            yield found


class TakesEverything(MemoryStore):
    """Every path is its own."""

    def takes(self, path: str) -> str | None:
        return path


class FoldsCase(MemoryStore):
    """Its names have no upper case, like those of some databases."""

    def _name(self, path: str) -> str:
        return super()._name(path).lower()


class SelectsByLike(MemoryStore):
    """Finds the checkpoints of a session by LIKE, where _ is any letter and case does not matter."""

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        if session is None:
            return super().list(session, pattern)
        like = f"session_{session}_step_*".replace("_", "?").lower()
        return ((path, raw) for path, raw in super().list() if self._fits(path, raw, session, like))

    def _fits(self, path: str, raw: bytes, session: str, like: str) -> bool:
        named: Any = f'"session_id": "{session}"'.encode()
        return fnmatch.fnmatchcase(path.rpartition("/")[2].lower(), like) or named in raw


Listed = Sequence[tuple[str, bytes]]


# --- choosing --------------------------------------------------------------------------


def _first(listing: Iterable[tuple[str, bytes]], limit: int, **wanted: Any) -> Listed:
    """Of a listing that has the newest of all first."""
    facts = ((found, facts_in(found[1])) for found in listing)
    fitting = (
        found for found, has in facts if all(want in (None, has.get(name)) for name, want in wanted.items())
    )
    return list(islice(fitting, within(limit)))


class ChoosesSessionBySession(MemoryStore):
    """Takes the newest from a listing that goes from one session to the next."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        listing = sorted(self.list(session), key=lambda found: found[0].partition("_step_")[0])
        return _first(listing, limit, **wanted)


class ChoosesByTheClock(MemoryStore):
    """The newest is what has the latest time, whoever's time that is."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        listing = sorted(self.list(session), key=lambda found: _created(found[1]), reverse=True)
        return _first(listing, limit, **wanted)


class FiltersAfterTheLimit(MemoryStore):
    """Looks for what is wanted among the newest few."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        return _first(islice(self.list(session), max(limit, 0)), limit, **wanted)


class RemembersTheFirstStatus(MemoryStore):
    """An index that is written when a name appears, and not again when it is written anew."""

    _known: dict[str, bytes] = {}  # noqa: RUF012  of the place, like everything here

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=lease, stage=stage)
        self._known.setdefault(path_of(self.folder, self._name(path)), self.meta(path))

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        listing = [(path, self._known[path]) for path, _ in self.list(session)]
        return [(path, self.meta(path)) for path, _ in _first(listing, limit, **wanted)]


class ChoosesNoDamage(MemoryStore):
    """What it cannot index is not there."""

    def newest(self, limit: int, *, session: str | None = None, **wanted: Any) -> Listed:
        sound = [found for found in self.list(session) if _created(found[1])]
        return _first(sound, limit, **wanted)


# --- deleting many ----------------------------------------------------------------------


class CountsWhatItIsAsked(MemoryStore):
    """Says how many it was told to delete."""

    def delete_many(self, paths: Iterable[str]) -> int:
        asked = list(paths)
        super().delete_many(asked)
        return len(asked)


class CountsBeforeItDeletes(MemoryStore):
    """Looks which ones are there, and deletes them afterwards."""

    def delete_many(self, paths: Iterable[str]) -> int:
        there = {path for path, _ in self.list()}
        time.sleep(0.02)
        found = {path_of(self.folder, self._name(path)) for path in paths} & there
        super().delete_many(found)
        return len(found)


class StopsAtTheFirstGap(MemoryStore):
    """What is not there ends the list."""

    def delete_many(self, paths: Iterable[str]) -> int:
        count = 0
        for path in paths:
            if not super().delete_many([path]):
                break
            count += 1
        return count


class LooksWhenItComesToIt(MemoryStore):
    """Finds out in the middle of a list that something in it is no checkpoint."""

    def delete_many(self, paths: Iterable[str]) -> int:
        return sum(super(LooksWhenItComesToIt, self).delete_many([path]) for path in paths)


class KeepsPartsOfLists(_Rewriting):
    """Leaves the parts of what was deleted in a list to whoever comes next."""

    _left: dict[str, dict[str, bytes]] = {}  # noqa: RUF012

    def delete_many(self, paths: Iterable[str]) -> int:
        asked = list(paths)
        self._left |= {self._name(path): found for path in asked if (found := self.former(path))}
        return super().delete_many(asked)

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=lease, stage=stage)
        if left := self._left.pop(self._name(path), None):
            self.write(path, left | self.former(path), stage)


class DeletesTheEndFirst(LocalStore):
    """Who is killed in the middle leaves old checkpoints without the newer ones."""

    def delete_many(self, paths: Iterable[str]) -> int:
        count = 0
        for path in reversed([*paths]):
            count += self.delete(path)
            time.sleep(0.01)  # as a slow disk would
        return count


def _created(raw: bytes) -> str:
    return str(facts_in(raw).get("created_at", ""))
