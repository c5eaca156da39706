"""Drawing: values in one short line, and rows of numbers as small pictures.

0.91 → 0.95 (+4.4 %)      ▇▆▄▃▂▁▁      list of 3      'some text…'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from graflow_ckpt.checkpoint import inert
from graflow_ckpt.checkpoint.holdings import Held
from graflow_ckpt.core.redaction import HIDDEN, redacted
from graflow_ckpt.interfaces.cli import words

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
_TEXT = 40


def shown(name: str, held: Held) -> str:
    """What a value is, or what it says if that is short."""
    if is_secret(name):
        return HIDDEN
    value = held.value
    if held.plain and isinstance(value, (bool, int, float, complex, type(None))):
        return _number(value) if isinstance(value, (int, float)) and type(value) is not bool else str(value)
    if held.plain and isinstance(value, str):
        text = repr(redacted(value))
        return text if len(text) <= _TEXT else f"{text[:_TEXT]}… ({len(value)} characters)"
    array = inert.array_of(value)
    if array is not None:
        return f"array of {'×'.join(map(str, array.shape))} {_row(_flat(array))}".rstrip()
    row = numbers(value)
    if row is not None and len(row) > 1:
        return f"{held.kind} of {len(row)} {_row(row)}"
    size = f" ({words.size(held.size)})" if held.size else ""
    if isinstance(value, (list, tuple, dict, set, frozenset, bytes)):
        return f"{held.kind} of {len(value)}{size}"
    return f"{held.kind}{size}"


def is_secret(name: str) -> bool:
    """By what it is called, alone or inside of another value."""
    last = name.rpartition(".")[2]
    return bool(redacted({last: "?"})[last] == HIDDEN)


def change(before: Held, after: Held) -> str:
    """By how much a number has changed; of arrays of the same shape the mean of what was added."""
    old, new = _one(before), _one(after)
    if old is None or new is None:
        grown = after.size - before.size
        return "" if not grown else f"{'+' if grown > 0 else '-'}{words.size(abs(grown))}"
    if not old or not math.isfinite(old) or not math.isfinite(new):
        return f"{_number(new - old)}" if new < old else f"+{_number(new - old)}"
    return f"{100 * (new - old) / abs(old):+.3g} %"


def numbers(value: Any) -> list[float] | None:
    """A row of numbers; None if it is anything else."""
    if type(value) not in (list, tuple) or not value:
        return None
    fit = all(type(item) in (int, float) and abs(item) < 1e300 for item in value if item == item)
    return [float(item) for item in value] if fit else None


def picture(row: Sequence[float] | None) -> str:
    """Bars between the lowest and the highest; of a long row each stands for the mean of several."""
    if not row:
        return ""
    step = max(1.0, len(row) / _WIDTH)
    edges = [round(i * step) for i in range(min(len(row), _WIDTH) + 1)]
    pieces = [[n for n in row[a:b] if math.isfinite(n)] for a, b in pairwise(edges)]
    means = [sum(piece) / len(piece) if piece else None for piece in pieces]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _BARS[round((mean - low) * scale)] for mean in means)


def _row(row: list[float] | None) -> str:
    if not row:
        return ""
    ends = f"{_number(row[0])} … {_number(row[-1])}" if row[0] != row[-1] else f"{_number(row[0])}"
    return f"{picture(row)} {ends}"


def _flat(array: inert.Array) -> list[float] | None:
    return [float(item) for item in array.flat()] if array.count <= inert.ELEMENTS else None


def _one(held: Held) -> float | None:
    value = held.value
    return float(value) if held.plain and type(value) in (int, float) and abs(value) < 1e300 else None


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) and abs(value) < 10**9 else f"{float(value):.6g}"
