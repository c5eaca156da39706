"""Sinks and sources that have one piece of a part in memory at a time, or all of it.

Promise: the bytes that go in come out, however they were cut. What is larger than a chunk is passed on as it
comes, in order; the last chunk is kept for the commit, so that a small checkpoint is one round trip.
Not here: where chunks are, and what a piece has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Buffer, Source


def read_up_to(source: Source, size: int) -> bytearray:
    """Return so many bytes; fewer, if there are no more."""
    found = bytearray(size)
    done = 0
    with memoryview(found) as view:
        while done < size:
            count = source.readinto(view[done:])
            if not count:
                break
            done += count
    return found[:done] if done < size else found


class BytesSource:
    """A part that is here as a whole. What it reads stays what it was, whatever happens to the name."""

    __slots__ = ("_at", "_data", "size")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0
        self.size = len(data)

    def readinto(self, buffer: memoryview, /) -> int:
        piece = self._data[self._at : self._at + buffer.nbytes]
        buffer.cast("B")[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._data, self._at = memoryview(b""), 0


class ChunkSink:
    """Takes bytes, passes full chunks of `most` bytes to `stage`, with their number."""

    __slots__ = ("_most", "_stage", "size", "staged", "tail")

    def __init__(self, most: int, stage: Callable[[int, bytearray], None]) -> None:
        self._most, self._stage = most, stage
        self.tail = bytearray()  # the last chunk, which is not staged; nothing if there is none
        self.staged = 0
        self.size = 0

    def write(self, data: Buffer, /) -> int:
        if type(data) is bytes and len(self.tail) + len(data) <= self._most:  # as of most checkpoints
            self.tail += data
            self.size += len(data)
            return len(data)
        with memoryview(data) as given, given.cast("B") as view:
            at = 0
            while at < len(view):
                if len(self.tail) == self._most:
                    self._stage(self.staged, self.tail)  # as it is, without a copy
                    self.staged += 1
                    self.tail = bytearray()
                with view[at : at + self._most - len(self.tail)] as taken:
                    self.tail += taken
                    at += len(taken)
            self.size += len(view)
            return len(view)


class OpenedSource:
    """A part in pieces, each of which is checked before anything of it is returned."""

    size: int
    cannot: ClassVar[str]
    """What is said of a part that is damaged."""

    def __init__(self, source: Source, part: str, path: str) -> None:
        self._source, self._part, self._path = source, part, path
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        view, done = buffer.cast("B"), 0
        while done < len(view):
            if not self._rest:
                self._rest = memoryview(self._piece())
                if not self._rest:
                    break
            count = min(len(view) - done, len(self._rest))
            view[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        return done

    def close(self) -> None:
        self._source.close()

    def _piece(self) -> bytes | bytearray:
        """Return the next one; nothing at the end."""
        raise NotImplementedError

    def _exactly(self, size: int) -> bytearray:
        found = read_up_to(self._source, size)
        if len(found) < size:
            raise self._corrupt("it ends too early")
        return found

    def _corrupt(self, what: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"The {self._part} of checkpoint {self._path} {self.cannot}: {what}.",
            hint="Use another checkpoint of the session.",
            path=self._path,
            part=self._part,
        )
