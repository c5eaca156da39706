"""The streams of a keyed store: bytes in chunks, each under a key of its own that never changes.

Promise: what goes in comes out, in order. What is too much to wait for the commit goes ahead; what is left
goes with it, so that a small checkpoint is one round trip. Not here: which of them a checkpoint holds.

Also here: what any store's parts are read through, when they are in memory or to be read as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from graflow_ckpt.core.errors import GraflowError, ServerGone
from graflow_ckpt.core.protocols import Buffer, Source
from graflow_ckpt.stores.driver import Driver, Put
from graflow_ckpt.stores.lease import ServerWait
from graflow_ckpt.stores.names import lacks

_AHEAD = 4 << 20  # bytes that wait for the commit, and go with it; or three chunks


class Stream:
    """Takes bytes; what is too much to wait for the commit is sent ahead. `size`: bytes that it has taken."""

    __slots__ = ("_driver", "_keys", "_most", "_number", "_tail", "_waiting", "sent", "size")

    def __init__(self, driver: Driver, scope: str, stream: str) -> None:
        self._driver, self._keys, self._most = driver, f"data/{scope}/{stream}", driver.chunk
        self._tail = bytearray()  # the chunk that is not full, or may be the last
        self._number = self.size = 0
        self._waiting: list[Put] = []
        self.sent: list[str] = []

    def write(self, data: Buffer, /) -> int:
        if type(data) is bytes and len(self._tail) + len(data) <= self._most:  # as of most checkpoints
            self._tail += data
            self.size += len(data)
            return len(data)
        with memoryview(data) as given, given.cast("B") as view:
            at = 0
            while at < len(view):
                if len(self._tail) == self._most:
                    self._full()
                with view[at : at + self._most - len(self._tail)] as taken:
                    self._tail += taken
                    at += len(taken)
            self.size += len(view)
            return len(view)

    def rest(self) -> list[Put]:
        """Return what goes with the commit."""
        if self._tail:
            self._full()
        return self._waiting

    def send(self) -> None:
        """Send all of it ahead."""
        self.rest()
        self._ahead()

    def withdraw(self) -> None:
        """Delete what was sent. What failed is raised already."""
        with suppress(GraflowError, OSError):
            self._driver.batch([], [*self.sent, *(put.key for put in self._waiting)])

    def _full(self) -> None:
        self._waiting.append(Put(f"{self._keys}/{self._number:06}", self._tail))  # as it is, without a copy
        self._number, self._tail = self._number + 1, bytearray()
        if len(self._waiting) * self._most >= max(_AHEAD, 3 * self._most):
            self._ahead()

    def _ahead(self) -> None:
        if self._waiting:
            self.sent += [put.key for put in self._waiting]
            _sent(self._driver, self._waiting)
            self._waiting = []


def _sent(driver: Driver, puts: Sequence[Put]) -> None:
    """Send them; once more if the server was lost: no other save writes under that mark."""
    patience = ServerWait()
    while True:
        try:
            driver.batch(puts, soft=True)
            return
        except ServerGone:
            if patience.over():
                raise
            puts = [put._replace(fresh=False) for put in puts]


class RangeReader:
    """Reads `size` bytes from `start` of a stream."""

    __slots__ = ("_at", "_driver", "_end", "_keys", "_rest", "path", "size")

    def __init__(self, driver: Driver, keys: Sequence[str], start: int, size: int, path: str) -> None:
        self._driver, self._keys, self._at, self._end = driver, keys, start, start + size
        self._rest: memoryview = memoryview(b"")
        self.size, self.path = size, path

    def is_there(self) -> bool:
        """Fetch what comes next, and find out whether it is still there."""
        if self._rest or self._at == self._end:
            return True
        chunk = self._driver.chunk
        number, offset = divmod(self._at, chunk)
        length = min(chunk - offset, self._end - self._at)
        found = self._driver.read(self._keys[number], offset, length)
        if found is None:
            return False
        self._rest = memoryview(found)
        self._at += length
        return True

    def readinto(self, buffer: memoryview, /) -> int:
        if not self.is_there():
            raise lacks(self.path, "bytes of a part", "something else has removed them")
        taken = self._rest[: buffer.nbytes]
        buffer.cast("B")[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)

    def close(self) -> None:
        self._rest, self._at = memoryview(b""), self._end


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
