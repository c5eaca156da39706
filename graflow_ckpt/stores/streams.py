"""The streams of a keyed store: bytes in chunks, each under a key of its own that never changes.

Promise: what goes in comes out, in order. What is too much to wait for the commit goes ahead; what is left
goes with it, so that a small checkpoint is one round trip. Not here: which of them a checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from graflow_ckpt.core.errors import GraflowError, ServerGone
from graflow_ckpt.stores.driver import Driver, Put
from graflow_ckpt.stores.lease import ServerWait
from graflow_ckpt.stores.names import lacks
from graflow_ckpt.stores.pieces import ChunkSink

_AHEAD = 4 << 20  # bytes that wait for the commit, and go with it; or three chunks


class Stream(ChunkSink):
    """Takes bytes; what is too much to wait for the commit is sent ahead."""

    __slots__ = ("_driver", "_keys", "_waiting", "sent")

    def __init__(self, driver: Driver, scope: str, stream: str) -> None:
        super().__init__(driver.chunk, self._full)
        self._driver, self._keys = driver, f"data/{scope}/{stream}"
        self._waiting: list[Put] = []
        self.sent: list[str] = []

    def rest(self) -> list[Put]:
        """Return what goes with the commit."""
        if self.tail:
            self._full(self.staged, self.tail)
            self.staged += 1
            self.tail = bytearray()
        self._stage = _over
        return self._waiting

    def send(self) -> None:
        """Send all of it ahead."""
        self.rest()
        self._ahead()

    def withdraw(self) -> None:
        """Delete what was sent. What failed is raised already."""
        self._stage = _over
        with suppress(GraflowError, OSError):
            self._driver.batch([], [*self.sent, *(put.key for put in self._waiting)])

    def _full(self, number: int, piece: bytearray) -> None:
        self._waiting.append(Put(f"{self._keys}/{number:06}", piece))
        if len(self._waiting) * self._driver.chunk >= max(_AHEAD, 3 * self._driver.chunk):
            self._ahead()

    def _ahead(self) -> None:
        if self._waiting:
            self.sent += [put.key for put in self._waiting]
            _sent(self._driver, self._waiting)
            self._waiting = []


def _over(number: int, piece: bytearray) -> None:
    """Refuse, in the place of a method of the stream: it would keep itself, its bytes and the store alive."""
    raise AssertionError("a stream takes nothing more when its rest was taken")


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
