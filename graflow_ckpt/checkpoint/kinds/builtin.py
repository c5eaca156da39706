"""Builtin types: big integers, tuples, sets and complex numbers; and what stands for a forgotten result.

A tuple is the array of its elements; a set the array of its elements' bytes in the order of
these bytes, because the order of iteration differs between processes.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from msgpack import ExtType

from graflow_ckpt.checkpoint.kinds import Kind, Packing, Unpacking, ext


def _encode_int(value: int, _: Packing) -> ExtType:
    return ext(1, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _decode_int(data: bytes, _: Unpacking) -> int:
    return int.from_bytes(data, "big", signed=True)


def _encode_tuple(value: tuple[Any, ...], pack: Packing) -> ExtType:
    return ext(2, pack(list(value)))


def _decode_tuple(data: bytes, unpack: Unpacking) -> tuple[Any, ...]:
    return tuple(unpack(data))


def _encode_set(value: set[Any], pack: Packing) -> ExtType:
    return ext(3, _array(value, pack))


def _decode_set(data: bytes, unpack: Unpacking) -> set[Any]:
    return set(unpack(data))


def _encode_frozenset(value: frozenset[Any], pack: Packing) -> ExtType:
    return ext(4, _array(value, pack))


def _decode_frozenset(data: bytes, unpack: Unpacking) -> frozenset[Any]:
    return frozenset(unpack(data))


def _encode_complex(value: complex, _: Packing) -> ExtType:
    return ext(5, struct.pack(">dd", value.real, value.imag))


def _decode_complex(data: bytes, _: Unpacking) -> complex:
    return complex(*struct.unpack(">dd", data))


class Forgotten:
    """What is left of a result that the session does not keep any more."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "forgotten"

    def __reduce__(self) -> str:
        return "FORGOTTEN"


FORGOTTEN: Final = Forgotten()


def _encode_forgotten(value: Forgotten, _: Packing) -> ExtType:
    return ext(14, b"")


def _decode_forgotten(data: bytes, _: Unpacking) -> Forgotten:
    if data:
        raise ValueError("nothing is left of what was forgotten")
    return FORGOTTEN


def _array(value: set[Any] | frozenset[Any], pack: Packing) -> bytes:
    size = len(value)
    if size < 16:
        header = bytes((0x90 | size,))
    elif size < 65536:
        header = struct.pack(">BH", 0xDC, size)
    else:
        header = struct.pack(">BI", 0xDD, size)
    return header + b"".join(sorted(map(pack, value)))


KINDS = (
    Kind(1, (int,), _encode_int, _decode_int),
    Kind(2, (tuple,), _encode_tuple, _decode_tuple),
    Kind(3, (set,), _encode_set, _decode_set),
    Kind(4, (frozenset,), _encode_frozenset, _decode_frozenset),
    Kind(5, (complex,), _encode_complex, _decode_complex),
    Kind(14, (Forgotten,), _encode_forgotten, _decode_forgotten),
)
