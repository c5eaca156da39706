"""Compression: parts in blocks, each packed with zstd if that pays, and never more than was said.

    part     "GZ" 1 · 0 · tag:8 · blocks
    block    size:u32 · kept:u32 · how:u8 · the bytes as they are kept    (little endian; of 256 KiB at most)

Whether it pays is tried with the first bytes of a block: what is random, or packed already, stays as it is.
A reader gives the unpacker room for what the block says and no more; a block that says more than is
allowed, or holds more or less than it says, is corrupt before anything of it is handed out. `tag` says with
which meta the part was written.

Not here: where sizes are noted (compressed.py), and digests: those above digest what was given to them.
"""

from __future__ import annotations

import struct
from typing import Final

from graflow_ckpt.core.errors import CheckpointCorrupt, PackageMissing
from graflow_ckpt.core.protocols import Buffer, Sink, Source
from graflow_ckpt.stores.pieces import read_up_to

try:
    import zstandard
except ModuleNotFoundError as missing:
    raise PackageMissing(
        "A compressed store cannot be used: the package zstandard is not installed.",
        hint="Install it with: pip install 'graflow-ckpt[compression]'.",
        extra="compression",
    ) from missing

BLOCK: Final = 256 << 10  # larger ones gain little and leave the cache
MAGIC: Final = b"GZ\x01\0"
TAG: Final = 8
LEVEL: Final = 3
_HEAD: Final = struct.Struct("<4s8s")
_BLOCK: Final = struct.Struct("<IIB")
_PROBE: Final = 16 << 10
_WORTH: Final = 0.9
_SMALL: Final = 128
_LARGE: Final = 64 << 10
_WINDOW: Final = 8 << 20


PLAIN: Final = 0
ZSTD: Final = 1


class Packer:
    """Packs blocks. One per part: it is not for several threads."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=LEVEL)

    def packed(self, block: Buffer) -> tuple[int, Buffer]:
        """How it is kept, and as what."""
        view = memoryview(block)
        if len(view) > _SMALL and (len(view) <= _PROBE or self._pays(view[:_PROBE])):
            found = self._zstd.compress(view)
            if len(found) < _WORTH * len(view):
                return ZSTD, found
        return PLAIN, block

    def _pays(self, probe: memoryview) -> bool:
        return len(self._zstd.compress(probe)) < _WORTH * len(probe)


def unpacked(kept: bytes | bytearray, size: int) -> bytearray:
    """Into room for `size` bytes: more is never made. Raises ValueError, if it is not so much."""
    block = bytearray(size)
    count = 0
    try:
        with (
            zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(bytes(kept)) as reader,
            memoryview(block) as view,
        ):
            while count < size and (more := reader.readinto(view[count:])):
                count += more
            goes_on = bool(reader.read(1))
    except zstandard.ZstdError as error:
        raise ValueError(f"a block cannot be unpacked ({error})") from None
    if count != size or goes_on:
        raise ValueError("a block holds another number of bytes than it says")
    return block


class PackingSink:
    """Passes on what is written in blocks. `size`: how many bytes were written."""

    def __init__(self, sink: Sink, tag: bytes) -> None:
        self._sink = sink
        self._packer = Packer()
        self._held = bytearray()
        self.size = 0
        sink.write(_HEAD.pack(MAGIC, tag))

    def write(self, data: Buffer, /) -> int:
        with memoryview(data) as given, given.cast("B") as view:
            at, size = 0, len(view)
            while at < size:
                if not self._held and size - at >= _LARGE:
                    piece = view[at : at + BLOCK]  # where it is: large buffers are not copied
                    self._block(piece)
                    at += len(piece)
                    continue
                piece = view[at : at + BLOCK - len(self._held)]
                self._held += piece
                at += len(piece)
                if len(self._held) == BLOCK:
                    self._flush()
            self.size += size
            return size

    def finish(self) -> None:
        if self._held:
            self._flush()

    def _flush(self) -> None:
        self._block(bytes(self._held))  # a copy: the sink may keep it, and it is filled again
        self._held.clear()

    def _block(self, block: Buffer) -> None:
        how, kept = self._packer.packed(block)
        self._sink.write(_BLOCK.pack(len(block), len(kept), how))
        self._sink.write(kept)


class UnpackingSource:
    """A part as it was given. Its head is read at once, a block when it is asked for."""

    def __init__(self, source: Source, size: int, tag: bytes, part: str, path: str) -> None:
        self._source, self._part, self._path = source, part, path
        self._rest = memoryview(b"")
        self._left = self.size = size
        head = read_up_to(source, _HEAD.size)
        if len(head) < _HEAD.size or _HEAD.unpack(head) != (MAGIC, tag):
            raise self._corrupt("it was not written with its meta")

    def readinto(self, buffer: memoryview, /) -> int:
        view, done = buffer.cast("B"), 0
        while done < len(view) and (self._rest or self._left):
            if not self._rest:
                self._rest = memoryview(self._block())
                self._left -= len(self._rest)
                continue
            count = min(len(view) - done, len(self._rest))
            view[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        return done

    def close(self) -> None:
        self._source.close()

    def _block(self) -> bytes | bytearray:
        head = read_up_to(self._source, _BLOCK.size)
        if len(head) < _BLOCK.size:
            raise self._corrupt("it ends too early")
        size, length, how = _BLOCK.unpack(head)
        if not 0 < size <= min(BLOCK, self._left) or not 0 < length <= size or how not in (PLAIN, ZSTD):
            raise self._corrupt("a block says what cannot be")
        kept = read_up_to(self._source, length)
        if len(kept) < length:
            raise self._corrupt("it ends too early")
        if how == PLAIN:
            if length != size:
                raise self._corrupt("a block says what cannot be")
            return kept
        try:
            return unpacked(kept, size)
        except ValueError as error:
            raise self._corrupt(str(error)) from None

    def _corrupt(self, what: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"The {self._part} of checkpoint {self._path} cannot be unpacked: {what}.",
            hint="Use another checkpoint of the session.",
            path=self._path,
            part=self._part,
        )
