"""One part of a checkpoint as rows of bytes in Postgres: a sink to write them, a source to read them.

    graflow_ckpt.chunks        put, part, number, data (CHUNK bytes)
    graflow_ckpt.checkpoints   …, pkl, state: of each part the last chunk

Promise: what is larger than a chunk is written as it comes, in order; the last chunk is kept for the
commit, so that a small checkpoint is one round trip and one row. A chunk that is gone when it is read is
`CheckpointCorrupt`: a newer checkpoint may have taken its place.
Not here: what makes chunks visible (postgres_trio.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.postgres_link import Connection, Link

CHUNK = 4 << 20
LIFE = 3600  # seconds; what a dead writer without a session has left goes when it is older than this


class ChunkSink:
    """Takes bytes, hands out full chunks to `stage`, with their number."""

    __slots__ = ("_pending", "_stage", "size", "staged")

    def __init__(self, stage: Callable[[int, bytes], None]) -> None:
        self._stage = stage
        self._pending = bytearray()
        self.staged = 0
        self.size = 0

    @property
    def tail(self) -> bytearray | None:
        """The last chunk, which is not staged; None of nothing."""
        return self._pending or None

    @property
    def count(self) -> int:
        return self.staged + bool(self._pending)

    def write(self, data: Buffer, /) -> int:
        if type(data) is bytes and len(self._pending) + len(data) <= CHUNK:  # as of most checkpoints
            self._pending += data
            self.size += len(data)
            return len(data)
        with memoryview(data) as given, given.cast("B") as view:
            at = 0
            while at < len(view):
                if len(self._pending) == CHUNK:
                    self._stage(self.staged, bytes(self._pending))
                    self.staged += 1
                    self._pending = bytearray()
                with view[at : at + CHUNK - len(self._pending)] as taken:
                    self._pending += taken
                    at += len(taken)
            self.size += len(view)
            return len(view)


@dataclass(frozen=True, slots=True)
class Found:
    """A part that a row points at. `last`: what asks for its last chunk, should there be several."""

    put: str
    part: str
    size: int
    count: int
    first: bytes
    last: tuple[str, list[object]]


class ChunkSource:
    """Reads chunks one after the other. The first is already there."""

    __slots__ = ("_at", "_chunk", "_found", "_link", "_next", "path", "size")

    def __init__(self, link: Link, found: Found, path: str) -> None:
        self._link = link
        self._found = found
        self._chunk = found.first
        self._at = 0  # of what has been handed out of the chunk
        self._next = 1
        self.size = found.size
        self.path = path

    def readinto(self, buffer: memoryview, /) -> int:
        if self._at == len(self._chunk):
            if self._next >= self._found.count:
                return 0
            self._chunk, self._at = self._read(self._next), 0
            self._next += 1
        piece = memoryview(self._chunk)[self._at : self._at + buffer.nbytes]
        buffer.cast("B")[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._chunk, self._at, self._next = b"", 0, self._found.count

    def _read(self, number: int) -> bytes:
        found = self._found
        asked = "select data from graflow_ckpt.chunks where put = %s and part = %s and number = %s"
        args: list[object] = [found.put, found.part, number]
        if number == found.count - 1:
            asked, args = found.last

        def ask(connection: Connection) -> tuple[bytes | None] | None:
            return connection.execute(asked.encode(), args, binary=True).fetchone()

        row = self._link.sure(ask)
        if row is None or row[0] is None:
            raise CheckpointCorrupt(
                f"The checkpoint {self.path} lacks chunk {number} of a part.",
                hint="It was written anew meanwhile, or somebody has deleted rows.",
                path=self.path,
            )
        return row[0]
