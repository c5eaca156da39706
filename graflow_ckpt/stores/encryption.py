"""Encryption: keys for each purpose, and parts as frames that fit nowhere else.

    part     "GE" 1 · 0 · tag:8 · salt:16 · frames
    frame    up to 64 KiB, AES-256-GCM, and 16 bytes that authenticate it
    box      salt:24 · the sealed bytes; for what is small (the meta)

Each trio has a random key of its own, kept in its meta. From it, and from stage, part and salt, the key of
one part is derived, and a frame's nonce is its number and whether it is the last one: a frame, a part or
a beginning of one does not open anywhere else. `tag` says which key it was, so that a meta which has been
replaced meanwhile is told from damage. No key seals two things under one nonce, whatever is written twice.

Not here: where secrets come from, and what is encrypted (encrypted.py).
"""

from __future__ import annotations

import os
import struct
from hmac import compare_digest
from typing import Final

from blake3 import blake3

from graflow_ckpt.core.errors import CheckpointCorrupt, PackageMissing, UnsafeCheckpoint
from graflow_ckpt.core.protocols import Buffer, Sink, Source
from graflow_ckpt.stores.pieces import read_up_to

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError as missing:
    raise PackageMissing(
        "An encrypted store cannot be used: the package cryptography is not installed.",
        hint="Install it with: pip install 'graflow-ckpt[encryption]'.",
        extra="encryption",
    ) from missing

__all__ = ["AESGCM", "EncryptingSink", "InvalidTag", "OpeningSource", "derived", "open_box", "seal_box"]

FRAME: Final = 64 << 10  # larger ones leave the cache, and are ten times as slow to make
MAGIC: Final = b"GE\x01\0"
TAG: Final = 16
_HEAD: Final = struct.Struct("<4s8s16s")
_NONCE: Final = struct.Struct(">QI")
_SALT: Final = 24
_ZERO: Final = bytes(12)


def derived(key: bytes, *purpose: str | bytes) -> bytes:
    """A key for one purpose. Each word is preceded by its length: no two lists of words are alike."""
    words = (word.encode("utf-8", "surrogatepass") if isinstance(word, str) else word for word in purpose)
    return blake3(b"".join(struct.pack("<I", len(word)) + word for word in words), key=key).digest()


def seal_box(key: bytes, data: bytes, place: bytes) -> bytes:
    """Something small, bound to its place. The key may seal any number of them."""
    salt = os.urandom(_SALT)
    return salt + AESGCM(derived(key, salt)).encrypt(_ZERO, data, place)


def open_box(key: bytes, box: bytes, place: bytes) -> bytes:
    """Raises InvalidTag, if that is not what was sealed there."""
    if len(box) < _SALT + TAG:
        raise InvalidTag
    return AESGCM(derived(key, box[:_SALT])).decrypt(_ZERO, box[_SALT:], place)


class EncryptingSink:
    """Passes on what is written in frames. The last one is written by `finish`, and is there in any case."""

    def __init__(self, sink: Sink, key: bytes, stage: str, part: str) -> None:
        salt = os.urandom(16)
        self._sink = sink
        self._cipher = AESGCM(derived(key, "part", stage, part, salt))
        self._count = 0
        self._held = bytearray()  # never more than a frame: it may be the last one
        sink.write(_HEAD.pack(MAGIC, derived(key, "tag")[:8], salt))

    def write(self, data: Buffer, /) -> int:
        with memoryview(data) as given, given.cast("B") as view:
            at, size = 0, len(view)
            while at < size:
                if len(self._held) == FRAME:
                    self._frame(self._held)
                    self._held.clear()
                if not self._held and size - at > FRAME:
                    self._frame(view[at : at + FRAME])  # where it is: large buffers are not copied
                    at += FRAME
                    continue
                piece = view[at : at + FRAME - len(self._held)]
                self._held += piece
                at += len(piece)
            return size

    def finish(self) -> None:
        self._frame(self._held, last=True)

    def _frame(self, data: Buffer, *, last: bool = False) -> None:
        self._sink.write(self._cipher.encrypt(_NONCE.pack(self._count, last), data, None))
        self._count += 1


class OpeningSource:
    """A part in the clear. Its head is read at once; a frame is handed out when it has been verified."""

    def __init__(self, source: Source, key: bytes, stage: str, part: str, path: str) -> None:
        self._source, self._path, self._part = source, path, part
        head = read_up_to(source, min(_HEAD.size, source.size))
        if head[: len(MAGIC)] != MAGIC:
            raise UnsafeCheckpoint(
                f"The {part} of checkpoint {path} is not encrypted, and its store is: "
                "somebody else wrote it.",
                hint="It is not opened. Use another checkpoint of the session.",
                path=path,
                part=part,
            )
        body = source.size - _HEAD.size
        self._frames = -(-body // (FRAME + TAG))
        if len(head) < _HEAD.size or body < TAG or body - self._frames * TAG < 0:
            raise self._corrupt("it ends too early")
        _, tag, salt = _HEAD.unpack(head)
        if not compare_digest(tag, derived(key, "tag")[:8]):
            raise self._corrupt("it was not written with its meta")
        self.size = body - self._frames * TAG
        self._left = body
        self._cipher = AESGCM(derived(key, "part", stage, part, salt))
        self._next = 0
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        view, done = buffer.cast("B"), 0
        while done < len(view) and (self._rest or self._next < self._frames):
            if not self._rest:
                self._rest = memoryview(self._frame())
                continue
            count = min(len(view) - done, len(self._rest))
            view[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        return done

    def close(self) -> None:
        self._source.close()

    def _frame(self) -> bytes:
        size = min(self._left, FRAME + TAG)
        sealed = read_up_to(self._source, size)
        if len(sealed) < size:
            raise self._corrupt("it ends too early")
        last = self._next == self._frames - 1
        try:
            data = self._cipher.decrypt(_NONCE.pack(self._next, last), sealed, None)
        except InvalidTag:
            raise self._corrupt(f"frame {self._next} was changed, moved, or is not the end of it") from None
        self._left -= size
        self._next += 1
        return data

    def _corrupt(self, what: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"The {self._part} of checkpoint {self._path} does not open: {what}.",
            hint="Use another checkpoint of the session.",
            path=self._path,
            part=self._part,
        )
