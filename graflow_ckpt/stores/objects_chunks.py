"""The parts of one checkpoint as objects: one stream of bytes in pieces, and sources that read from it.

    data/{tag}/{epoch}-{nonce}/{n}      CHUNK bytes each, the last one fewer: pkl, state.json, meta.json

What is small may be taken back out of the stream as long as it was not sent: it goes into the record.
Pieces and not multipart uploads: what a dead writer has left of those is in no listing. A piece that is
gone when it is read is `CheckpointCorrupt`: a newer checkpoint may have taken its place.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from graflow_ckpt.core.errors import GraflowError, ServerGone
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.names import lacks
from graflow_ckpt.stores.objects_bucket import Bucket
from graflow_ckpt.stores.pieces import ChunkSink

CHUNK = 8 << 20
_AT_ONCE = 3  # pieces that are on their way while another one fills, or is read


def piece_key(data: str, number: int) -> str:
    return f"{data}/{number:06d}"


def piece_keys(data: str, size: int) -> list[str]:
    return [piece_key(data, number) for number in range(-(-size // CHUNK))]


class PieceSink(ChunkSink):
    """Takes bytes, writes pieces. `finish` when all are written, `abandon` instead of it."""

    def __init__(self, bucket: Bucket, data: str) -> None:
        super().__init__(CHUNK, self._send)
        self._bucket, self._data = bucket, data
        self._pool: ThreadPoolExecutor | None = None
        self._going: deque[Future[None]] = deque()
        self._failure: BaseException | None = None  # of a piece, which may still be on its way

    def take_back(self, size: int) -> bytes | None:
        """The last bytes, as if they had not been written; None if some were sent."""
        if size > len(self.tail):
            return None
        start = len(self.tail) - size
        taken = bytes(self.tail[start:])
        del self.tail[start:]
        self.size -= size
        return taken

    def finish(self) -> None:
        """All of it is in the bucket when this returns."""
        if self.tail:
            self.staged += 1
            self._put(piece_key(self._data, self.staged - 1), self.tail)
            self.tail = bytearray()
        while self._going:
            self._going.popleft().result()
        self._stop()

    def abandon(self) -> bool:
        """Take away what there is; whether all of it has gone for good. The rest the next owner removes."""
        self._stop()
        if isinstance(self._failure, ServerGone):
            return False
        try:
            self._bucket.delete([piece_key(self._data, number) for number in range(self.staged)])
        except GraflowError:  # what failed is raised already
            return False
        return self._failure is None

    def _send(self, number: int, piece: bytearray) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pieces")
        if len(self._going) == _AT_ONCE:
            self._going.popleft().result()
        self._going.append(self._pool.submit(self._put, piece_key(self._data, number), piece))

    def _put(self, key: str, piece: bytearray) -> None:
        try:
            self._bucket.put(key, piece)
        except BaseException as error:
            self._failure = error
            raise

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class PieceSource:
    """Reads one part. `start`: where it begins in the stream; `inline`: the part, if it is known.

    While one piece is read the next ones are fetched, if there are any.
    """

    __slots__ = (
        "_asked", "_at", "_bucket", "_coming", "_data", "_piece", "_pool", "_read", "_start", "path", "size"
    )  # fmt: skip

    def __init__(
        self, bucket: Bucket, data: str, start: int, size: int, path: str, inline: bytes | None = None
    ) -> None:
        self._bucket, self._data, self._start = bucket, data, start
        self._piece: Buffer = inline or b""
        self._at = 0  # of what has been handed out of the piece
        self._read = 0 if inline is None else size  # bytes of the part that were fetched
        self._asked = self._read  # and those that are coming
        self._coming: deque[Future[Buffer]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self.size = size
        self.path = path

    def begin(self) -> None:
        """Fetch what comes next, and find out whether it is still there."""
        if self._at < len(self._piece):
            return
        try:
            if self._coming:
                self._piece, self._at = self._coming.popleft().result(), 0
            elif self._asked < self.size:
                self._piece, self._at = self._fetch(*self._next()), 0
            else:
                return
        except BaseException:
            self._coming.clear()
            self._asked = self._read  # whoever tries again begins with what has failed
            raise
        self._read += len(self._piece)
        while self._asked < self.size and len(self._coming) < _AT_ONCE:
            self._pool = self._pool or ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pieces")
            self._coming.append(self._pool.submit(self._fetch, *self._next()))

    def readinto(self, buffer: memoryview, /) -> int:
        self.begin()
        taken = memoryview(self._piece)[self._at : self._at + buffer.nbytes]
        buffer.cast("B")[: len(taken)] = taken
        self._at += len(taken)
        return len(taken)

    def all(self) -> bytes:
        """Room is made for what is there, and not for what is said to be."""
        found = bytearray()
        while True:
            self.begin()
            if self._at == len(self._piece):
                return bytes(found)
            found += memoryview(self._piece)[self._at :]
            self._at = len(self._piece)

    def close(self) -> None:
        self._piece, self._at, self._read, self._asked = b"", 0, self.size, self.size
        self._coming.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _next(self) -> tuple[int, int, int]:
        """Number, offset and length of the piece that has not been asked for."""
        number, offset = divmod(self._start + self._asked, CHUNK)
        length = min(CHUNK - offset, self.size - self._asked)
        self._asked += length
        return number, offset, length

    def _fetch(self, number: int, offset: int, length: int) -> Buffer:
        found = self._bucket.get_range(piece_key(self._data, number), offset, length)
        if found is None or len(found) != length:
            raise lacks(
                self.path,
                f"bytes of a part (piece {number} of its data)",
                "something else has removed objects",
            )
        return found
