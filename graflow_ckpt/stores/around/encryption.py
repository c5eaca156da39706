"""Encryption: keys for each purpose, and parts as frames that fit nowhere else.

    part     "GE" 1 · 0 · tag:8 · salt:16 · frames
    frame    up to 64 KiB, AES-256-GCM, and 16 bytes that authenticate it
    box      salt:24 · the sealed bytes; for what is small (the meta)

Each trio has a random key of its own, kept in its meta. From it, and from stage, part and salt, the key of
one part is derived, and a frame's nonce is its number and whether it is the last one: a frame, a part or
a beginning of one does not open anywhere else. `tag` says which key it was, so that a meta which has been
replaced meanwhile is told from damage. No key seals two things under one nonce, whatever is written twice.

Frames of a journal are each bound to session, epoch, segment and number:

    segment  head, frames; the head is written with the first frame: without one the segment is empty
    head     "GJE" 1 · salt:16 · length:u8 · the id of the key
    frame    "GF" · number:u32 · length:u32 · nonce:12 · the sealed bytes          (little endian)

What follows from a bad frame is what follows in checkpoint/journal.py: with a good one after it, it is
damage; with nothing after it, it is what a crash left of an append, and is cut off. So an end that was taken
away by somebody looks like a crash, here as there. Zeros where a frame should begin are the end.
A segment keeps the key that it was begun with; it is gone with the next cut.

Not here: where secrets come from, and what is encrypted (encrypted.py).
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from hmac import compare_digest
from typing import Final
from zlib import crc32

from blake3 import blake3

from graflow_ckpt.core.errors import UnknownKey, UnsafeCheckpoint, not_installed
from graflow_ckpt.core.protocols import Buffer, Journal, Sink, Source
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.pieces import OpenedSource, read_up_to

try:
    from cryptography.exceptions import InvalidTag as InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError as missing:
    raise not_installed(missing, "An encrypted store cannot be used", "encryption") from missing

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


PLAIN: Final = "is not encrypted, and its store is: another program wrote it."


class OpeningSource(OpenedSource):
    """A part in the clear. Its head is read at once; a frame is handed out when it has been verified."""

    cannot = "does not open"

    def __init__(self, source: Source, key: bytes, stage: str, part: str, path: str) -> None:
        super().__init__(source, part, path)
        head = read_up_to(source, min(_HEAD.size, source.size))
        if head[: len(MAGIC)] != MAGIC:
            raise UnsafeCheckpoint(
                f"The {part} of checkpoint {path} {PLAIN}",
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

    def _piece(self) -> bytes:
        if self._next == self._frames:
            return b""
        sealed = self._exactly(min(self._left, FRAME + TAG))
        last = self._next == self._frames - 1
        try:
            data = self._cipher.decrypt(_NONCE.pack(self._next, last), sealed, None)
        except InvalidTag:
            raise self._corrupt(f"frame {self._next} was changed, moved, or is not the end of it") from None
        self._left -= len(sealed)
        self._next += 1
        return data


# --- a journal -----------------------------------------------------------------------------


Place = tuple[str, int, int]
"""Session, epoch, and what the segment follows."""

_JOURNAL: Final = b"GJE\x01"
_JOURNAL_HEAD: Final = struct.Struct("<4s16sB")
_JOURNAL_FRAME: Final = struct.Struct("<2sII12s")
_MARK: Final = b"GF"
_DAMAGED: Final = struct.pack("<2sII16sB", b"GJ", 1, crc32(b"?"), bytes(16), ord("?"))
"""A record with a seal that cannot be: damage, for whoever reads the journal within."""


class EncryptedSegment:
    """Encrypts what is appended. Its threads take turns."""

    def __init__(self, inner: Journal, key_id: str, secret: bytes, place: Place) -> None:
        salt = os.urandom(16)
        self._inner = inner
        self._cipher = AESGCM(_journal_key(secret, place, salt))
        self._head = _JOURNAL_HEAD.pack(_JOURNAL, salt, len(key_id)) + key_id.encode("ascii")
        self._next = 0
        self._mutex = threading.Lock()

    def append(self, frame: bytes, /) -> None:
        with self._mutex:
            # Random, not counted: a frame whose append failed may be there all the same.
            number, nonce = self._next, os.urandom(12)
            sealed = self._cipher.encrypt(nonce, frame, struct.pack("<I", number))
            head = b"" if number else self._head
            self._inner.append(head + _JOURNAL_FRAME.pack(_MARK, number, len(sealed), nonce) + sealed)
            self._next += 1

    def close(self) -> None:
        self._inner.close()


def read_segment(keyring: Keyring, place: Place, raw: bytes) -> bytes:
    """Return the frames of a segment, one after the other; at a damaged one end with `_DAMAGED`."""
    if not raw.strip(b"\0") or raw.startswith(bytes(len(_JOURNAL))):
        return b""
    found = _opened(keyring, place, raw)
    if found is None:
        return b""  # the first append was cut off
    cipher, at = found
    frames: list[bytes] = []
    number = 0
    while (frame := _frame(cipher, raw, at)) is not None:
        found_number, data, end = frame
        if found_number != number:
            return _damaged(frames)
        frames.append(data)
        number, at = number + 1, end
    if any(_frame(cipher, raw, later) is not None for later in _marks(raw, at)):
        return _damaged(frames)
    return b"".join(frames)


def _damaged(frames: list[bytes]) -> bytes:
    # the first frame holds the id of a key, and this one must not be taken for it
    return b"".join(frames or [b"?"]) + _DAMAGED


def _opened(keyring: Keyring, place: Place, raw: bytes) -> tuple[AESGCM, int] | None:
    """What opens the frames, and where they begin; None, if not even the head is whole."""
    if not _JOURNAL.startswith(raw.rstrip(b"\0")[: len(_JOURNAL)]):
        raise UnsafeCheckpoint(
            f"The journal of session {place[0]} (epoch {place[1]}) is not encrypted, and its store is: "
            "somebody else wrote it.",
            hint="Resume from a checkpoint that you name: graflow-ckpt checkpoints list.",
            session=place[0],
            epoch=place[1],
        )
    if len(raw) < _JOURNAL_HEAD.size:
        return None
    _, salt, size = _JOURNAL_HEAD.unpack_from(raw)
    end = _JOURNAL_HEAD.size + size
    key_id = raw[_JOURNAL_HEAD.size : end].decode("ascii", "replace")
    secret = keyring.secret(key_id)
    if secret is None:
        if not raw[end:].strip(b"\0"):
            return None
        raise UnknownKey(
            f"The journal of session {place[0]} (epoch {place[1]}) is encrypted with key {key_id}, "
            "which is not among the keys here.",
            hint="Carry the key over, or resume from a checkpoint that you name.",
            session=place[0],
            key_id=key_id,
        )
    return AESGCM(_journal_key(secret, place, salt)), end


def _frame(cipher: AESGCM, raw: bytes, at: int) -> tuple[int, bytes, int] | None:
    if raw[at : at + 2] != _MARK or len(raw) < at + _JOURNAL_FRAME.size:
        return None
    _, number, size, nonce = _JOURNAL_FRAME.unpack_from(raw, at)
    start = at + _JOURNAL_FRAME.size
    sealed = raw[start : start + size]
    if len(sealed) != size:
        return None
    try:
        return number, cipher.decrypt(nonce, sealed, struct.pack("<I", number)), start + size
    except InvalidTag:
        return None


def _marks(raw: bytes, at: int) -> Iterator[int]:
    at = raw.find(_MARK, at + 1)
    while at >= 0:
        yield at
        at = raw.find(_MARK, at + 1)


def _journal_key(secret: bytes, place: Place, salt: bytes) -> bytes:
    session, epoch, after = place
    return derived(secret, "graflow_ckpt 2026 encryption of journals", session, str(epoch), str(after), salt)
