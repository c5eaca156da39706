"""Builtin types: big integers, tuples, sets and complex numbers; and what stands for a forgotten result.

A tuple is the array of its elements; a set the array of its elements' bytes in the order of
these bytes, because the order of iteration differs between processes.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from graflow_ckpt.checkpoint.values.kinds import Kind, Packing, Unpacking


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
    size = len(value)
    if size < 16:
        header = bytes((0x90 | size,))
    elif size < 65536:
        header = struct.pack(">BH", 0xDC, size)
    else:
        header = struct.pack(">BI", 0xDD, size)
    return header + b"".join(sorted(map(pack, value)))


KINDS = (
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
