"""Encodings: what is done to the bytes of a checkpoint before a store has them.

    "encoding": ["zstd", "aead:KEYID"]      in a meta, first to last; its `needs` has "zstd" and "aead"

    frame    size:u32 · kept:u32 · how:u8 · the bytes as they are kept          (little endian)
    part     frames of 64 KiB at most; content: 32 bytes that its key follows from, then frames

Promise: what comes out is what went in, a frame at a time. Digests and seals are those of the stored bytes,
so nothing is decoded that has not been verified; and no frame takes more memory than a frame may. The size
of a part is in the sealed meta.

`zstd`: a frame is packed where that pays. What is random, or packed already, stays as it is.

`aead` (AES-256-GCM): each trio has a random key, from which that of each part is derived; a frame's nonce is
its number. Of the meta only OPEN stays readable: what stores and retention look for. All else is one field,
`private`, encrypted under a key of the ring, with the key of the trio in it; so a new key rewrites metas and
no values. The key of a content follows from its bytes and a secret that all checkpoints under one key of the
ring have: equal contents are still equal bytes, only for holders of that secret. Records of a journal
are each encrypted before they are sealed, with their sequence in the open.

Not here: where keys come from (keys.py), which store encodes (encoded.py).
"""

from __future__ import annotations

import json
import os
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any, Final

from blake3 import blake3

from graflow_ckpt.core.errors import (
    NOT_OPENED,
    CheckpointCorrupt,
    CheckpointError,
    UnknownKey,
    UnsafeCheckpoint,
    not_installed,
)
from graflow_ckpt.core.protocols import Buffer, PartWriter, Readable, Sink, Source
from graflow_ckpt.stores.around.keys import FERNET_VARIABLE, Keyring
from graflow_ckpt.stores.streams import read_up_to

ZSTD: Final = "zstd"
AEAD: Final = "aead"
KINDS: Final = (ZSTD, AEAD)
"""In the order in which they are applied: what is encrypted cannot be made smaller."""

PRIVATE: Final = "private"
OPEN: Final = frozenset({
    "schema_version", "checkpoint_id", "session_id", "workflow", "status", "cause", "epoch", "sequence",
    "created_at", "parent", "origin", "run", "rewinds", "stage", "synced", "library", "needs", "encoding",
    "parts", "contents", "key_id", "seal",
})  # fmt: skip
"""Fields of an encrypted meta that every reader can read. A new field is private until it is put here."""

FRAME: Final = 64 << 10  # larger ones leave the cache
_HEAD: Final = struct.Struct("<IIB")
_PLAIN, _PACKED = 0, 1
_TAG: Final = 16
_KEY: Final = 32
_SALT: Final = 24
_PROBE: Final = 16 << 10
_WORTH: Final = 0.9
_SMALL: Final = 128
_WINDOW: Final = 8 << 20
_NONCE: Final = struct.Struct(">QI")
_ZERO: Final = bytes(12)

# Any: what JSON can hold.
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of one trio. `secret` is the ring's, under `key_id`; `key` is the trio's own, `shared`
    that of its contents."""

    kinds: tuple[str, ...]
    key_id: str = ""
    secret: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    shared: bytes = field(default=b"", repr=False)

    def write(self, sink: Sink, part: str, writer: PartWriter) -> int:
        """Write a part; return how large it was."""
        encoding = EncodingSink(sink, self.kinds, self._derived(self.key, part))
        writer(encoding)
        encoding.finish()
        return encoding.size

    def read(self, source: Source, size: int | None, part: str, path: str) -> Source:
        """Decode a part of verified bytes."""
        return DecodingSource(source, self.kinds, self._derived(self.key, part), size, part, path)

    def content(self, payload: memoryview) -> Iterator[Buffer]:
        """Return what is stored of a content, in pieces: the same bytes for the same bytes."""
        its = blake3(payload, key=derived(self.shared, "id")).digest() if self.shared else b""
        yield its
        pieces = _Pieces()
        encoding = EncodingSink(pieces, self.kinds, self._derived(self.shared, its))
        for at in range(0, payload.nbytes, FRAME):
            encoding.write(payload[at : at + FRAME])
            yield from pieces
            pieces.clear()
        encoding.finish()
        yield from pieces

    def read_content(self, source: Source, size: int | None, name: str, path: str) -> Source:
        its = bytes(read_up_to(source, _KEY)) if self.shared else b""
        key = self._derived(self.shared, its)
        return DecodingSource(source, self.kinds, key, size, f"content {name}", path)

    def under(self, keyring: Keyring) -> Encoding:
        """Return the same trio under the key that encrypts now."""
        if AEAD not in self.kinds:
            return self
        key_id, secret = keyring.encrypting
        return replace(self, key_id=key_id, secret=secret)

    def concealed(self, document: Document) -> Document:
        """Return a meta as it is sealed and stored."""
        others = [need for need in document.get("needs", ()) if need not in KINDS]
        names = [f"{kind}:{self.key_id}" if kind == AEAD else kind for kind in self.kinds]
        found = {**document, "encoding": names, "needs": [*others, *self.kinds]}
        if AEAD not in self.kinds:
            return found
        private = {name: value for name, value in found.items() if name not in OPEN}
        keys = b64encode(self.key + self.shared).decode()
        body = json.dumps([keys, private], separators=(",", ":")).encode()
        box = _sealed(_meta_key(self.secret), body, str(document["stage"]).encode())
        found = {name: value for name, value in found.items() if name in OPEN}
        return {**found, PRIVATE: b64encode(box).decode()}

    def _derived(self, key: bytes, *purpose: str | bytes) -> bytes:
        return derived(key, "part", *purpose) if key else b""


def encoding_of(store: Readable, keyring: Keyring) -> Encoding | None:
    """Return the encoding that a store wants for a new trio; None: none."""
    if AEAD not in store.encoding:
        return Encoding(store.encoding) if store.encoding else None
    key_id, secret = keyring.around(store).encrypting
    shared = derived(secret, "graflow_ckpt 2026 encryption of contents")
    return Encoding(store.encoding, key_id, secret, os.urandom(_KEY), shared)


def key_in(meta: Document) -> str:
    """Return the id of the key that a meta says it is encrypted with; "": with none."""
    said = meta.get("encoding")
    names = [name for name in said if isinstance(name, str)] if isinstance(said, list) else []
    return next((name.partition(":")[2] for name in names if name.startswith(f"{AEAD}:")), "")


class Metas:
    """The metas of a store as they were before they were encoded. Without a `keyring` the keys of the
    environment are looked for when the first one needs them."""

    def __init__(self, store: Readable, keyring: Keyring | None = None) -> None:
        self.store = store
        self._given = keyring

    @cached_property
    def keyring(self) -> Keyring:
        return (self._given or Keyring.for_store(self.store)).around(self.store)

    def ready(self, meta: bytes | Document) -> None:
        """Look for the keys, if that meta needs them. Raises, if they cannot be read: it is no fault of the
        meta."""
        if PRIVATE in (meta.decode(errors="replace") if isinstance(meta, bytes) else meta):
            _ = self.keyring

    def shown(self, path: str, meta: Document) -> Document | None:
        """Return what a meta says, not verified; None, if it cannot be opened. Raises as
        `ready`."""
        self.ready(meta)
        with suppress(CheckpointError):
            return self.revealed(path, meta)[0]
        return None

    def revealed(self, path: str, meta: Document) -> tuple[Document, Encoding | None]:
        """Return a meta with what is private in it, and how its parts are encoded. A plain one in a store
        that encrypts is refused."""
        said, key_id = meta.get("encoding"), key_in(meta)
        if AEAD in self.store.encoding and not key_id:
            raise UnsafeCheckpoint(
                f"Checkpoint {path} is not encrypted, and its store is: another program wrote it.",
                hint="It is not opened. If you know where it comes from, name the store without encrypted+.",
                path=path,
            )
        if said is None:
            return meta, None
        kinds = tuple(str(name).partition(":")[0] for name in said) if isinstance(said, list) else ("",)
        if not set(kinds) <= set(KINDS):
            raise _damaged(path)
        if AEAD not in kinds:
            return meta, Encoding(kinds)
        secret = self.keyring.opener(key_id)
        if secret is None:
            raise UnknownKey(
                f"Checkpoint {path} is encrypted with key {key_id}, which is not among the keys here.",
                hint=f"Carry that key over (GRAFLOW_CKPT_KEY, GRAFLOW_CKPT_KEY_FILE or {FERNET_VARIABLE}).",
                key_id=key_id,
                path=path,
            )
        try:
            body = _opened(_meta_key(secret), b64decode(meta[PRIVATE]), str(meta["stage"]).encode())
            keys, private = json.loads(body)
        except (KeyError, ValueError, TypeError, RecursionError):
            raise _damaged(path) from None
        found = {name: value for name, value in meta.items() if name in OPEN}
        both = b64decode(keys)
        return {**private, **found}, Encoding(kinds, key_id, secret, both[:_KEY], both[_KEY:])


def _damaged(path: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"The metadata of checkpoint {path} were changed after they were encoded.",
        hint=NOT_OPENED,
        path=path,
    )


# --- parts -----------------------------------------------------------------------------


class EncodingSink:
    """Passes on what is written in frames. `size`: how many bytes were written."""

    def __init__(self, sink: Sink, kinds: tuple[str, ...], key: bytes) -> None:
        self._sink = sink
        self._pack = zstandard().ZstdCompressor(level=3).compress if ZSTD in kinds else None
        self._cipher = aead().AESGCM(key) if key else None
        self._count = self.size = 0
        self._held = bytearray()

    def write(self, data: Buffer, /) -> int:
        with memoryview(data) as given, given.cast("B") as view:
            at, size = 0, len(view)
            while at < size:
                if not self._held and size - at >= FRAME:
                    self._frame(view[at : at + FRAME])  # where it is: large buffers are not copied
                    at += FRAME
                    continue
                piece = view[at : at + FRAME - len(self._held)]
                self._held += piece
                at += len(piece)
                if len(self._held) == FRAME:
                    self.finish()
            self.size += size
            return size

    def finish(self) -> None:
        if self._held:
            self._frame(self._held)
            self._held = bytearray()

    def _frame(self, data: Buffer) -> None:
        how, kept = _packed(self._pack, bytes(data)) if self._pack is not None else (_PLAIN, data)
        head = _HEAD.pack(len(data), len(kept) + (_TAG if self._cipher else 0), how)
        if self._cipher is not None:
            kept = self._cipher.encrypt(_NONCE.pack(self._count, 0), kept, head)
            self._count += 1
        self._sink.write(head)
        self._sink.write(kept)


def _packed(pack: Callable[[bytes], bytes], data: bytes) -> tuple[int, Buffer]:
    """Return how a frame is kept, and as what. Whether packing pays is tried with its beginning."""
    if len(data) > _SMALL and (len(data) <= _PROBE or len(pack(data[:_PROBE])) < _WORTH * _PROBE):
        found = pack(data)
        if len(found) < _WORTH * len(data):
            return _PACKED, found
    return _PLAIN, data


class DecodingSource:
    """A part as it was given. A frame is returned when it is whole, and was checked."""

    def __init__(
        self, source: Source, kinds: tuple[str, ...], key: bytes, size: int | None, part: str, path: str
    ) -> None:
        self._source, self._part, self._path = source, part, path
        self._rest = memoryview(b"")
        if type(size) is not int or size < 0:
            raise self._corrupt("its meta does not say how large it was")
        self._left = self.size = size
        self._packs = ZSTD in kinds
        self._cipher = aead().AESGCM(key) if key else None
        self._count = 0

    def readinto(self, buffer: memoryview, /) -> int:
        view, done = buffer.cast("B"), 0
        while done < len(view):
            if not self._rest:
                self._rest = memoryview(self._piece())
                if not self._rest:
                    break
            count = min(len(view) - done, len(self._rest))
            view[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        return done

    def close(self) -> None:
        self._source.close()

    def _piece(self) -> bytes | bytearray:
        """Return the next one; nothing at the end."""
        if not self._left:
            return b""
        head = self._exactly(_HEAD.size)
        size, length, how = _HEAD.unpack(head)
        most = size + (_TAG if self._cipher is not None else 0)
        whole = length == most if how == _PLAIN else how == _PACKED and self._packs and 0 < length < most
        if not 0 < size <= min(FRAME, self._left) or not whole:
            raise self._corrupt("a frame says what cannot be")
        kept: bytes | bytearray = self._exactly(length)
        self._left -= size
        try:
            if self._cipher is not None:
                kept = _decrypted(self._cipher, _NONCE.pack(self._count, 0), kept, bytes(head))
                self._count += 1
            return unpacked(kept, size) if how == _PACKED else kept
        except ValueError as error:
            raise self._corrupt(str(error)) from None

    def _exactly(self, size: int) -> bytearray:
        found = read_up_to(self._source, size)
        if len(found) < size:
            raise self._corrupt("it ends too early")
        return found

    def _corrupt(self, what: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"The {self._part} of checkpoint {self._path} cannot be decoded: {what}.",
            hint="Use another checkpoint of the session.",
            path=self._path,
            part=self._part,
        )


def unpacked(kept: Buffer, size: int) -> bytearray:
    """Unpack into room for `size` bytes: more is never made. Raise ValueError, if it is not so much."""
    block, count = bytearray(size), 0
    zstd = zstandard()
    try:
        with (
            zstd.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(bytes(kept)) as reader,
            memoryview(block) as view,
        ):
            while count < size and (more := reader.readinto(view[count:])):
                count += more
            goes_on = bool(reader.read(1))
    except zstd.ZstdError as error:
        raise ValueError(f"a frame cannot be unpacked ({error})") from None
    if count != size or goes_on:
        raise ValueError("a frame holds another number of bytes than it says")
    return block


class _Pieces(list[Buffer]):
    """A sink whose pieces are read as they come."""

    def write(self, data: Buffer, /) -> int:
        self.append(data)
        return len(data)


# --- journals --------------------------------------------------------------------------


class Records:
    """A cipher for the records of one segment. `salt` makes its key its own."""

    def __init__(self, secret: bytes, place: bytes, salt: bytes) -> None:
        purpose = "graflow_ckpt 2026 encryption of journals"
        self._cipher = aead().AESGCM(derived(secret, purpose, place, salt))

    def sealed(self, sequence: bytes, payload: bytes) -> bytes:
        nonce = os.urandom(12)  # not counted: a record whose append failed may be there all the same
        return nonce + bytes(self._cipher.encrypt(nonce, payload, sequence))

    def opened(self, sequence: bytes, box: bytes) -> bytes:
        """Return what was sealed there, or raise ValueError."""
        return _decrypted(self._cipher, box[:12], box[12:], sequence)


# --- ciphers ---------------------------------------------------------------------------


def derived(key: bytes, *purpose: str | bytes) -> bytes:
    """Return a key for one purpose. Each word is preceded by its length: no two lists of words are alike."""
    words = (word.encode("utf-8", "surrogatepass") if isinstance(word, str) else word for word in purpose)
    return blake3(b"".join(struct.pack("<I", len(word)) + word for word in words), key=key).digest()


def _meta_key(secret: bytes) -> bytes:
    return derived(secret, "graflow_ckpt 2026 encryption of metadata")


def _sealed(key: bytes, data: bytes, place: bytes) -> bytes:
    """Encrypt something small, bound to its place. The key may seal any number of them."""
    salt = os.urandom(_SALT)
    return salt + bytes(aead().AESGCM(derived(key, salt)).encrypt(_ZERO, data, place))


def _opened(key: bytes, box: bytes, place: bytes) -> bytes:
    return _decrypted(aead().AESGCM(derived(key, box[:_SALT])), _ZERO, box[_SALT:], place)


def _decrypted(cipher: Any, nonce: bytes, data: Buffer, place: bytes) -> bytes:  # Any: imported when needed
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(cipher.decrypt(nonce, data, place))
    except InvalidTag:
        raise ValueError("something of it was changed, moved, or cut off") from None


def aead() -> ModuleType:
    """Return the module that encrypts; it is an optional dependency."""
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ModuleNotFoundError as missing:
        raise not_installed(missing, "What is encrypted cannot be used", "encryption") from missing
    return aead


def zstandard() -> ModuleType:
    """Return the module that packs; it is an optional dependency."""
    try:
        import zstandard
    except ModuleNotFoundError as missing:
        raise not_installed(missing, "What is compressed cannot be used", "compression") from missing
    return zstandard


NEEDED: Final = {AEAD: aead, ZSTD: zstandard}
