"""Encrypted frames of a journal, each bound to session, epoch, segment and number.

    segment  head, frames; the head is written with the first frame: without one the segment is empty
    head     "GJE" 1 · salt:16 · length:u8 · the id of the key
    frame    "GF" · number:u32 · length:u32 · nonce:12 · the sealed bytes          (little endian)

What follows from a bad frame is what follows in journal.py: with a good one after it, it is damage; with
nothing after it, it is what a crash left of an append, and is cut off. So an end that was taken away by
somebody looks like a crash, here as there. Zeros where a frame should begin are the end.
A segment keeps the key that it was begun with; it is gone with the next cut.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from graflow_ckpt.core.errors import UnknownKey, UnsafeCheckpoint
from graflow_ckpt.core.protocols import Journal
from graflow_ckpt.stores.encryption import AESGCM, InvalidTag, derived
from graflow_ckpt.stores.keys import Keyring

Place = tuple[str, int, int]
"""Session, epoch, and what the segment follows."""

_MAGIC: Final = b"GJE\x01"
_HEAD: Final = struct.Struct("<4s16sB")
_FRAME: Final = struct.Struct("<2sII12s")
_MARK: Final = b"GF"
_DAMAGED: Final = struct.pack("<2sII16sB", b"GJ", 1, crc32(b"?"), bytes(16), ord("?"))
"""A record with a seal that cannot be: damage, for whoever reads the journal within."""


class Segment:
    """Encrypts what is appended. Its threads take turns."""

    def __init__(self, inner: Journal, key_id: str, secret: bytes, place: Place) -> None:
        salt = os.urandom(16)
        self._inner = inner
        self._cipher = AESGCM(_key(secret, place, salt))
        self._head = _HEAD.pack(_MAGIC, salt, len(key_id)) + key_id.encode("ascii")
        self._next = 0
        self._mutex = threading.Lock()

    def append(self, frame: bytes, /) -> None:
        with self._mutex:
            # Random, not counted: a frame whose append failed may be there all the same.
            number, nonce = self._next, os.urandom(12)
            sealed = self._cipher.encrypt(nonce, frame, struct.pack("<I", number))
            head = b"" if number else self._head
            self._inner.append(head + _FRAME.pack(_MARK, number, len(sealed), nonce) + sealed)
            self._next += 1

    def close(self) -> None:
        self._inner.close()


def read(keyring: Keyring, place: Place, raw: bytes) -> bytes:
    """Return the frames of a segment, one after the other; at a damaged one end with `_DAMAGED`."""
    if not raw.strip(b"\0") or raw.startswith(bytes(len(_MAGIC))):
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
    if not _MAGIC.startswith(raw.rstrip(b"\0")[: len(_MAGIC)]):
        raise UnsafeCheckpoint(
            f"The journal of session {place[0]} (epoch {place[1]}) is not encrypted, and its store is: "
            "somebody else wrote it.",
            hint="Resume from a checkpoint that you name: graflow-ckpt checkpoints list.",
            session=place[0],
            epoch=place[1],
        )
    if len(raw) < _HEAD.size:
        return None
    _, salt, size = _HEAD.unpack_from(raw)
    end = _HEAD.size + size
    key_id = raw[_HEAD.size : end].decode("ascii", "replace")
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
    return AESGCM(_key(secret, place, salt)), end


def _frame(cipher: AESGCM, raw: bytes, at: int) -> tuple[int, bytes, int] | None:
    if raw[at : at + 2] != _MARK or len(raw) < at + _FRAME.size:
        return None
    _, number, size, nonce = _FRAME.unpack_from(raw, at)
    start = at + _FRAME.size
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


def _key(secret: bytes, place: Place, salt: bytes) -> bytes:
    session, epoch, after = place
    return derived(secret, "graflow_ckpt 2026 encryption of journals", session, str(epoch), str(after), salt)
