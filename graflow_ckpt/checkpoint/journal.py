"""The journal: the transitions since a cut, one sealed record each.

    segment  frames; the first one's payload is the id of the key, a zero byte, and the number of the format
             (the id alone: format 1)
    frame    "GJ"  length:u32  crc32:u32  mac:16  payload          (little endian)
             Formats 3 and 5 are followed by a space, `aead:KEYID`, a space and a salt in hexadecimal: each
             payload is encrypted (stores/around/encodings.py), and is in an array behind its sequence
             4 and 5 are 2 and 3 with rounds of loops among the ops
    payload  msgpack [sequence, now, op, …]; a live cell is an extension
             type 1  its pickle
             type 2  index:u32 and the pickle of a list: that item of it        (from format 2 on)
             type 3  which:u32 index:u32: an item of the which-th list of this record

A record's mac covers the mac before it, so that none can be deleted, moved or added. Zeros
where a frame should begin are the end. A bad frame with a record after it is damage; a bad frame
with nothing after it, or with what only looks like a record, is what a crash left of an append.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgpack

from graflow_ckpt.checkpoint.seals import Chain, Keyring
from graflow_ckpt.checkpoint.values.pickles import live_bytes, load_live
from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.stores.around.encodings import AEAD, Records

FORMAT = 4
"""The number of what is described here; a reader refuses one that it does not know by name."""
_ENCRYPTED = 5
_KNOWN = (b"1", b"2", b"3", b"4", b"5")

MAGIC = b"GJ"
_HEAD = struct.Struct("<2sII16s")
_MAC = _HEAD.size - 16  # where it is within a frame's head
_FIRST = 16  # bytes of a payload that hold its length and the sequence
_LIVE, _LIST, _ITEM = 1, 2, 3
_U32 = struct.Struct("<I")
SIZE_LIMIT = 1 << 20
"""What a record may hold; a larger change is made durable by a cut."""
_SEARCHED = 64 << 20  # what a torn tail can never have under headers that look like good ones


class Record(NamedTuple):
    """One transition as it was applied."""

    sequence: int
    now: float
    ops: list[Op]


class Writer:
    """Frames the records of one segment, as the `encoding` of their store wants it."""

    def __init__(
        self, keyring: Keyring, session: str, epoch: int, after: int, encoding: Sequence[str] = ()
    ) -> None:
        key_id, secret = keyring.signing
        place = start(session, epoch, after)
        self._chain = Chain(secret, place)
        self._records: Records | None = None
        form = b"%d" % FORMAT
        if AEAD in encoding:
            its, secret = keyring.encrypting
            salt = os.urandom(16).hex().encode()
            form = b"%d %b:%b %b" % (_ENCRYPTED, AEAD.encode(), its.encode(), salt)
            self._records = Records(secret, place, salt)
        self.head = self._framed(b"%b\0%b" % (key_id.encode(), form))

    def frame(self, payload: bytes) -> bytes:
        if self._records is not None:
            sequence = _sequence(payload, 0)
            payload = msgpack.packb([sequence, self._records.sealed(b"%d" % sequence, payload)])
        return self._framed(payload)

    def _framed(self, payload: bytes) -> bytes:
        mac = self._chain.next(payload)
        return _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload), mac) + payload


def start(session: str, epoch: int, after: int) -> bytes:
    """Return what the chain of a segment starts from: its place."""
    return f"{session}/{epoch}/{after}".encode()


class CellPickle:
    """A live cell that has been pickled: the value of a pickle, or one item of the list that it holds."""

    __slots__ = ("index", "pickle")

    def __init__(self, pickle: bytes, index: int | None = None) -> None:
        self.pickle = pickle
        self.index = index


def pack(sequence: int, now: float, ops: Sequence[Op]) -> bytes:
    """Return the payload of a record."""
    lists: list[bytes] = []

    def pack_live(value: Any) -> msgpack.ExtType:
        if isinstance(value, Live):
            return msgpack.ExtType(_LIVE, live_bytes(value.value))
        if not isinstance(value, CellPickle):
            raise TypeError(f"an op holds a {type(value).__name__}")
        if value.index is None:
            return msgpack.ExtType(_LIVE, value.pickle)
        for which, known in enumerate(lists):
            if known is value.pickle:
                return msgpack.ExtType(_ITEM, _U32.pack(which) + _U32.pack(value.index))
        lists.append(value.pickle)
        return msgpack.ExtType(_LIST, _U32.pack(value.index) + value.pickle)

    packed: bytes = msgpack.packb([sequence, now, *ops], default=pack_live, unicode_errors="surrogatepass")
    return packed


def unpack(payload: bytes, *, closed: bool = False, python: str = "") -> Record:
    """Return the record of a payload; open pickles, so only for payloads whose mac has been checked.

    `closed` leaves them closed: the live values are None then, for a caller that wants the facts alone.
    `python`: the version that wrote it, if that is known.
    """
    lists: list[list[Any]] = []

    def unpack_live(code: int, data: bytes) -> Any:
        if code not in (_LIVE, _LIST, _ITEM):
            return msgpack.ExtType(code, data)
        if closed:
            return Live(None)
        if code == _LIVE:
            return Live(load_live(data, python))
        if code == _LIST:
            lists.append(load_live(data[_U32.size :], python))
            return Live(lists[-1][_U32.unpack_from(data)[0]])
        return Live(lists[_U32.unpack_from(data)[0]][_U32.unpack_from(data, _U32.size)[0]])

    try:
        sequence, now, *ops = msgpack.unpackb(
            payload,
            ext_hook=unpack_live,
            use_list=False,
            strict_map_key=False,
            unicode_errors="surrogatepass",
        )
    except (ValueError, TypeError, LookupError, struct.error, msgpack.UnpackException) as error:
        if isinstance(error, errors.CheckpointError):
            raise
        raise errors.JournalDamaged(f"A record of a journal cannot be decoded: {error!r}.") from error
    return Record(sequence, now, list(ops))


def read(
    keyring: Keyring, session: str, epoch: int, after: int, raw: bytes, encoding: Sequence[str] = ()
) -> Iterator[bytes]:
    """Yield the payloads of one segment; JournalDamaged where more than a torn tail is missing, and
    UnsafeCheckpoint where it is not encrypted, and the `encoding` of its store says so."""
    chain = records = None
    offset, last = 0, after
    while (found := _frame(raw, offset)) is not None:
        payload, mac = found
        first = chain is None
        if chain is None:
            if (secret := keyring.secret(_key_id(payload))) is None:
                raise _unknown(session, epoch, "sealed", _key_id(payload))
            chain = Chain(secret, start(session, epoch, after))
        if not chain.check(payload, mac):
            raise damaged(session, epoch, offset, "a record was changed, moved or sealed with another key")
        if not first:
            last = _sequence(payload, last)
            yield payload if records is None else _opened(records, payload, session, epoch, offset)
        elif (number := _format(payload)) not in _KNOWN:
            raise unknown_format(session, epoch, number)
        else:
            records = _records(keyring, session, epoch, after, payload)
            if records is None and AEAD in encoding:
                raise _plain(session, epoch)
        offset += _HEAD.size + len(payload)
    if _any_later(raw, offset, chain, last):
        raise damaged(session, epoch, offset, "a damaged record has good ones after it")


def keys_of(raw: bytes) -> set[str]:
    """Return the ids of the keys that a segment says it is sealed and encrypted with; none if it is empty."""
    found = _frame(raw, 0)
    return {_key_id(found[0]), _encrypted_with(found[0])[0]} - {""} if found is not None else set()


def is_later(raw: bytes) -> bool:
    """Return True if a segment says that it has a format that cannot be read here; unverified."""
    found = _frame(raw, 0)
    return found is not None and _format(found[0]) not in _KNOWN


def may_be_sealed(keyring: Keyring, session: str, epoch: int, after: int, raw: bytes) -> bool:
    """Return True if the first frame of a segment is sealed for its place, or the key is not here."""
    found = _frame(raw, 0)
    secret = keyring.secret(_key_id(found[0])) if found is not None else None
    if found is None or secret is None:
        return found is not None
    return Chain(secret, start(session, epoch, after)).check(*found)


def unknown_format(session: str, epoch: int, number: bytes) -> errors.SchemaUnsupported:
    return errors.SchemaUnsupported(
        f"The journal of session {session} (epoch {epoch}) has format {number.decode(errors='replace')}, "
        "which this graflow-ckpt does not know.",
        hint="Upgrade graflow-ckpt here. Nothing was changed.",
        session=session,
        epoch=epoch,
        version=number.decode(errors="replace"),
    )


def _key_id(head: bytes) -> str:
    return head.partition(b"\0")[0].decode(errors="replace")


def _format(head: bytes) -> bytes:
    return head.partition(b"\0")[2].partition(b" ")[0] or b"1"


def _encrypted_with(head: bytes) -> tuple[str, bytes]:
    """Return the id of the key, and the salt; nothing, if the segment is not encrypted."""
    words = head.partition(b"\0")[2].split(b" ")
    if len(words) != 3 or words[0] not in (b"3", b"5"):
        return "", b""
    return words[1].decode(errors="replace").partition(":")[2], words[2]


def _records(keyring: Keyring, session: str, epoch: int, after: int, head: bytes) -> Records | None:
    """Return what opens the records of a segment with that head, whose seal holds; None: they are plain."""
    key_id, salt = _encrypted_with(head)
    if not key_id:
        return None
    if (secret := keyring.opener(key_id)) is None:
        raise _unknown(session, epoch, "encrypted", key_id)
    return Records(secret, start(session, epoch, after), salt)


def _opened(records: Records, payload: bytes, session: str, epoch: int, offset: int) -> bytes:
    try:
        sequence, box = msgpack.unpackb(payload)
        return records.opened(b"%d" % sequence, box)
    except (ValueError, TypeError) as error:
        raise damaged(session, epoch, offset, f"a record cannot be decrypted ({error})") from None


def _plain(session: str, epoch: int) -> errors.UnsafeCheckpoint:
    return errors.UnsafeCheckpoint(
        f"The journal of session {session} (epoch {epoch}) is not encrypted, and its store is: another "
        "program wrote it.",
        hint="Resume from a checkpoint that you name: graflow-ckpt checkpoints list.",
        session=session,
        epoch=epoch,
    )


def _unknown(session: str, epoch: int, how: str, key_id: str) -> errors.UnknownKey:
    return errors.UnknownKey(
        f"The journal of session {session} (epoch {epoch}) is {how} with key {key_id}, "
        "which this machine does not have.",
        hint="Carry the key over (GRAFLOW_CKPT_KEY), or resume from a checkpoint that you name.",
        session=session,
        key_id=key_id,
    )


def _frame(raw: bytes, offset: int) -> tuple[bytes, bytes] | None:
    if raw[offset : offset + 2] != MAGIC or len(raw) < offset + _HEAD.size:
        return None
    _, size, crc, mac = _HEAD.unpack_from(raw, offset)
    if not size or size > len(raw) - offset - _HEAD.size:
        return None  # no payload is empty: this is what is left of a frame whose rest is zeros
    payload = raw[offset + _HEAD.size : offset + _HEAD.size + size]
    return (payload, mac) if zlib.crc32(payload) == crc else None


def _any_later(raw: bytes, offset: int, chain: Chain | None, last: int) -> bool:
    """Return True if a record was appended after the bad one at `offset`, or if it costs too much to know.

    A frame by itself proves nothing: a torn record may hold a user's bytes that look like one. One whose mac
    follows from the frame before it was made with the key, and is later than others if its sequence is.
    Without a `chain` the bad one is the first, and a torn one of those holds the id of a key only.
    """
    searched = 0
    before = raw[offset + _MAC : offset + _HEAD.size]  # as the bad one says
    at = raw.find(MAGIC, offset)
    while at >= 0:
        size = int.from_bytes(raw[at + 2 : at + 6], "little")
        following = at + _HEAD.size + size
        for place, mac in ((at, before), (following, raw[at + _MAC : at + _HEAD.size])):
            if place == offset or (found := _frame(raw, place)) is None:
                continue
            if chain is None or (chain.follows(mac, *found) and _sequence(found[0], last + 1) > last):
                return True
        searched += size if size <= len(raw) - at else 0
        if searched > _SEARCHED:
            return True  # headers in headers: each costs a checksum over all that follows
        at = raw.find(MAGIC, at + 1)
    return False


def _sequence(payload: bytes, unknown: int) -> int:
    """Return the sequence of a record; look at nothing else of it."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload[:_FIRST])
    try:
        unpacker.read_array_header()
        return int(unpacker.unpack())
    except (ValueError, TypeError, msgpack.UnpackException):
        return unknown


def damaged(session: str, epoch: int, offset: int, why: str) -> errors.JournalDamaged:
    return errors.JournalDamaged(
        f"The journal of session {session} (epoch {epoch}) is damaged at byte {offset}: {why}.",
        hint=f"Use what stands before it: graflow-ckpt resume {session} --until-damage (in a program: "
        "until_damage=True). Or resume from a checkpoint that you name: graflow-ckpt checkpoints list.",
        session=session,
        epoch=epoch,
        offset=offset,
    )
