"""What a figure is held against: at most or at least, alone or beside a floor.

A bar turns the values of a case (seconds, bytes or bare numbers, subject and floor by pairs) into the values
that are judged by their median. Rates are kept as seconds per operation and only shown as operations per
second, so that the same values do for every bar. Not here: how values are measured (harness.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0, "": 1.0}
RATES = {"/s", "×"}  # shown as 1 / value: operations per second, how many times as fast

# In a smoke run sizes and repetitions are too small to judge by; only what is off by this much is a failure.
GROSS = 5.0


@dataclass(frozen=True)
class Ratio:
    """The median of subject / floor over the pairs is at most `limit`."""

    limit: float

    def values(self, subject: Sequence[float], floor: Sequence[float]) -> list[float]:
        return [s / f for s, f in zip(subject, floor, strict=True)]

    def text(self, unit: str) -> str:
        return f"≤ {self.limit:g} × floor"


@dataclass(frozen=True)
class AtMost:
    """The median of the subject alone is at most `limit`, in the unit of the case. A floor is only shown."""

    limit: float
    unit: str

    def values(self, subject: Sequence[float], floor: Sequence[float]) -> list[float]:
        return [s / UNITS[self.unit] for s in subject]

    def text(self, unit: str) -> str:
        return f"≤ {self.limit:g} {self.unit}"


@dataclass(frozen=True)
class Extra:
    """The median of subject − floor over the pairs is at most `limit`."""

    limit: float
    unit: str

    def values(self, subject: Sequence[float], floor: Sequence[float]) -> list[float]:
        return [(s - f) / UNITS[self.unit] for s, f in zip(subject, floor, strict=True)]

    def text(self, unit: str) -> str:
        return f"≤ floor + {self.limit:g} {self.unit}"


@dataclass(frozen=True)
class Within:
    """Subject and floor differ by at most the share `limit` of the floor: what has to stay the same."""

    limit: float

    def values(self, subject: Sequence[float], floor: Sequence[float]) -> list[float]:
        return [abs(s / f - 1) for s, f in zip(subject, floor, strict=True)]

    def text(self, unit: str) -> str:
        return f"floor ± {self.limit:.1%}"


@dataclass(frozen=True)
class Faster:
    """The median of floor / subject over the pairs is at least `limit`: that many times the floor's rate."""

    limit: float

    def values(self, subject: Sequence[float], floor: Sequence[float]) -> list[float]:
        return [f / s for s, f in zip(subject, floor, strict=True)]

    def text(self, unit: str) -> str:
        return f"≥ {self.limit:g} × floor"


@dataclass(frozen=True)
class AtLeast:
    """The median rate of the subject alone is at least `limit`, in a unit of RATES. A floor is only shown."""

    limit: float
    unit: str

    def values(self, subject: Sequence[float], floor: Sequence[float]) -> list[float]:
        return [shown(s, self.unit) for s in subject]

    def text(self, unit: str) -> str:
        return f"≥ {number(self.limit)} {self.unit}"


Bar = Ratio | AtMost | Extra | Within | Faster | AtLeast


def met(bar: Bar, judged: Sequence[float], slack: float = 1.0) -> bool:
    """The median of what is judged is on the right side of the bar; `slack` moves the bar by that factor."""
    median = statistics.median(judged)
    if isinstance(bar, Faster | AtLeast):
        return median >= bar.limit / slack
    return median <= bar.limit * slack


# --- numbers for readers -------------------------------------------------------------------------


def shown(value: float, unit: str) -> float:
    return 1 / value if unit in RATES else value / UNITS[unit]


def spread(values: Sequence[float], unit: str) -> str:
    """Median and range: `12.34 µs [12.01 … 13.12]`."""
    if not values:
        return ""
    scaled = [shown(value, unit) for value in values]
    low, middle, high = map(number, (min(scaled), statistics.median(scaled), max(scaled)))
    return f"{middle} {unit} [{low} … {high}]".replace("  ", " ")


def number(value: float) -> str:
    """Four digits that mean something, never an exponent where a reader compares columns."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
