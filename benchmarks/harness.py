"""The frame of the benchmarks: a subject and its floor, measured in interleaved pairs in one run.

A benchmark file `bench_<name>.py` asks one question. Its docstring says the method, the unit, the floor and
what would be a regression; it has a `NAME` and its `CASES`. A case is two functions and a bar; each gets a
`Run`, prepares what it needs, and counts only what it does under `run.timed()`:

    def subject(run: Run) -> None:
        steps = run.size(20_000, smoke=500)
        session = prepare(run.folder, steps)
        with run.timed(per=steps):
            session.execute()

    CASES = [Case("a journaled task", subject, floor, Ratio(2.0), unit="µs")]

Promises: the two sides of a pair run one right after the other, and take turns in going first, so that drift
of the machine hits both; what is judged is the median over all pairs, and the spread is shown beside it.
Every call has a fresh folder on the same file system. Not here: which benchmarks there are, and results
(run.py).
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Clock = Literal["wall", "cpu", "children"]

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0, "": 1.0}

# In a smoke run sizes and repetitions are too small to judge by; only what is off by this much is a failure.
GROSS = 5.0


# --- bars ----------------------------------------------------------------------------------------


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


Bar = Ratio | AtMost | Extra | Within


# --- measuring -----------------------------------------------------------------------------------


class Run:
    """One call of a subject or a floor: its folder, its sizes, and the clock it starts and stops.

    `timed()` around a block is the usual way; `start()` and `stop()` are for an end that falls in a callback.
    What no clock can tell (a size, a peak of memory, a child's own measurement) is handed to `report()`.
    """

    def __init__(self, folder: Path, clock: Clock, smoke: bool) -> None:
        self.folder = folder
        self.smoke = smoke
        self.value: float | None = None
        self._clock = clock
        self._began: float | None = None

    def size(self, full: int, *, smoke: int) -> int:
        """How much to do: the full amount, or what fits into a smoke run."""
        return smoke if self.smoke else full

    @contextmanager
    def timed(self, per: int = 1) -> Iterator[None]:
        """Counts the block; `per` operations share what it took."""
        self.start()
        yield
        self.stop(per)

    def start(self) -> None:
        gc.collect()  # what was prepared is not paid for by what is measured
        self._began = self._now()

    def stop(self, per: int = 1) -> None:
        now = self._now()
        if self._began is None:
            raise RuntimeError("the clock was stopped before it was started")
        self.report((now - self._began) / per)

    def report(self, value: float) -> None:
        """A value in seconds, bytes or as a bare number. One call has one value."""
        if self.value is not None:
            raise RuntimeError("this call has reported a value already")
        self.value = value

    def _now(self) -> float:
        match self._clock:
            case "wall":
                return time.perf_counter()
            case "cpu":
                return time.process_time()
            case "children":
                times = os.times()
                return times.children_user + times.children_system


Side = Callable[[Run], None]


@dataclass(frozen=True)
class Case:
    """One line of the table.

    `unit` is for showing, values are kept in seconds or bytes. `clock`: "wall"; "cpu" is the CPU time of this
    process, all threads; "children" that of processes which ended and were waited for (in ticks of 10 ms).
    `disk=True` lets the disk come to rest before each call, so that no side pays for the other's dirty pages.
    """

    name: str
    subject: Side
    floor: Side | None
    bar: Bar | None
    unit: str = "ms"
    clock: Clock = "wall"
    repetitions: int = 7
    disk: bool = False

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"case {self.name!r}: unit {self.unit!r} is none of {', '.join(UNITS)}")
        if self.repetitions < 7:
            raise ValueError(
                f"case {self.name!r}: {self.repetitions} repetitions; a median here is of 7 or more"
            )
        if self.floor is None and not isinstance(self.bar, AtMost | None):
            raise ValueError(f"case {self.name!r}: {self.bar} needs a floor")


@dataclass(frozen=True)
class Figure:
    """What a case came to. `judged` are the values that the bar is held against, one of each pair."""

    case: Case
    subject: list[float]
    floor: list[float]
    judged: list[float] = field(default_factory=list)
    smoke: bool = False

    @property
    def ok(self) -> bool:
        if self.case.bar is None:
            return True
        return statistics.median(self.judged) <= self.case.bar.limit * (GROSS if self.smoke else 1.0)

    def row(self) -> list[str]:
        """name, figure, floor, ratio, bar, ok: the columns of the table."""
        unit = self.case.unit
        ratios = Ratio(1).values(self.subject, self.floor) if self.floor and all(self.floor) else []
        verdict = "" if self.case.bar is None else ("smoke" if self.smoke else "ok") if self.ok else "MISSED"
        return [
            self.case.name,
            spread(self.subject, unit),
            spread(self.floor, unit),
            spread(ratios, ""),
            self.case.bar.text(unit) if self.case.bar else "",
            verdict,
        ]

    def record(self) -> dict[str, Any]:  # Any: JSON
        bar = self.case.bar
        return {
            "case": self.case.name,
            "unit": self.case.unit,
            "clock": self.case.clock,
            "pairs": len(self.subject),
            "subject": self.subject,
            "floor": self.floor,
            "bar": bar.text(self.case.unit) if bar else None,
            "judged": self.judged,
            "judged_median": statistics.median(self.judged) if self.judged else None,
            "ok": self.ok,
            "row": self.row(),
        }


def spread(values: Sequence[float], unit: str) -> str:
    """Median and range: `12.34 µs [12.01 … 13.12]`."""
    if not values:
        return ""
    scaled = [value / UNITS[unit] for value in values]
    low, middle, high = map(number, (min(scaled), statistics.median(scaled), max(scaled)))
    return f"{middle} {unit} [{low} … {high}]".replace("  ", " ")


def number(value: float) -> str:
    """Four digits that mean something, never an exponent where a reader compares columns."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def measure(case: Case, folder: Path, *, smoke: bool) -> Figure:
    """All pairs of a case, after one that is not counted (imports, caches, the first touch of the disk)."""
    subject: list[float] = []
    floor: list[float] = []
    pairs = 2 if smoke else case.repetitions
    for number in range(0 if smoke else -1, pairs):
        sides = [(case.subject, subject)] + ([(case.floor, floor)] if case.floor else [])
        for side, values in sides if number % 2 else reversed(sides):
            value = once(case, side, folder, smoke)
            if number >= 0:
                values.append(value)
    judged = case.bar.values(subject, floor) if case.bar else []
    return Figure(case, subject, floor, judged, smoke)


def once(case: Case, side: Side, folder: Path, smoke: bool) -> float:
    own = Path(tempfile.mkdtemp(dir=folder))
    if case.disk and not smoke:
        os.sync()
    run = Run(own, case.clock, smoke)
    try:
        side(run)
    finally:
        shutil.rmtree(own)
    if run.value is None:
        raise RuntimeError(
            f"case {case.name!r}: {side.__name__} measured nothing; use run.timed() or run.report()"
        )
    return run.value
