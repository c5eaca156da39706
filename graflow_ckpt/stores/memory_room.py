"""Rooms: what the memory stores of one process keep, and who owns which session there.

Promise: each step is taken under the room's lock as a whole; an epoch that was given out is never
given out again while the process lives; who has lost a session changes nothing.

A room belongs to the process that made it. A forked child has a copy that nobody would ever look
into, so everything is refused there, before the lock: its holder may not exist in the child.
Not here: paths and listings (memory.py).

Contents in memory: bytes that the checkpoints of a room have in common.

    room    name -> content     weakly: which are there
    trio    name -> content     what it holds; so does a save that is under way

Promise: a content is there as long as a checkpoint or a save refers to it, and no longer: Python counts.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from weakref import WeakValueDictionary

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, GraflowError, JournalFailed
from graflow_ckpt.core.protocols import Lease, Owner
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.claims import busy, lost, released
from graflow_ckpt.stores.names import contents_in, gone, stage_in

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


class MemoryLease:
    """A session that this process owns until it releases it, ends, or is fenced."""

    def __init__(self, room: Room, session: str, epoch: int, taken_from: Owner | None, claim: str) -> None:
        self.session = session
        self.epoch = epoch
        self.taken_from = taken_from
        self.claim = claim
        self.room = room
        self._released = False
        self._process = os.getpid()

    def check(self) -> None:
        self._of_this_process()
        with self.room.locked():
            self.hold()

    def hold(self) -> None:
        """Raise `Fenced` unless the session is still ours. For those who are alone with the room."""
        self._of_this_process()
        held = self.room.holdings.get(self.session, Holding())
        if (held.epoch, held.claim) != (self.epoch, self.claim):
            raise lost(self.session, self.epoch, held.epoch, held.owner)

    def release(self) -> None:
        """Let the session go, unless somebody else has it by now."""
        if self._released or os.getpid() != self._process:
            return
        try:
            with self.room.locked():
                self.hold()
                held = self.room.holdings[self.session]
                self.room.holdings[self.session] = replace(held, owner=None)
        except GraflowError as error:
            _logger.info("session %s let go without a word: %s", self.session, error)
        finally:
            self._released = True

    def _of_this_process(self) -> None:
        if self._released or os.getpid() != self._process:
            raise released(self.session, self.epoch)


class MemorySegment:
    """One open segment of a journal. It lasts as long as the process."""

    def __init__(self, lease: MemoryLease, after: int) -> None:
        self._lease = lease
        self._after = after
        self._open = True
        with lease.room.locked():
            lease.hold()
            of_session = lease.room.segments.setdefault(lease.session, {})
            self._frames = of_session.setdefault((lease.epoch, after), bytearray())
            if self._frames:
                raise self._failed("it has records already")

    def append(self, frame: bytes, /) -> None:
        lease = self._lease
        lease.check()  # also in a forked child, where the room refuses more than this segment
        with lease.room.locked():
            lease.hold()
            if not self._open:
                raise self._failed("it was closed")
            self._frames += frame

    def close(self) -> None:
        self._open = False

    def _failed(self, why: str) -> JournalFailed:
        return JournalFailed(
            f"Cannot append to segment {self._after} of the journal of session {self._lease.session!r}: "
            f"{why}.",
            hint="Two writers of one epoch cannot be; resume the session to open a new epoch.",
            session=self._lease.session,
        )


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

    def open(self, path: str, name: str, stage: str) -> MemorySource:
        trio = self._trio(path)
        found = trio.contents.get(name)
        if found is None or stage_in(trio.meta) != stage:
            raise CheckpointCorrupt(
                f"The checkpoint {path} holds no content {name}.",
                hint="It was written anew meanwhile, or by something else.",
                path=path,
                part=name,
            )
        return MemorySource(found.data)

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


class MemorySource:
    """A part that is read. What it reads stays what it was, whatever happens to the name."""

    __slots__ = ("_at", "_data", "size")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.size = len(data)

    def readinto(self, buffer: memoryview, /) -> int:
        piece = memoryview(self._data)[self._at : self._at + buffer.nbytes]
        buffer.cast("B")[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._data, self._at = b"", 0
