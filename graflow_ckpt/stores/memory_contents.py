"""Contents in memory: bytes that the checkpoints of a room have in common.

    room    name -> content     weakly: which are there
    trio    name -> content     what it holds; so does a save that is under way

Promise: a content is there as long as a checkpoint or a save refers to it, and no longer: Python counts.
Not here: what a content means, and how it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.memory_room import Content, Room, Trio
from graflow_ckpt.stores.names import contents_in, gone, stage_in


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
