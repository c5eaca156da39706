"""Checkpoints in memory: for tests, notebooks, and runs that nobody will resume.

    memory:                                         the place that everything in this process shares
    memory://NAME                                   another one
    memory://NAME?max_bytes=N&max_checkpoints=N     the same, and what has no room there is refused

Promise: that of every store (a trio appears whole, a writer that has lost its session changes
nothing, the newest is listed first), for as long as the process lives. `synced` is False: nothing is on
a disk, and a journal here guards against errors, not against crashes. A bounded place never drops
anything by itself: what would not fit is `TooLarge`, and what is there stays (retention makes room).
Not here: other processes; they have a memory of their own, and a forked child is refused.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from urllib.parse import parse_qsl

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound, TooLarge
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Buffer, Lease, Owner, PartWriter
from graflow_ckpt.stores import batches
from graflow_ckpt.stores.memory_room import (
    Holding,
    MemoryContents,
    MemoryLease,
    MemorySegment,
    MemorySource,
    Room,
    Trio,
    drop_segments,
    hold,
    segments_of,
)
from graflow_ckpt.stores.names import META, base_of, check_parts, replaced, session_in, session_of

_SCHEME = "memory://"
_DEFAULT = "main"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_BOUNDS = ("max_bytes", "max_checkpoints")

_rooms: dict[str, Room] = {}
_gate = threading.Lock()


class MemoryStore:
    """All stores of one name in a process are one place. The bounds are those of the store that writes."""

    shared = False
    synced = False

    def __init__(
        self, where: str = "memory:", *, max_bytes: int | None = None, max_checkpoints: int | None = None
    ) -> None:
        for bound, given in (("max_bytes", max_bytes), ("max_checkpoints", max_checkpoints)):
            if given is not None:
                arguments.whole(bound, given, least=1)
        name, bounds = _parsed(os.fspath(where))
        self.folder = f"{_SCHEME}{name}"
        self._max_bytes = bounds.get("max_bytes") if max_bytes is None else max_bytes
        self._max_checkpoints = bounds.get("max_checkpoints") if max_checkpoints is None else max_checkpoints
        with _gate:
            self._room = _rooms.setdefault(name, Room(name))
        self._contents = MemoryContents(self._room, self._trio, self._check_bytes)

    @property
    def url(self) -> str:
        return self.folder

    @property
    def contents(self) -> MemoryContents:
        return self._contents

    def probe(self) -> None:
        """Memory can be written; only a forked child is refused."""
        with self._room.locked():
            pass

    def takes(self, path: str) -> str | None:
        """The path as it is written here; None if it leads to another store."""
        folder, _, base = path.rpartition("/")
        return path if folder == self.folder and base_of(base) else None

    def forget(self) -> None:
        """Empty the place. Who owned a session in it does not any more."""
        self._room.forget()

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        return self._room.claim(check_session_id(session), take_over=take_over)

    def owner(self, session: str) -> Owner | None:
        return self._holding(session).owner

    # --- checkpoints -------------------------------------------------------------------

    def put(
        self, path: str, parts: Sequence[tuple[str, PartWriter]], *, lease: Lease | None, stage: str
    ) -> None:
        base = self._base(path)
        mine = self._own(lease) if lease is not None else None
        check_parts([part for part, _ in parts])
        if mine is not None:
            mine.check()  # before anything is computed; what counts is the look below
        made: dict[str, bytes] = {}
        for part, writer in parts:
            sink = _Collector()
            writer(sink)
            made[part] = bytes(sink.data)
        with self._room.locked():
            if mine is not None:
                mine.hold()
            former = self._room.trios.get(base)
            kept = former.parts if former else {}
            of_stage = {part: found for part, found in kept.items() if found[0] == stage}
            if len(made) == 1 and kept and not of_stage:
                raise replaced(path)
            new = {part: (stage, data) for part, data in made.items() if part != META}
            held = hold(self._room, path, made[META], former)
            trio = Trio(made[META], of_stage | new, held)
            self._check_room(path, trio, former)
            self._room.trios[base] = trio  # in one step: a Ctrl-C must not leave neither of the two
            self._room.trios.move_to_end(base)

    def open(self, path: str, part: str, stage: str) -> MemorySource:
        found = self._trio(path).parts.get(part)
        if found is None or found[0] != stage:
            raise CheckpointCorrupt(
                f"The checkpoint {path} has no {part} that belongs to its meta.",
                hint="It was written anew meanwhile, or by something else.",
                path=path,
                part=part,
            )
        return MemorySource(found[1])

    def meta(self, path: str) -> bytes:
        return self._trio(path).meta

    def unsafe(self, path: str) -> str | None:
        """Only this process writes here."""
        return None

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Paths and metas, the last committed first; those that were there when it began.

        `session`: its own paths, and those under other names whose meta names it.
        `pattern`: a glob of names, alone or after the store, instead of all.
        """
        wanted = None if pattern is None else base_of(pattern.removeprefix(f"{self.folder}/"))
        with self._room.locked():
            found = [(base, trio.meta) for base, trio in self._room.trios.items()]
        for base, raw in reversed(found):
            own = session_of(base)
            its = session is None or own == session or (own is None and session_in(raw) == session)
            if its and (wanted is None or fnmatchcase(base, wanted)):
                yield f"{self.folder}/{base}.pkl", raw

    def newest(
        self,
        limit: int,
        *,
        session: str | None = None,
        workflow: str | None = None,
        status: str | None = None,
    ) -> Sequence[tuple[str, bytes]]:
        """The last committed of those whose metas say so; looks at them one by one."""
        return batches.first(self.list(session), limit, workflow=workflow, status=status)

    def delete(self, path: str) -> bool:
        return self.delete_many([path]) > 0

    def delete_many(self, paths: Iterable[str]) -> int:
        """How many there were."""
        bases = [self._base(path) for path in paths]
        with self._room.locked():
            return sum(self._room.trios.pop(base, None) is not None for base in bases)

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> MemorySegment:
        mine = self._own(lease)
        mine.check()
        return MemorySegment(mine, after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return iter(segments_of(self._room, check_session_id(session)))

    def drop_segments(self, session: str, before: int) -> None:
        drop_segments(self._room, check_session_id(session), before)

    # --- within ------------------------------------------------------------------------

    def _holding(self, session: str) -> Holding:
        check_session_id(session)
        with self._room.locked():
            return self._room.holdings.get(session, Holding())

    def _own(self, lease: Lease) -> MemoryLease:
        if not isinstance(lease, MemoryLease) or lease.room is not self._room:
            raise TypeError(f"a lease of this store is needed, not {type(lease).__name__}")
        return lease

    def _base(self, path: str) -> str:
        base = path if "/" not in path else path[len(self.folder) + 1 :] if self.takes(path) else ""
        if not base_of(base):
            raise CheckpointError(
                f"{path!r} is not in {self.folder}, or names no checkpoint.",
                hint=f"Its checkpoints are called {self.folder}/NAME.",
                path=path,
            )
        return base_of(base)

    def _trio(self, path: str) -> Trio:
        base = self._base(path)
        with self._room.locked():
            found = self._room.trios.get(base)
        if found is None:
            raise CheckpointNotFound(
                f"Checkpoint {path} not found. It may have expired or been deleted.", path=path
            )
        return found

    def _check_room(self, path: str, trio: Trio, former: Trio | None) -> None:
        count = len(self._room.trios) + (former is None)
        if self._max_checkpoints is not None and count > self._max_checkpoints:
            raise TooLarge(
                f"No room for {path}: {self.folder} is to keep {self._max_checkpoints} checkpoints at most.",
                hint="Delete some (graflow-ckpt checkpoints prune), or raise max_checkpoints.",
                path=path,
                size=count,
                limit=self._max_checkpoints,
            )
        self._check_bytes(path, trio.size - (former.size if former else 0))

    def _check_bytes(self, path: str, more: int) -> None:
        if self._max_bytes is None:
            return
        size = sum(kept.size for kept in self._room.trios.values()) + more
        size += sum(len(content.data) for content in list(self._room.contents.values()))
        if size > self._max_bytes:
            raise TooLarge(
                f"No room for {path}: with it {self.folder} would hold {size} bytes, and is to hold "
                f"{self._max_bytes} at most.",
                hint="Delete some (graflow-ckpt checkpoints prune), or raise max_bytes.",
                path=path,
                size=size,
                limit=self._max_bytes,
            )


class _Collector:
    """A sink that takes copies: the writer may use its buffer again."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: Buffer, /) -> int:
        with memoryview(data) as given, given.cast("B") as view:
            self.data += view
            return len(view)


def _parsed(where: str) -> tuple[str, dict[str, int]]:
    """The name of the place, and its bounds."""
    head, _, query = where.partition("?")
    name = head.removeprefix("memory:").removeprefix("//").rstrip("/") or _DEFAULT
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
        bounds = {key: int(value) for key, value in pairs}
    except ValueError:
        bounds = {"": 0}
    if not _NAME.match(name) or not set(bounds) <= set(_BOUNDS) or any(n < 0 for n in bounds.values()):
        raise CheckpointError(
            f"{where!r} is not a place in memory.",
            hint=f"Write memory:, or memory://NAME; bounds: ?{'=N&'.join(_BOUNDS)}=N.",
            store=where,
        )
    return name, bounds
