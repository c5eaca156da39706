"""Sealed cells: values on a server that others can write to.

    plain   the codec bytes as they are: decoding them runs no code, and takes no more than the budget
    live    0xC1  length of the key's id  the id  mac:16  pickle      (0xC1 begins no msgpack)

The mac is keyed and covers the session, the place in it, and the pickle: a pickle is opened only if a holder
of a key of the ring has made it for that place. Without a key nothing live is stored or opened.

    place     =NAME a value or an item of a list    *ID a bundle    result  of any task    data TASK  rng
              task NAME  program, proof: what fleet/programs.py keeps

The budget: what decoding plain bytes may take in memory. The smallest containers take seventy times their
bytes and more, and a header of five bytes may claim four thousand million elements. So the headers are read
before anything is made: each container, extension and claimed element is charged with what it takes in
CPython. What is refused here is refused when it is to be stored, too, so every value that was stored can be
read. Not here: bytes behind a seal, which only a holder of the key has made, and damage that decoding finds.
"""

from __future__ import annotations

import re
from hmac import compare_digest
from typing import Final

from blake3 import blake3

from graflow_ckpt.checkpoint.values.pickles import live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointError, GraflowError, TooLarge, UnknownKey, UnsafeCheckpoint
from graflow_ckpt.core.facts import RESULT, Cell, Live
from graflow_ckpt.stores.around.keys import Keyring

LIVE: Final = b"\xc1"
MAC_SIZE: Final = 16
RESULT_PLACE: Final = "result"
LIMIT: Final = 64 << 20
"""What one value may take: every command that carries it holds the server up."""

_OF_CLASSES: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)

_PURPOSE: Final = "graflow_ckpt 2026 seal of values in their place in a shared store"


def sealed_by(data: bytes) -> str:
    """Return the id of the key that bytes claim to be sealed with; the beginning is enough."""
    return data[2 : 2 + data[1]].decode(errors="replace") if data[:1] == LIVE and len(data) > 2 else ""


class SealedCells:
    """Cells of one session as bytes, and back."""

    def __init__(self, session: str, keyring: Keyring | None, limit: int = LIMIT) -> None:
        self._session = session.encode()
        self._keyring = keyring
        self._limit = limit
        self._keys: dict[str, bytes] = {}

    def pack(self, name: str, cell: Cell, place: str = "") -> bytes:
        """Return the bytes of a cell; TooLarge if they are too many. No place: the value of that name."""
        if isinstance(cell, bytes):
            data = cell
        else:
            data = self.seal(live_bytes(cell.value, name), place or _place_of(name))
        if len(data) > self._limit:
            raise TooLarge(
                f"{name} takes {_size(len(data))}; a value of this session may take {_size(self._limit)}.",
                hint="Keep it in a file or an object store and pass its address on, or submit with a larger "
                "value_limit (bytes).",
                path=name,
                size=len(data),
                limit=self._limit,
            )
        if isinstance(cell, bytes):
            check_budget(name, cell)
        return data

    def unpack(self, name: str, data: bytes, place: str = "") -> Cell:
        """Return the cell of bytes; a pickle is opened only if its seal holds."""
        if data[:1] != LIVE:
            check_budget(f"{name} of session {self._session.decode()}", data)
            return data
        pickle = self.open(name, data, place or _place_of(name))
        try:
            return Live(load_live(pickle))
        except _OF_CLASSES as error:
            if isinstance(error, GraflowError):
                raise
            raise CheckpointError(
                f"{name} of session {self._session.decode()} cannot be restored: {error!r}.",
                hint="Its class has raised that when the value was put together again.",
                path=name,
            ) from error

    def seal(self, pickle: bytes, place: str) -> bytes:
        """Return a pickle with the proof of its maker."""
        if self._keyring is None:
            session = self._session.decode()
            raise UnsafeCheckpoint(
                f"Session {session} is to keep a pickle in Redis, and no key is set to seal it with.",
                hint="Make one (graflow-ckpt key new) and set GRAFLOW_CKPT_KEY everywhere, or _KEY_FILE.",
                session=session,
            )
        key_id, secret = self._keyring.signing
        name = key_id.encode()
        return b"%b%c%b%b%b" % (LIVE, len(name), name, self._mac(key_id, secret, place, pickle), pickle)

    def open(self, name: str, data: bytes, place: str) -> bytes:
        """Return the pickle behind a seal that holds."""
        if data[:1] != LIVE:
            raise UnsafeCheckpoint(
                f"{name} of session {self._session.decode()} is not opened: it has no seal.",
                hint="A program without the key has written it.",
                session=self._session.decode(),
            )
        end = 2 + data[1] if len(data) > 2 else 2
        key_id, mac, pickle = (
            data[2:end].decode(errors="replace"),
            data[end : end + MAC_SIZE],
            data[end + MAC_SIZE :],
        )
        secret = self._keyring.secret(key_id) if self._keyring is not None else None
        if secret is None:
            raise UnknownKey(
                f"{name} of session {self._session.decode()} is sealed with key {key_id}, which is not here.",
                hint="Carry that key over: GRAFLOW_CKPT_KEY or GRAFLOW_CKPT_KEY_FILE.",
                key_id=key_id,
                session=self._session.decode(),
            )
        if not compare_digest(self._mac(key_id, secret, place, pickle), mac):
            raise UnsafeCheckpoint(
                f"{name} of session {self._session.decode()} is not opened: its seal does not hold.",
                hint="A program without the key has written it, it was moved from elsewhere, or a version of "
                "graflow-ckpt has made it that sealed no places.",
                session=self._session.decode(),
            )
        return pickle

    def _mac(self, key_id: str, secret: bytes, place: str, pickle: bytes) -> bytes:
        key = self._keys.get(key_id)
        if key is None:
            key = self._keys[key_id] = blake3(secret, derive_key_context=_PURPOSE).digest()
        where = place.encode(errors="surrogatepass")
        head = b"%c%b%b%b" % (len(self._session), self._session, len(where).to_bytes(4, "big"), where)
        return blake3(head + pickle, key=key).digest(MAC_SIZE)


def _place_of(name: str) -> str:
    # the packer of a result knows the key of its spec, not yet its name
    return RESULT_PLACE if name.endswith(RESULT) else f"={name}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count} bytes"


# --- the budget -------------------------------------------------------------------------


TIMES: Final = 24
"""A list of random integers takes 8 times its bytes, one of short dicts 20 times."""
FREE: Final = 256 << 20
"""Bytes that any value may take: ten million integers of one byte are within."""

_SMALL: Final = 1 << 20
"""Bytes that pass FREE with no contents: the worst, dicts of one small item, take 120 times their size."""

_ELEMENT: Final = 40  # a pointer and a small object
_PAIR: Final = 80
_LIST: Final = 56
_DICT: Final = 232  # with one item; also a set
_OBJECT: Final = 160  # a Decimal, a date

_TEXTS: Final = "|".join(rf"\x{0xA0 + size:x}.{{{size}}}" for size in range(32))
_FLAT: Final = re.compile(
    rf"(?s:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xca\xce\xd2].{{4}}|[\xcb\xcf\xd3].{{8}}"
    rf"|[\xcc\xd0].|[\xcd\xd1]..|{_TEXTS})*+".encode()
)
"""What holds no elements and has a short header. Possessive: a run of millions keeps no way back."""

_WIDTHS: Final = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4,  # bytes and texts
    0xC7: 1, 0xC8: 2, 0xC9: 4,  # extensions
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,  # lists and dicts
}  # fmt: skip
_NESTED: Final = (2, 3, 4)  # extensions that hold packed values: tuples and sets


def check_budget(name: str, data: bytes) -> None:
    """Raise TooLarge if decoding takes more memory than its bytes justify."""
    budget = FREE + TIMES * len(data)
    if len(data) > _SMALL and _passes(data, budget):
        raise TooLarge(
            f"{name} would take more than {budget >> 20} MiB in memory: its {len(data) / 1e6:.1f} MB hold "
            "too many small values.",
            hint="Store numbers as an array or as bytes, and many rows in a file whose address is passed on.",
            path=name,
            size=len(data),
            limit=budget,
        )


def _passes(data: bytes, budget: int) -> bool:
    """Return True as soon as what was met takes more than the budget."""
    at, end, cost = 0, len(data), 0
    while cost <= budget:
        found = _FLAT.match(data, at)
        at = found.end() if found is not None else at
        if at >= end:
            return False
        head = data[at]
        if 0x80 <= head < 0xA0:
            at += 1
            cost += _DICT + _PAIR * (head & 15) if head < 0x90 else _LIST + _ELEMENT * (head & 15)
        elif 0xD4 <= head <= 0xD8:
            at, more = _extension(data, at + 1, 1 << (head - 0xD4))
            cost += more
        elif (width := _WIDTHS.get(head)) is not None:
            size = int.from_bytes(data[at + 1 : at + 1 + width], "big")
            at += 1 + width
            if head >= 0xDE:
                cost += _DICT + _PAIR * size
            elif head >= 0xDC:
                cost += _LIST + _ELEMENT * size
            elif 0xC7 <= head <= 0xC9:
                at, more = _extension(data, at, size)
                cost += more
            else:
                at += size
        else:
            return False  # cut off, or no head at all: decoding ends here
    return True


def _extension(data: bytes, at: int, size: int) -> tuple[int, int]:
    """Return where to continue, and what it takes: values of a tuple or a set are unpacked from a copy."""
    if data[at : at + 1] and data[at] in _NESTED:
        return at + 1, _DICT + size
    return at + 1 + size, _OBJECT + size
