"""A compressed store: parts take less room, where that pays, in blocks, and never more than was said.

    Compressed(store)                  compressed+s3://bucket/runs, compressed+encrypted+s3://bucket/runs

    part     "GZ" 1 · 0 · tag:8 · blocks
    block    size:u32 · kept:u32 · how:u8 · the bytes as they are kept    (little endian; of 256 KiB at most)

Promise: what comes out is what went in, in the same order of memory: a block at a time. How
large a part is stands in the meta, for a reader has to know it before the first byte, and the writer
after the last. What was there before the store was compressed is read as it is. Around an encrypted
store, not inside: what is encrypted cannot be made smaller.

Whether it pays is tried with the first bytes of a block: what is random, or packed already, stays as it is.
A reader gives the unpacker room for what the block says and no more; a block that says more than is
allowed, or holds more or less than it says, is corrupt before anything of it is handed out. `tag` says with
which meta the part was written.
Not here: journals, whose records are small, and their appends are waited for; digests: those above digest
what was given to them.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Final

from graflow_ckpt.core.errors import CheckpointCorrupt, not_installed
from graflow_ckpt.core.protocols import Buffer, PartWriter, Sink, Source
from graflow_ckpt.stores.around import envelope
from graflow_ckpt.stores.pieces import OpenedSource, read_up_to

try:
    import zstandard
except ModuleNotFoundError as missing:
    raise not_installed(missing, "A compressed store cannot be used", "compression") from missing

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


class UnpackingSource(OpenedSource):
    """A part as it was given. Its head is read at once, a block when it is asked for."""

    cannot = "cannot be unpacked"

    def __init__(self, source: Source, size: int, tag: bytes, part: str, path: str) -> None:
        super().__init__(source, part, path)
        self._left = self.size = size
        head = read_up_to(source, _HEAD.size)
        if len(head) < _HEAD.size or _HEAD.unpack(head) != (MAGIC, tag):
            raise self._corrupt("it was not written with its meta")

    def _piece(self) -> bytes | bytearray:
        if not self._left:
            return b""
        size, length, how = _BLOCK.unpack(self._exactly(_BLOCK.size))
        if not 0 < size <= min(BLOCK, self._left) or not 0 < length <= size or how not in (PLAIN, ZSTD):
            raise self._corrupt("a block says what cannot be")
        kept = self._exactly(length)
        self._left -= size
        if how == PLAIN:
            if length != size:
                raise self._corrupt("a block says what cannot be")
            return kept
        try:
            return unpacked(kept, size)
        except ValueError as error:
            raise self._corrupt(str(error)) from None


# --- the store -----------------------------------------------------------------------------


_LARGEST_META = 64 << 20


@dataclass(slots=True)
class Note:
    """What its parts were marked with, and their sizes; of a trio that is not compressed, nothing."""

    tag: bytes = b""
    sizes: dict[str, int] = field(default_factory=dict)


class Compressed(envelope.Enveloping[Note]):
    """What is noted of a trio is how large its parts are."""

    word = "compressed"

    # --- metas -------------------------------------------------------------------------

    def _new_note(self) -> Note:
        return Note(os.urandom(TAG))

    def _close_meta(self, raw: bytes, stage: str, note: Note) -> bytes:
        if not note.tag:
            return raw
        how, kept = Packer().packed(raw)
        body = {
            "stage": stage,
            "tag": note.tag.hex(),
            "sizes": note.sizes,
            "how": how,
            "size": len(raw),
            "meta": envelope.packed(bytes(kept)),
        }
        return envelope.written({**envelope.copied(raw), self.word: body})

    def _open_meta(self, path: str, raw: bytes) -> tuple[bytes, str, Note]:
        found = envelope.opened(self.word, raw)
        if found is None:  # written before the store was compressed, or damaged: as it is
            return raw, envelope.stage_of(raw), Note()
        fields, body = found
        try:
            meta = _meta_in(body)
            note = Note(bytes.fromhex(body["tag"]), dict(body["sizes"]))
            whole = len(note.tag) == TAG and all(type(size) is int for size in note.sizes.values())
        except (KeyError, TypeError, ValueError) as error:
            raise _changed(path, str(error)) from None
        if not whole or envelope.copied(meta) != fields:
            raise _changed(path, "what stands outside is not what is inside")
        return meta, body["stage"], note

    # --- parts -------------------------------------------------------------------------

    def _write_part(self, part: str, stage: str, note: Note, writer: PartWriter, sink: Sink) -> None:
        if not note.tag:
            writer(sink)
            return
        packing = PackingSink(sink, note.tag)
        writer(packing)
        packing.finish()
        note.sizes[part] = packing.size

    def _read_part(self, path: str, part: str, stage: str, note: Note, source: Source) -> Source:
        if not note.tag:
            return source
        size = note.sizes.get(part, -1)
        if size < 0:
            raise _changed(path, f"they do not say how large its {part} is")
        return UnpackingSource(source, size, note.tag, part, path)


def _meta_in(body: envelope.Document) -> bytes:
    kept, size, how = envelope.unpacked(body["meta"]), body["size"], body["how"]
    if type(size) is not int or not 0 <= size <= _LARGEST_META or how not in (PLAIN, ZSTD):
        raise ValueError("it says what cannot be")
    found = bytes(unpacked(kept, size)) if how == ZSTD else kept
    if len(found) != size:
        raise ValueError("it holds another number of bytes than it says")
    return found


def _changed(path: str, why: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"The metadata of checkpoint {path} cannot be unpacked: {why}.",
        hint="Use another checkpoint of the session.",
        path=path,
    )
