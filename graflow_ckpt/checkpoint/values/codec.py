"""Plain values as bytes: msgpack, with extension types for what msgpack does not know.

Plain means: of an exact type that docs/guarantees.md lists, all the way down, as a tree. What
is decoded has the types, the order and the bits that were encoded; equal values in equal order
have equal bytes, so that bytes can be compared instead of values. Decoding runs no code.

Not plain, so that nothing changes silently on the way: subclasses (decoding them would import
code), one list, dict or set in two places (two would come back), cycles, more than 400 levels
(100 of tuples and sets), more than 4 GiB. Such a value becomes a live cell, which only pickle can keep.

Each kind of extension has a code and a payload, which never change; a new kind gets a new code (golden bytes
in test_codec.py). Here are the builtin ones: a tuple is the array of its elements; a set the array of its
elements' bytes in the order of these bytes, because the order of iteration differs between processes. Those
of other modules are in kinds.py.

Before packing, a value is checked to be plain: exact types only, and a tree of them within limits; msgpack
takes bytearray, memoryview, Timestamp and ExtType without asking. It goes level by level, so that a level
of a million elements is a few passes at C speed. One list, dict or set found in two places is refused:
decoded it would be two, and a change to the one would no longer show in the other. That finds cycles, too.

The budget: what decoding may take in memory, of bytes that others can have written. The smallest containers
take seventy times their bytes and more, and a header of five bytes may claim four thousand million elements.
So the headers are read before anything is made: each container, extension and claimed element is charged with
what it takes in CPython. What is refused here is refused when it is to be stored, too, so every value that
was stored can be read. Not here: bytes behind a seal, which only a holder of the key has made, and damage
that decoding finds.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from itertools import chain, compress
from typing import Any, Final, NamedTuple

import msgpack

from graflow_ckpt.checkpoint.values.pickles import check_picklable, live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, TooLarge
from graflow_ckpt.core.facts import Cell, Live

# --- kinds -----------------------------------------------------------------------------

# Any, here and below: a plain value, whatever the user put into the channel.
Packing = Callable[[Any], bytes]
Unpacking = Callable[[bytes], Any]
Encoder = Callable[[Any, Packing], bytes]
Decoder = Callable[[bytes, Unpacking], Any]


class NotPlain(Exception):
    """No error of the user's: the value goes into a pickle instead."""

    def __init__(self, kind: type, why: str = "") -> None:
        super().__init__(kind, why)
        self.kind = kind
        self.why = why


class Kind(NamedTuple):
    """Types that share a code. Encoders refuse with NotPlain what they cannot restore exactly."""

    code: int
    types: tuple[type, ...]
    encode: Encoder
    decode: Decoder


_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes, complex})
SCALARS: Final[set[type]] = {*_ATOMS}
"""Types without elements. Grows as modules are met; `check_plain` reads it."""
CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset})

_HOMES: Final = dict.fromkeys((6, 7, 8, 9), "datetime") | {
    10: "decimal", 11: "uuid", 12: "pathlib", 13: "numpy",
}  # fmt: skip
_encoders: dict[type, tuple[int, Encoder]] = {}
_decoders: dict[int, Decoder] = {}


def take_in(*kinds: Kind) -> None:
    """Make these kinds known."""
    for kind in kinds:
        _decoders[kind.code] = kind.decode
        _encoders.update(dict.fromkeys(kind.types, (kind.code, kind.encode)))
        SCALARS.update(set(kind.types) - CONTAINERS)


def encoder(kind: type) -> tuple[int, Encoder] | None:
    """Return the code of exactly this type and how to encode it; None if it is not a plain one."""
    known = _encoders.get(kind)
    if known is None:
        home = str(kind.__module__).partition(".")[0]
        # A type can claim any module; only one that is imported is looked at.
        if home in _HOMES.values() and home in sys.modules:
            _load(home)
            known = _encoders.get(kind)
    return known


def decoder(code: int) -> Decoder | None:
    """Return how to decode this code; None if there is no such code."""
    if code not in _decoders and code in _HOMES:
        try:
            _load(_HOMES[code])
        except ImportError as error:
            raise CheckpointError(
                f"A stored value needs {_HOMES[code]}, which cannot be imported here: {error}.",
                hint=f"Install it: pip install {_HOMES[code]}",
                needs=_HOMES[code],
            ) from error
    return _decoders.get(code)


@cache
def _load(home: str) -> None:
    kinds = import_module("graflow_ckpt.checkpoint.values.kinds")
    take_in(*(kinds.of_numpy() if home == "numpy" else kinds.KINDS))


class Forgotten:
    """A stand-in for a result that the session does not keep any more."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "forgotten"

    def __reduce__(self) -> str:
        return "FORGOTTEN"


FORGOTTEN: Final = Forgotten()


def _decode_forgotten(data: bytes, _: Unpacking) -> Forgotten:
    if data:
        raise ValueError("nothing is left of what was forgotten")
    return FORGOTTEN


def _array(value: set[Any] | frozenset[Any], pack: Packing) -> bytes:
    header: bytes = msgpack.Packer(buf_size=16).pack_array_header(len(value))
    return header + b"".join(sorted(map(pack, value)))


take_in(
    Kind(
        1, (int,), lambda value, _: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True),
        lambda data, _: int.from_bytes(data, "big", signed=True),
    ),
    Kind(2, (tuple,), lambda value, pack: pack(list(value)), lambda data, unpack: tuple(unpack(data))),
    Kind(3, (set,), _array, lambda data, unpack: set(unpack(data))),
    Kind(4, (frozenset,), _array, lambda data, unpack: frozenset(unpack(data))),
    Kind(
        5, (complex,), lambda value, _: struct.pack(">dd", value.real, value.imag),
        lambda data, _: complex(*struct.unpack(">dd", data)),
    ),
    Kind(14, (Forgotten,), lambda value, _: b"", _decode_forgotten),
)  # fmt: skip


# --- what is plain ---------------------------------------------------------------------

MAX_DEPTH: Final = 400
MAX_EXT_DEPTH: Final = 100  # each level of tuples or sets takes Python frames, in both directions
MAX_ELEMENTS: Final = 2**27  # tuples may be shared, so a few of them can stand for any number of elements
MAX_SIZE: Final = 2**32 - 1

_SMALL: Final = 16

_UNIQUE: Final = frozenset({list, dict, set})
_AS_EXT: Final = frozenset({tuple, set, frozenset})
_TEXT: Final = frozenset({str, bytes})


def check_plain(root: Any) -> None:
    """Raise NotPlain, naming the type that is not plain or the limit that is passed."""
    if type(root) not in CONTAINERS:
        return _check_kinds({type(root)})
    if len(root) <= _SMALL and _is_flat(root):
        return None
    level: Collection[Any] = (root,)
    seen: set[int] = set()
    depth = ext_depth = elements = text = 0
    while level:
        here = set(map(type, level))
        depth += 1
        ext_depth += not here.isdisjoint(_AS_EXT)
        elements += sum(map(len, level))
        if not here.isdisjoint(_UNIQUE):
            _check_unique(level, here, seen)
        if depth > MAX_DEPTH or ext_depth > MAX_EXT_DEPTH or elements > MAX_ELEMENTS:
            raise NotPlain(type(root), "too deep, or too many elements")
        below = _below(level, here)
        kinds = set(map(type, below))
        if not kinds.isdisjoint(_TEXT):
            text += sum(map(len, _only(_TEXT, below)))
            if text > MAX_SIZE:
                raise NotPlain(type(root), "more than 4 GiB")
        if kinds <= SCALARS:
            return None
        _check_kinds(kinds)
        level = list(_only(CONTAINERS, below))
    return None


def _is_flat(root: Any) -> bool:
    """Return whether it has scalars only: most values do, in a quarter of the time of the full check."""
    if type(root) is dict:
        return {*map(type, root), *map(type, root.values())} <= SCALARS
    return set(map(type, root)) <= SCALARS


def _only(kinds: Collection[type], values: Collection[Any]) -> compress[Any]:
    return compress(values, map(kinds.__contains__, map(type, values)))


def _below(level: Collection[Any], here: set[type]) -> Collection[Any]:
    """Return the elements of all containers of a level: of dicts the keys and the values."""
    if dict not in here:
        return next(iter(level)) if len(level) == 1 else list(chain.from_iterable(level))
    dicts = level if len(here) == 1 else _only({dict}, level)
    return [*chain.from_iterable(level), *chain.from_iterable(map(dict.values, dicts))]


def _check_kinds(kinds: set[type]) -> None:
    for kind in kinds:
        if kind not in SCALARS and kind not in CONTAINERS and encoder(kind) is None:
            raise NotPlain(kind)


def _check_unique(level: Collection[Any], here: set[type], seen: set[int]) -> None:
    known = len(seen)
    unique = list(map(id, level if here <= _UNIQUE else _only(_UNIQUE, level)))
    seen.update(unique)
    if len(seen) != known + len(unique):
        raise NotPlain(next(iter(here)), "one list, dict or set in two places")


NONE: Final = b"\xc0"

_KEPT: Final = 1 << 16  # a packer keeps the largest buffer that it ever had

# Extension code -1 is decoded by msgpack itself, before any code here is asked.
_TIMESTAMPS: Final = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
_BROKEN: Final = (
    ValueError, TypeError, LookupError, ArithmeticError, struct.error, msgpack.UnpackException,
    SyntaxError, OSError, RuntimeError, AttributeError,  # of a dtype or a time zone that is none
)  # fmt: skip


def is_atom(value: Any) -> bool:
    """Return whether it is immutable and of an exact builtin type, so that no task needs a copy of it."""
    return type(value) in _ATOMS


def encode(value: Any) -> bytes:
    """Return the bytes of a plain value; NotPlain if it is not one."""
    if type(value) not in SCALARS:
        check_plain(value)
    elif type(value) is bytes and _KEPT <= len(value) <= MAX_SIZE:
        # What the packer would make, with one copy less.
        return b"\xc6%b%b" % (len(value).to_bytes(4, "big"), value)
    return _pack(value)


def decode(data: bytes) -> Any:
    """Return the value of the bytes; CheckpointCorrupt if `encode` cannot have made them."""
    try:
        value = _unpack(data)
    except _BROKEN as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointCorrupt(f"A stored value cannot be decoded: {error!r}.") from error
    if type(value) not in _ATOMS and b"\xff" in data and any(mark in data for mark in _TIMESTAMPS):
        _refuse_timestamps(value)
    return value


# --- packing ---------------------------------------------------------------------------

# A packer is not reentrant, and a finalizer or another thread can come in at any allocation:
# each call takes one out, and puts it back only if it did not fail.
_packers: list[msgpack.Packer] = []


def _new_packer(unicode_errors: str | None = None) -> msgpack.Packer:
    return msgpack.Packer(strict_types=True, default=_pack_ext, unicode_errors=unicode_errors, buf_size=1024)


def _pack(value: Any) -> bytes:
    try:
        packer = _packers.pop()
    except IndexError:
        packer = _new_packer()
    try:
        data: bytes = packer.pack(value)
    except (ValueError, OverflowError, RecursionError) as error:
        return _pack_odd(value, error)
    if len(data) < _KEPT:
        _packers.append(packer)
    return data


def _pack_odd(value: Any, error: Exception) -> bytes:
    if not isinstance(error, UnicodeEncodeError):
        raise NotPlain(type(value), str(error)) from error
    try:
        # Lone surrogates. A packer that lets them pass is slower; what has none gets the same bytes.
        data: bytes = _new_packer("surrogatepass").pack(value)
    except (ValueError, OverflowError, RecursionError) as other:
        raise NotPlain(type(value), str(other)) from other
    return data


def _pack_ext(value: Any) -> msgpack.ExtType:
    known = encoder(type(value))
    if known is None:
        raise NotPlain(type(value))
    code, encode_kind = known
    data = encode_kind(value, _pack)
    if len(data) > MAX_SIZE:
        raise NotPlain(type(value), "more than 4 GiB")
    # past checks of ExtType that cost more than packing a small tuple
    return tuple.__new__(msgpack.ExtType, (code, data))


def _level(depth: int, inner: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Return a decoder for this depth of extensions. Each takes a call within a call, and the stack of a
    thread ends without an error: thousands of them nested would end the process."""

    def unpack_ext(code: int, data: bytes) -> Any:
        decode_kind = decoder(code)
        if decode_kind is None:
            raise CheckpointCorrupt(
                f"A stored value has the unknown extension code {code}.",
                hint="Either a newer graflow_ckpt wrote it, or the bytes are damaged.",
                code=code,
            )
        if inner is None:
            raise CheckpointCorrupt(f"A stored value has more than {depth} levels of tuples and sets.")
        return decode_kind(data, inner)

    def unpack(data: bytes) -> Any:
        return msgpack.unpackb(
            data, ext_hook=unpack_ext, strict_map_key=False, unicode_errors="surrogatepass"
        )

    return unpack


_unpack = _level(MAX_EXT_DEPTH + 1, None)
for _depth in range(MAX_EXT_DEPTH, -1, -1):
    _unpack = _level(_depth, _unpack)


def _refuse_timestamps(value: Any) -> None:
    try:
        check_plain(value)
    except NotPlain as error:
        raise CheckpointCorrupt("A stored value has the unknown extension code -1.", code=-1) from error


# --- cells -----------------------------------------------------------------------------


def to_cell(value: Any) -> Cell:
    """Return the cell of a value, unchecked."""
    try:
        return encode(value)
    except NotPlain:
        return Live(value)


def check_storable(name: str, value: Any) -> Cell:
    """Return the cell of a value; NotStorable with the path from `name` to what cannot be kept.

    The check is made where the user's line is still on the stack: what passes can be saved later, unless it
    is changed into something that cannot.
    """
    cell = to_cell(value)
    if isinstance(cell, Live):
        check_picklable(value, name)
    return cell


def apart(cell: Cell) -> Cell:
    """Return the cell with an object of its own: what is done to the first object stays outside."""
    return cell if isinstance(cell, bytes) else Live(load_live(live_bytes(cell.value)))


# --- the budget -------------------------------------------------------------------------

TIMES: Final = 24
"""A list of random integers takes 8 times its bytes, one of short dicts 20 times."""
FREE: Final = 256 << 20
"""Bytes that any value may take: ten million integers of one byte are within."""

CERTAIN: Final = 1 << 20
"""Bytes that pass FREE with no contents: the worst, dicts of one small item, take 120 times their size."""

_ELEMENT: Final = 40  # a pointer and a small object
_PAIR: Final = 80
_LIST: Final = 56
_DICT: Final = 232  # with one item; also a set
_OBJECT: Final = 160  # a Decimal, a date

_WIDTHS: Final = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4,  # bytes and texts
    0xC7: 1, 0xC8: 2, 0xC9: 4,  # extensions
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,  # lists and dicts
}  # fmt: skip
_NESTED: Final = (2, 3, 4)  # extensions that hold packed values: tuples and sets


@cache
def _flat() -> re.Pattern[bytes]:
    """Return what holds no elements and is short. Possessive: a run of millions keeps no way back."""
    texts = "|".join(rf"\x{0xA0 + size:x}.{{{size}}}" for size in range(32))
    return re.compile(
        rf"(?s:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xca\xce\xd2].{{4}}|[\xcb\xcf\xd3].{{8}}"
        rf"|[\xcc\xd0].|[\xcd\xd1]..|{texts})*+".encode()
    )


def check_budget(name: str, data: bytes) -> None:
    """Raise TooLarge if decoding takes more memory than its bytes justify."""
    budget = FREE + TIMES * len(data)
    if len(data) > CERTAIN and _passes(data, budget):
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
    at, end, cost, flat = 0, len(data), 0, _flat()
    while cost <= budget:
        found = flat.match(data, at)
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
