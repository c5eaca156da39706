"""The plain types that msgpack does not know: one extension code and one payload for each.

Codes and payloads never change; a new kind gets a new code (golden bytes in test_codec.py).
The types of other modules are in `standard.py` and `from_numpy.py`, which are imported when one of
them is first met, so that importing the codec loads neither datetime nor numpy. Decoding makes
values of the listed types only, and imports nothing that a payload names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

from graflow_ckpt.core.errors import CheckpointError

# Any here and in the other files of this folder: a plain value of the kind that is spoken of.
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


# What has no elements. Grows as modules are met; the codec's type scan reads it.
SCALARS: Final[set[type]] = {type(None), bool, int, float, str, bytes, complex}
CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset})

_HOMES: Final = dict.fromkeys((6, 7, 8, 9), "datetime") | {
    10: "decimal", 11: "uuid", 12: "pathlib", 13: "numpy",
}  # fmt: skip
_encoders: dict[type, tuple[int, Encoder]] = {}
_decoders: dict[int, Decoder] = {}
_taken_in: set[str] = set()


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
        if home in _HOMES.values() and home not in _taken_in and home in sys.modules:
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


def _load(home: str) -> None:
    take_in(*import_module(f"{__name__}.{'from_numpy' if home == 'numpy' else 'standard'}").KINDS)
    _taken_in.add(home)
