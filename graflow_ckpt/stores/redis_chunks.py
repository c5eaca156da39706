"""One part of a checkpoint as chunks in Redis: a sink to write them, a source to read them.

    graflow:ck:{tag}:chunk:{nonce}:{part}:{n}        a string of at most CHUNK bytes

Promise: chunks are written in order, and each expires unless a commit makes it stay. The last one is kept
for the commit, so that a small checkpoint is one round trip. A chunk that is gone when it is read is
`CheckpointCorrupt`: a newer checkpoint may have taken its place.
"""

from __future__ import annotations

from collections.abc import Callable

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink

CHUNK = 4 << 20
LIFE = 3600  # seconds; a save that takes longer fails, and what a dead writer has left is gone by then


class ChunkSink:
    """Takes bytes, writes full chunks once there are more. `prefix`: what comes before the number of one.

    `first` is called before a chunk is written.
    """

    __slots__ = ("_first", "_link", "_prefix", "keys", "size", "tail", "written")

    def __init__(self, link: RedisLink, prefix: str, first: Callable[[], None]) -> None:
        self._link, self._prefix, self._first = link, prefix, first
        self.tail = bytearray()  # the last chunk, which is not written; nothing if there is none
        self.keys: list[str] = []
        self.written = 0
        self.size = 0

    @property
    def count(self) -> int:
        return self.written + bool(self.tail)

    @property
    def tail_key(self) -> str:
        return f"{self._prefix}{self.written}"

    def write(self, data: Buffer, /) -> int:
        if type(data) is bytes and len(self.tail) + len(data) <= CHUNK:  # as of most checkpoints
            self.tail += data
            self.size += len(data)
            return len(data)
        with memoryview(data) as given, given.cast("B") as view:
            at = 0
            while at < len(view):
                if len(self.tail) == CHUNK:
                    self._flush()
                with view[at : at + CHUNK - len(self.tail)] as taken:
                    self.tail += taken
                    at += len(taken)
            self.size += len(view)
            return len(view)

    def _flush(self) -> None:
        self._first()
        key = self.tail_key
        self.keys.append(key)  # before it is there: a write whose reply is lost is withdrawn, too
        with translated(self._link.address):
            self._link.client.set(key, bytes(self.tail), ex=LIFE)
        self.written += 1
        self.tail = bytearray()


class ChunkSource:
    """Reads chunks one after the other. `first`: the first one, if it is there already."""

    __slots__ = ("_at", "_chunk", "_link", "_next", "_prefix", "path", "size")

    def __init__(self, link: RedisLink, prefix: str, size: int, path: str, first: bytes = b"") -> None:
        self._link, self._prefix = link, prefix
        self._chunk = first
        self._at = 0  # of what has been handed out of the chunk
        self._next = 1 if first else 0
        self.size = size
        self.path = path

    def readinto(self, buffer: memoryview, /) -> int:
        if self._at == len(self._chunk):
            if self._next * CHUNK >= self.size:
                return 0
            self._chunk, self._at = self._read(self._next), 0
            self._next += 1
        piece = memoryview(self._chunk)[self._at : self._at + buffer.nbytes]
        buffer.cast("B")[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._chunk, self._at, self._next = b"", 0, -(-self.size // CHUNK)

    def _read(self, number: int) -> bytes:
        key = f"{self._prefix}{number}"
        with translated(self._link.address):
            found = self._link.client.get(key)
        if not isinstance(found, bytes):
            raise CheckpointCorrupt(
                f"The checkpoint {self.path} lacks chunk {number} of a part.",
                hint="It was written anew meanwhile, or the server has dropped keys (maxmemory-policy).",
                path=self.path,
            )
        return found
