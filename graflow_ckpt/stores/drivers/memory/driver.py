"""A driver in memory: a dict under a lock."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from graflow_ckpt.core.errors import CheckpointError, TooLarge
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag


class Pending(NamedTuple):
    """A batch that was found good, and its outcome: doing it twice is doing it once."""

    things: Mapping[str, Stored]
    rows: Mapping[str, tuple[int, Row, int]]
    drops: Sequence[str]
    number: int
    size: int


@dataclass(slots=True)
class Room:
    """The bytes that the drivers of one name keep. They belong to the process that made the room."""

    name: str
    things: dict[str, Stored] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # in order
    rows: dict[str, tuple[int, Row, int]] = field(default_factory=dict)  # the last put at the end
    number: int = 0
    size: int = 0  # bytes of checkpoints
    pending: Pending | None = None
    _process: int = field(default_factory=os.getpid)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def where(self) -> str:
        return f"memory://{self.name}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the room. A forked child is refused before the lock: its holder may not exist there."""
        if os.getpid() != self._process:
            raise CheckpointError(
                f"{self.where} is in process {self._process}, and this is a forked child of it.",
                hint="Give a folder, or another store that processes can share.",
                store=self.where,
                pid=self._process,
            )
        with self._lock:
            self.finish()
            yield

    def finish(self) -> None:
        """Do what is pending. A Ctrl-C comes anywhere: who locks the room next does it again."""
        if (change := self.pending) is None:
            return
        self.things.update(change.things)
        self.rows.update(change.rows)
        for key in change.drops:
            self.things.pop(key, None)
            self.rows.pop(key, None)
        for key in (*change.things, *change.drops):
            at = bisect_left(self.keys, key)
            listed = self.keys[at : at + 1] == [key]
            if listed != (key in self.things):
                self.keys[at : at + listed] = [] if listed else [key]
        self.number, self.size, self.pending = change.number, change.size, None


class MemoryDriver:
    """One room, and how much a store may keep in it."""

    atomic = True
    inline = 0
    chunk = 1 << 20

    def __init__(self, room: Room, max_bytes: int | None = None, max_checkpoints: int | None = None) -> None:
        self.room = room
        self._bytes, self._checkpoints = max_bytes, max_checkpoints

    def now(self) -> float:
        return time.time()

    def get(self, *keys: str) -> Sequence[Stored | None]:
        with self.room.locked():
            return [self.room.things.get(key) for key in keys]

    def read(self, key: str, start: int, length: int) -> Buffer | None:
        (found,) = self.get(key)
        if found is None or len(found.data) < start + length:
            return None
        return memoryview(found.data)[start : start + length]

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        needs: Sequence[str] = (),
        soft: bool = False,
    ) -> BatchDone | None:
        room, tag, at = self.room, os.urandom(12).hex(), time.time()
        new = {put.key: Stored(bytes(put.data), tag, at) for put in puts}
        with room.locked():
            things = room.things
            for key, wanted in (guards or {}).items():
                found = things.get(key)
                if (found and found.tag) != wanted:
                    return None
            if any(put.fresh and put.key in things for put in puts) or any(
                key not in things for key in needs
            ):
                return None
            size = self._size_after(new, drops)
            rows = ((put.key, put.row, put.shown) for put in puts if put.row is not None)
            numbered = {key: (n, row, shown) for n, (key, row, shown) in enumerate(rows, room.number + 1)}
            self._check_count(numbered, drops)
            room.pending = Pending(new, numbered, drops, room.number + len(numbered), size)  # committed
            room.finish()
        return BatchDone(tag, synced=False)

    def keys(self, prefix: str) -> Iterator[Entry]:
        with self.room.locked():
            keys, things = self.room.keys, self.room.things
            found = keys[bisect_left(keys, prefix) : bisect_left(keys, f"{prefix}\U0010ffff")]
            return iter([Entry(key, len(things[key].data), things[key].at) for key in found])

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        hits: list[Hit] = []
        with self.room.locked():
            for key, (number, row, shown) in reversed(self.room.rows.items()):
                fits = all(want in ("", has) for want, has in zip(wanted, row, strict=True))
                if fits and (below is None or number < below):
                    hits.append(Hit(number, key, self.room.things[key].data[:shown]))
                    if len(hits) == limit:
                        break
        return hits

    def _check_count(self, new: Mapping[str, object], drops: Sequence[str]) -> None:
        count = len(self.room.rows) + len(new) - sum(key in self.room.rows for key in drops)
        if self._checkpoints is not None and count > max(self._checkpoints, len(self.room.rows)):
            raise TooLarge(
                f"No room in {self.room.where}: it is to keep {self._checkpoints} checkpoints at most.",
                hint="Delete some (graflow-ckpt checkpoints prune), or raise max_checkpoints.",
                size=count,
                limit=self._checkpoints,
            )

    def _size_after(self, new: Mapping[str, Stored], drops: Sequence[str]) -> int:
        """Return the size of all checkpoints after a batch, if it may be so much."""
        more = sum(_size(key, found) for key, found in new.items())
        size = self.room.size + more - sum(_size(key, self.room.things.get(key)) for key in {*new, *drops})
        if self._bytes is not None and more and size > self._bytes:
            raise TooLarge(
                f"No room in {self.room.where}: it would hold {size} bytes, of {self._bytes} at most.",
                hint="Delete some (graflow-ckpt checkpoints prune), or raise max_bytes.",
                size=size,
                limit=self._bytes,
            )
        return size


def _size(key: str, found: Stored | None) -> int:
    """Return the size that counts."""
    return len(found.data) if found is not None and key.startswith("data/") else 0
