"""Digests of parts: taken while a part is written, checked before its bytes are returned.

A part is digested with blake3 in chunks of 4 MiB: in a second thread, while the caller writes or
reads another chunk, or by the caller if there is one chunk only. What is written goes through a
buffer, since a value may change while it is saved, and the digest has to be that of what goes out. A
reader gets the bytes in its own buffer, and `readinto` returns when the digests of all of them have been
compared. One pass, so that what was checked is what is used.

Not here: the proof of the digests (seals.py).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from mmap import mmap
from queue import SimpleQueue
from threading import Thread
from typing import Final, Self, TypeVar

from blake3 import blake3

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Buffer, Sink, Source

CHUNK: Final = 4 << 20
_AHEAD: Final = 4  # chunks on their way to the thread: if it is slow, its caller waits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Digest:
    """The size of a part, and the digest of each of its chunks in hexadecimal. `plain`: its size
    before it was encoded; None, if it is not."""

    size: int
    chunks: tuple[str, ...]
    plain: int | None = None

    def document(self) -> dict[str, object]:
        """Return the digest as it is in a meta."""
        found: dict[str, object] = {"size": self.size, "chunks": list(self.chunks)}
        return found if self.plain is None else {**found, "plain": self.plain}


class DigestingSink:
    """Passes on what is written, and digests it. As a context it ends its thread in any case.

    All of it goes through buffers of one chunk: what is digested and what goes out are the same bytes, also
    where another thread changes the value meanwhile. While one goes out, the thread fills the other from the
    value, and digests it.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._size = self._filled = 0
        self._small = bytearray()  # a part of one chunk takes no more than it needs
        self._buffer = self._spare = memoryview(b"")
        self._chunks: list[str] = []
        self._hasher: Hasher | None = None

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        rest = view[self._pass_on(view) :] if self._filled + view.nbytes > CHUNK else view
        if self._hasher is None:
            self._small += rest
        else:
            self._buffer[self._filled : self._filled + rest.nbytes] = rest
        self._filled += rest.nbytes
        self._size += view.nbytes
        return view.nbytes

    def finish(self) -> Digest:
        """Pass on the rest; return the digest of all that was written."""
        last = []
        if self._filled:
            rest = self._buffer[: self._filled] if self._hasher else memoryview(self._small)
            last = [digest_of(rest)]
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

    # The chunks that something follows: a part of one chunk starts no thread. How much of the view that is.
    def _pass_on(self, view: memoryview) -> int:
        hasher = self._hasher
        if hasher is None:
            hasher = self._hasher = Hasher()
            # pages: what is aligned is copied in half the time
            self._buffer, self._spare = memoryview(mmap(-1, CHUNK)), memoryview(mmap(-1, CHUNK))
            self._buffer[: self._filled] = self._small
        missing = CHUNK - self._filled
        end = missing + (view.nbytes - missing - 1) // CHUNK * CHUNK
        hasher.fill(self._buffer, view[:missing])
        for start in range(missing, end + 1, CHUNK):
            chunk = hasher.filled()
            if start < end:
                hasher.fill(self._spare, view[start : start + CHUNK])  # holds the interpreter's lock
            hasher.take(chunk)
            self._sink.write(chunk)
            self._buffer, self._spare = self._spare, self._buffer
        self._chunks += hasher.results(leave=1)  # what is filled next has been digested
        self._filled = 0
        return end


class VerifyingSource:
    """A source that returns verified bytes only; CheckpointCorrupt at the first that are not."""

    def __init__(self, source: Source, digest: Digest, name: str = "part") -> None:
        self._source, self._digest, self._name = source, digest, name
        self._next = 0  # the first chunk that has not been read
        self._chunk = bytearray()
        self._rest = memoryview(b"")  # verified and not returned yet
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
                checked = self._compare(checked, [digest_of(piece)])
            else:
                self._hasher.take(piece)
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
        self._compare(self._next - 1, [digest_of(piece)])
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
        self._todo: SimpleQueue[tuple[memoryview, memoryview | None] | None] = SimpleQueue()
        self._filled: SimpleQueue[memoryview | Exception] = SimpleQueue()
        self._done: SimpleQueue[str | Exception] = SimpleQueue()
        self._out = 0
        self._thread = Thread(target=self._run, name="graflow-ckpt-digest", daemon=True)
        self._thread.start()

    def take(self, chunk: Buffer) -> None:
        """Digest it."""
        self._todo.put((memoryview(chunk), None))
        self._out += 1

    def fill(self, chunk: memoryview, piece: memoryview) -> None:
        """Copy the piece to the chunk's end."""
        self._todo.put((chunk, piece))

    def filled(self) -> memoryview:
        """Return the next chunk that was to be filled, when it is."""
        return _sound(self._filled.get())

    def results(self, leave: int) -> list[str]:
        """Wait until at most `leave` digests are missing; return those that have come."""
        found: list[str] = []
        while self._out > leave:
            self._out -= 1
            found.append(_sound(self._done.get()))
        return found

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            chunk, piece = todo
            try:
                if piece is None:
                    self._done.put(digest_of(chunk))
                else:
                    chunk[len(chunk) - len(piece) :] = piece
                    self._filled.put(chunk)
            except Exception as error:  # noqa: BLE001  # whatever happens: a caller waits for it
                self._filled.put(error)
                self._done.put(error)


def _sound(found: T | Exception) -> T:
    if isinstance(found, Exception):
        raise found
    return found


def digest_of(chunk: Buffer) -> str:
    """Return the digest of one chunk."""
    return blake3(chunk).hexdigest()


def fill(source: Source, buffer: memoryview) -> int:
    """Read until the buffer is full, or the source ends; return how many bytes there were."""
    got = 0
    while got < buffer.nbytes and (count := source.readinto(buffer[got:])):
        got += count
    return got


# --- of pickles that are looked at, and not stored ------------------------------------------


class TooLong(Exception):
    """A pickle has more bytes than it may."""


class Out:
    """A file that keeps nothing. `failure`: what a pickler's file raised, not the value."""

    failure: BaseException | None = None

    def write(self, data: Buffer | pickle.PickleBuffer, /) -> int:
        return 0


class DigestingOut(Out):
    """A digest of the stream."""

    def __init__(self) -> None:
        self.hash = blake3()

    def write(self, data: Buffer | pickle.PickleBuffer, /) -> int:
        with memoryview(data) as view:
            self.hash.update(view)
        return 0


class KeptStream(DigestingOut):
    """A digest of the stream, and the stream itself as long as it is small."""

    def __init__(self, limit: int, *, stop: bool = False) -> None:
        super().__init__()
        self.size = 0
        self._limit = limit
        self._stop = stop
        self._parts: list[bytes] = []

    def write(self, data: Buffer | pickle.PickleBuffer, /) -> int:
        view = data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data).cast("B")
        self.size += view.nbytes
        if self._stop and self.size > self._limit:
            self.failure = TooLong()
            raise self.failure
        self.hash.update(view)
        if self.size <= self._limit:
            self._parts.append(bytes(view))
        else:
            self._parts.clear()
        return view.nbytes

    def data(self) -> bytes | None:
        return b"".join(self._parts) if self.size <= self._limit else None
