"""A compressed store: parts take less room, where that pays.

    Compressed(store)                  compressed+s3://bucket/runs, compressed+encrypted+s3://bucket/runs

Promise: what comes out is what went in, in the same order of memory: a block at a time (compression.py). How
large a part is stands in the meta, for a reader has to know it before the first byte, and the writer
after the last. What was there before the store was compressed is read as it is. Around an encrypted
store, not inside: what is encrypted cannot be made smaller.
Not here: journals. Their records are small, and their appends are waited for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import PartWriter, Sink, Source
from graflow_ckpt.stores import envelope
from graflow_ckpt.stores.compression import PLAIN, TAG, ZSTD, Packer, PackingSink, UnpackingSource, unpacked

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
