"""Checkpoints in memory: for tests, notebooks, and runs that nobody will resume.

    memory:                                         the place that everything in this process shares
    memory://NAME                                   another one
    memory://NAME?max_bytes=N&max_checkpoints=N     the same, and what has no room there is refused

Promise: that of every store (a trio appears whole, a writer that has lost its session changes
nothing, the newest is listed first), for as long as the process lives. `synced` is False: nothing is on
a disk, and a journal here guards against errors, not against crashes. A bounded place never drops
anything by itself: what would not fit is `TooLarge`, and what is there stays (retention makes room).

A room is what the stores of one name keep. Each step is taken under its lock as a whole; an epoch that was
given out is never given out again while the process lives. It belongs to the process that made it. A forked
child has a copy that nobody would ever look into, so everything is refused there, before the lock: its
holder may not exist in the child. Not here: other processes; they have a memory of their own.

Contents are bytes that the checkpoints of a room have in common:

    room    name -> content     weakly: which are there
    trio    name -> content     what it holds; so does a save that is under way

A content is there as long as a checkpoint or a save refers to it, and no longer: Python counts.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Unpack
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError, TooLarge
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Lease, Owner, PartWriter
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores import batches
from graflow_ckpt.stores.batches import Facts
from graflow_ckpt.stores.claims import busy
from graflow_ckpt.stores.fencing import FencedLease, FencedSegment, used
from graflow_ckpt.stores.names import (
    META,
    Collected,
    base_of,
    check_parts,
    contents_in,
    gone,
    holds_none,
    not_found,
    not_its,
    replaced,
    session_in,
    session_of,
    stage_in,
)
from graflow_ckpt.stores.pieces import BytesSource
from graflow_ckpt.stores.store import Store

_logger = logging.getLogger(__name__)


class Content:
    """Bytes that trios have in common. It is there as long as somebody refers to it."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


@dataclass(frozen=True, slots=True)
class Trio:
    """One checkpoint: its meta, and the other parts, each with the stage that it was put under."""

    meta: bytes
    parts: dict[str, tuple[str, bytes]]
    contents: dict[str, Content] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.meta) + sum(len(data) for _, data in self.parts.values())


@dataclass(frozen=True, slots=True)
class Holding:
    """Who has a session. Epoch 0: nobody ever had it."""

    epoch: int = 0
    owner: Owner | None = None
    claim: str = ""


@dataclass(slots=True)
class Room:
    """The contents of one place. `trios`: by name, the last committed at the end."""

    name: str
    trios: OrderedDict[str, Trio] = field(default_factory=OrderedDict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    segments: dict[str, dict[tuple[int, int], bytearray]] = field(default_factory=dict)
    contents: WeakValueDictionary[str, Content] = field(default_factory=WeakValueDictionary)
    _process: int = field(default_factory=os.getpid)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the room. Nothing of the caller's is called in here."""
        if os.getpid() != self._process:
            raise CheckpointError(
                f"memory://{self.name} is in process {self._process}, and this is a forked child of it.",
                hint="Give a folder, or another store that processes can share.",
                store=f"memory://{self.name}",
                pid=self._process,
            )
        with self._lock:
            yield

    def claim(self, session: str, *, take_over: bool) -> MemoryLease:
        me, claim = myself(), os.urandom(16).hex()
        with self.locked():
            held = self.holdings.get(session, Holding())
            if held.owner is not None and not take_over:
                raise busy(session, held.owner)
            self.holdings[session] = replace(held, epoch=held.epoch + 1, owner=me, claim=claim)
        return MemoryLease(self, session, held.epoch + 1, held.owner, claim)

    def forget(self) -> None:
        """Everything but the epochs: nobody who owned a session before may write into what comes next."""
        with self.locked():
            self.trios.clear()
            self.segments.clear()
            for session, held in self.holdings.items():
                self.holdings[session] = Holding(held.epoch + 1)


class MemoryLease(FencedLease):
    """One in memory: its owner is this process, so there is nothing to renew."""

    def __init__(self, room: Room, session: str, epoch: int, taken_from: Owner | None, claim: str) -> None:
        self.room = room
        super().__init__(f"memory://{room.name}", session, epoch, claim, taken_from)

    def check(self) -> None:
        self.not_released()
        with self.room.locked():
            self.hold()

    def hold(self) -> None:
        """The same for those who are alone with the room."""
        self.not_released()
        held = self.room.holdings.get(self.session, Holding())
        if (held.epoch, held.claim) != (self.epoch, self.claim):
            raise self.lost_to(held.epoch, held.owner)

    def _let_go(self) -> None:
        with self.room.locked():
            self.hold()
            held = self.room.holdings[self.session]
            self.room.holdings[self.session] = replace(held, owner=None)


class MemorySegment(FencedSegment):
    """One open segment of a journal. It lasts as long as the process."""

    def __init__(self, lease: MemoryLease, after: int) -> None:
        super().__init__(lease, f"memory://{lease.room.name}, epoch {lease.epoch}, after {after}")
        self._lease = lease
        with lease.room.locked():
            lease.hold()
            of_session = lease.room.segments.setdefault(lease.session, {})
            self._frames = of_session.setdefault((lease.epoch, after), bytearray())
            if self._frames:
                raise used(lease.session, self.key)

    def _write(self, frame: bytes) -> bool:
        with self._lease.room.locked():
            self._lease.hold()
            self._frames += frame
        return True


def segments_of(room: Room, session: str) -> list[tuple[int, int, bytes]]:
    """(epoch, after, bytes) in that order."""
    with room.locked():
        found = sorted(room.segments.get(session, {}).items())
        return [(epoch, after, bytes(frames)) for (epoch, after), frames in found]


def drop_segments(room: Room, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    with room.locked():
        kept = room.segments.get(session, {})
        for segment, (_, ended) in list(pairwise(sorted(kept))):
            if ended <= before:
                del kept[segment]


class MemoryContents:
    """Those of one room. `trio`: what is under a path; `check`: refuses so many bytes more."""

    shares = True

    def __init__(self, room: Room, trio: Callable[[str], Trio], check: Callable[[str, int], None]) -> None:
        self._room, self._trio, self._check = room, trio, check

    def scope(self, path: str, /) -> str:
        return ""

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> MemorySaving:
        return MemorySaving(self._room, path, self._check)

    def open(self, path: str, name: str, stage: str) -> BytesSource:
        trio = self._trio(path)
        found = trio.contents.get(name)
        if found is None or stage_in(trio.meta) != stage:
            raise holds_none(path, name)
        return BytesSource(found.data)

    def distrust(self, path: str, name: str, stage: str) -> None:
        with self._room.locked():
            self._room.contents.pop(name, None)

    def sweep(self) -> int:
        return 0  # nothing outlives who refers to it


class MemorySaving:
    """What one save has found and added."""

    def __init__(self, room: Room, path: str, check: Callable[[str, int], None]) -> None:
        self._room, self._path, self._check = room, path, check
        self._held: dict[str, Content] = {}

    def hold(self, names: Sequence[str], /) -> Collection[str]:
        with self._room.locked():
            found = {name: self._room.contents.get(name) for name in names}
            there = {name: content for name, content in found.items() if content is not None}
            self._held.update(there)
        return there.keys()

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        content = Content(b"".join(pieces))
        with self._room.locked():
            self._check(self._path, size)
            self._held[name] = self._room.contents.setdefault(name, content)

    def settle(self) -> None:
        """They are in memory, like everything here."""

    def end(self) -> None:
        self._held.clear()


def hold(room: Room, path: str, meta: bytes, former: Trio | None) -> dict[str, Content]:
    """The contents that a meta names. For those who are alone with the room."""
    own = former.contents if former is not None else {}
    found = {name: room.contents.get(name) or own.get(name) for name in contents_in(meta)}
    if missing := [name for name, content in found.items() if content is None]:
        raise gone(path, missing)
    return {name: content for name, content in found.items() if content is not None}


# --- the store -----------------------------------------------------------------------------


_SCHEME = "memory://"
_DEFAULT = "main"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_BOUNDS = ("max_bytes", "max_checkpoints")

_rooms: dict[str, Room] = {}
_gate = threading.Lock()


class MemoryStore(Store[MemoryLease]):
    """All stores of one name in a process are one place. The bounds are those of the store that writes."""

    own = MemoryLease
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
    def contents(self) -> MemoryContents:
        return self._contents

    def probe(self) -> None:
        """Memory can be written; only a forked child is refused."""
        with self._room.locked():
            pass

    def takes(self, path: str) -> str | None:
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
            sink = Collected()
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

    def open(self, path: str, part: str, stage: str) -> BytesSource:
        found = self._trio(path).parts.get(part)
        if found is None or found[0] != stage:
            raise not_its(path, part)
        return BytesSource(found[1])

    def meta(self, path: str) -> bytes:
        return self._trio(path).meta

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
        self, limit: int, *, session: str | None = None, **facts: Unpack[Facts]
    ) -> Sequence[tuple[str, bytes]]:
        """The last committed of those whose metas say so; looks at them one by one."""
        return batches.first(self.list(session), limit, **facts)

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
        mine = super()._own(lease)
        if mine.room is not self._room:
            raise TypeError("a lease of this store is needed, not one of another room")
        return mine

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
            raise not_found(path)
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
