"""The budget of plain bytes that others can write: what decoding them may take in memory.

    check(data)          TooLarge if the values in it would take more than TIMES its bytes and FREE

The smallest containers take seventy times their bytes and more, and a header of five bytes may claim four
thousand million elements. So the headers are read before anything is made: each container, extension and
claimed element is charged with what it takes in CPython. What is refused here is refused when it is to be
stored, too, so every value that was stored can be read.

Not here: bytes behind a seal, which only a holder of the key has made, and damage, which decoding finds.
"""

from __future__ import annotations

import re
from typing import Final

from graflow_ckpt.core.errors import TooLarge

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


def check(name: str, data: bytes) -> None:
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
        at = _end_of_flat(data, at)
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


def _end_of_flat(data: bytes, at: int) -> int:
    found = _FLAT.match(data, at)
    return found.end() if found is not None else at


def _extension(data: bytes, at: int, size: int) -> tuple[int, int]:
    """Where to go on, and what it takes: the values of a tuple or a set are unpacked from a copy."""
    if data[at : at + 1] and data[at] in _NESTED:
        return at + 1, _DICT + size
    return at + 1 + size, _OBJECT + size
