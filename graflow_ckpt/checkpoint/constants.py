"""What can be compared by its content: constants, and what amounts to them.

Exact types only: a subclass has code, and code is looked at elsewhere (reading.py). What comes
out are plain constants that give the same bytes in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})

# Immutable values of the standard library, and the constants that they amount to.
_VALUES: dict[str, Callable[[Any], object]] = {
    "builtins.range": repr,
    "datetime.date": repr,
    "datetime.datetime": lambda value: value.isoformat(),
    "datetime.time": lambda value: value.isoformat(),
    "datetime.timedelta": repr,
    "decimal.Decimal": str,
    "fractions.Fraction": str,
    "pathlib.PosixPath": str,
    "pathlib.PurePosixPath": str,
    "pathlib.PureWindowsPath": str,
    "pathlib.WindowsPath": str,
    "re.Pattern": lambda value: (value.pattern, value.flags),
    "uuid.UUID": str,
}


def is_constant(value: Any) -> bool:  # of any type
    """Cannot change, and is nothing but itself."""
    kind = type(value)
    return kind in _ATOMS or (kind in (tuple, frozenset) and all(map(is_constant, value)))


def contents_of(value: Any, depth: int = 20) -> object | None:
    """A default as constants, if it is made of nothing else; mutable containers too."""
    if is_constant(value):
        return (value,)
    kind = type(value)
    if not depth or kind not in (tuple, list, dict, set, frozenset, bytearray):
        return None
    if kind is bytearray:
        return ("bytearray", bytes(value))
    flat = [part for item in value.items() for part in item] if kind is dict else list(value)
    found = [contents_of(item, depth - 1) for item in flat]
    if None in found:
        return None
    if kind is set:
        return ("set", frozenset(value)) if is_constant(frozenset(value)) else None
    return (kind.__name__, *found)


def amounts_to(value: Any) -> tuple[str, object] | None:
    """An immutable value of the standard library, as constants; None if it is none."""
    kind = type(value)
    constant = _VALUES.get(f"{str(kind.__module__).partition('.')[0]}.{kind.__name__}")
    return None if constant is None else (kind.__name__, constant(value))
