"""Digests of parts: taken while a part is written, checked before its bytes are handed out.

A part is digested with blake3 in chunks of 4 MiB: in a second thread, while the caller writes or
reads the next chunk, or by the caller if there is one chunk only. What is written goes through a
buffer, since a value may change while it is saved, and the digest has to be that of what goes out. Who
reads gets the bytes in its own buffer, and `readinto` returns when the digests of all of them have been
compared. One pass, so that what was checked is what is used.

Not here: who vouches for the digests (seal.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Final, Self

from blake3 import blake3

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Buffer, Sink, Source

CHUNK: Final = 4 << 20
_AHEAD: Final = 4  # chunks on their way to the thread: if it is slow, its caller waits

Pieces = list[memoryview]


@dataclass(frozen=True, slots=True)
class Digest:
    """How long a part is, and the digest of each of its chunks in hexadecimal."""

    size: int
    chunks: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """As it stands in a meta."""
        return {"size": self.size, "chunks": list(self.chunks)}


class DigestingSink:
    """Passes on what is written, and digests it. As a context it ends its thread in any case.

    All of it goes through a buffer of one chunk: what is digested and what goes out are the same bytes, also
    where another thread changes the value meanwhile. A second buffer is filled while the thread digests.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._size = self._filled = 0
        self._buffer = bytearray()  # of a part of one chunk no more than it needs
        self._spare: bytearray | None = None
        self._chunks: list[str] = []
        self._hasher: Hasher | None = None

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        start = 0
        while start < view.nbytes:
            if self._filled == CHUNK:
                self._hand_over()
            piece = view[start : start + CHUNK - self._filled]
            if self._spare is None:
                self._buffer += piece
            else:
                self._buffer[self._filled : self._filled + piece.nbytes] = piece
            self._filled += piece.nbytes
            start += piece.nbytes
        self._size += view.nbytes
        return view.nbytes

    def finish(self) -> Digest:
        """Pass on the rest; the digest of all that was written."""
        last = []
        if self._filled:
            with memoryview(self._buffer)[: self._filled] as rest:
                last = [digest_of([rest])]
                self._sink.write(rest)
        if self._hasher:
            self._chunks += self._hasher.results(leave=0)
        self.close()
        return Digest(self._size, (*self._chunks, *last))

    def close(self) -> None:
        if self._hasher:
            self._hasher.close()
            self._hasher = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # A full chunk is handed over when something follows it: a part of one chunk starts no thread.
    def _hand_over(self) -> None:
        self._hasher = self._hasher or Hasher()
        self._hasher.take([memoryview(self._buffer)])
        self._sink.write(memoryview(self._buffer))
        self._chunks += self._hasher.results(leave=1)  # the spare one has been digested
        self._buffer, self._spare = self._spare or bytearray(CHUNK), self._buffer
        self._filled = 0


class VerifyingSource:
    """A source that hands out verified bytes only; CheckpointCorrupt at the first that are not."""

    def __init__(self, source: Source, digest: Digest, name: str = "part") -> None:
        self._source, self._digest, self._name = source, digest, name
        self._next = 0  # the first chunk that has not been read
        self._chunk = bytearray()
        self._rest = memoryview(b"")  # verified and not handed out yet
        self._hasher: Hasher | None = None
        self._sound = True
        if source.size != digest.size or len(digest.chunks) != -(-digest.size // CHUNK):
            raise self._corrupt(f"it has {source.size} bytes, and {digest.size} were written")

    @property
    def size(self) -> int:
        return self._digest.size

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._sound:
            raise self._corrupt("an earlier read has failed")
        self._sound = False
        view = buffer.cast("B")
        done = self._hand_out(view)
        done += self._read_in_place(view[done:])
        while done < view.nbytes and self._next < len(self._digest.chunks):
            self._read_aside()
            done += self._hand_out(view[done:])
        self._sound = True
        return done

    def close(self) -> None:
        if self._hasher:
            self._hasher.close()
            self._hasher = None
        self._source.close()

    def _hand_out(self, view: memoryview) -> int:
        count = min(view.nbytes, self._rest.nbytes)
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    # Chunks that fit into the caller's buffer go there at once, each digested while the next is read.
    def _read_in_place(self, view: memoryview) -> int:
        chunks = self._fitting(view.nbytes)
        if chunks > 1 and self._hasher is None:
            self._hasher = Hasher()
        checked, done = self._next, 0
        for _ in range(chunks):
            piece = view[done : done + self._length(self._next)]
            self._read(piece)
            done += piece.nbytes
            if self._hasher is None:
                checked = self._compare(checked, [digest_of([piece])])
            else:
                self._hasher.take([piece])
                checked = self._compare(checked, self._hasher.results(leave=_AHEAD))
        if self._hasher is not None:
            self._compare(checked, self._hasher.results(leave=0))
        return done

    def _fitting(self, room: int) -> int:
        if self.size - self._next * CHUNK <= room:
            return len(self._digest.chunks) - self._next
        return room // CHUNK

    def _read_aside(self) -> None:
        self._chunk = self._chunk or bytearray(min(CHUNK, self.size))
        piece = memoryview(self._chunk)[: self._length(self._next)]
        self._read(piece)
        self._compare(self._next - 1, [digest_of([piece])])
        self._rest = piece

    def _length(self, chunk: int) -> int:
        return min(CHUNK, self.size - chunk * CHUNK)

    def _read(self, piece: memoryview) -> None:
        if fill(self._source, piece) < piece.nbytes:
            raise self._corrupt("it ends too early")
        self._next += 1
        if self._next == len(self._digest.chunks) and self._source.readinto(memoryview(bytearray(1))):
            raise self._corrupt("it goes on where it ended")

    def _compare(self, chunk: int, results: list[str]) -> int:
        for found in results:
            if found != self._digest.chunks[chunk]:
                start = chunk * CHUNK
                end = start + self._length(chunk)
                raise self._corrupt(f"bytes {start} to {end} have another digest", chunk=chunk)
            chunk += 1
        return chunk

    def _corrupt(self, what: str, chunk: int | None = None) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"The {self._name} is not what was written: {what}.", part=self._name, chunk=chunk
        )


class Hasher:
    """The second thread. Chunks go in, their digests come out in the same order."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Pieces | None] = SimpleQueue()
        self._done: SimpleQueue[str] = SimpleQueue()
        self._out = 0
        self._thread = Thread(target=self._run, name="graflow-ckpt-digest", daemon=True)
        self._thread.start()

    def take(self, pieces: Pieces) -> None:
        self._todo.put(pieces)
        self._out += 1

    def results(self, leave: int) -> list[str]:
        """Waits until at most `leave` digests are missing; gives those that have come."""
        found: list[str] = []
        while self._out > leave:
            found.append(self._done.get())
            self._out -= 1
        if "" in found:
            raise RuntimeError("The digest thread has failed; its own message says why.")
        return found

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (pieces := self._todo.get()) is not None:
            found = ""
            try:
                found = digest_of(pieces)
            finally:
                self._done.put(found)  # whatever happens: somebody waits for it


def digest_of(pieces: Pieces) -> str:
    """The digest of one chunk."""
    digest = blake3()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def fill(source: Source, buffer: memoryview) -> int:
    """Read until the buffer is full, or the source ends; how many bytes there were."""
    got = 0
    while got < buffer.nbytes and (count := source.readinto(buffer[got:])):
        got += count
    return got
