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

A `Contest` in place of a case has a subject and several rivals (peers, floors), all measured once a round.

Promises: the sides of a pair or a round run one right after the other, and take turns in going first, so that
drift of the machine hits all; what is judged is the median over all pairs, and the spread is shown beside it.
Every call has a fresh folder on the same file system. Not here: bars (bars.py), which benchmarks there are,
and results (run.py).
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

from benchmarks.bars import GROSS as GROSS
from benchmarks.bars import RATES, UNITS, met, shown, spread
from benchmarks.bars import AtLeast as AtLeast
from benchmarks.bars import AtMost as AtMost
from benchmarks.bars import Bar as Bar
from benchmarks.bars import Extra as Extra
from benchmarks.bars import Faster as Faster
from benchmarks.bars import Ratio as Ratio
from benchmarks.bars import Within as Within

Clock = Literal["wall", "cpu", "children"]

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
        if self.unit not in UNITS and self.unit not in RATES:
            known = ", ".join([*UNITS, *RATES])
            raise ValueError(f"case {self.name!r}: unit {self.unit!r} is none of {known}")
        if self.repetitions < 7:
            raise ValueError(
                f"case {self.name!r}: {self.repetitions} repetitions; a median here is of 7 or more"
            )
        if self.floor is None and not isinstance(self.bar, AtMost | AtLeast | None):
            raise ValueError(f"case {self.name!r}: {self.bar} needs a floor")


@dataclass(frozen=True)
class Rival:
    """Whom the subject of a contest is measured beside, and the bar that is held against the two."""

    name: str
    side: Side
    bar: Bar | None = None


@dataclass(frozen=True)
class Contest:
    """One subject and several rivals in the same rounds; a line of the table for each rival.

    For subjects and peers that take seconds: the subject is measured once a round instead of once for each
    rival, and a smoke run is one round. Always by the wall clock.
    """

    name: str
    subject: Side
    rivals: Sequence[Rival]
    unit: str = "/s"
    repetitions: int = 7

    @property
    def cases(self) -> list[Case]:
        return [
            Case(
                f"{self.name} · {rival.name}" if rival.name else self.name,
                self.subject, rival.side, rival.bar, unit=self.unit, repetitions=self.repetitions,
            )
            for rival in self.rivals
        ]  # fmt: skip

    def __post_init__(self) -> None:
        if not self.cases:  # which also looks at each
            raise ValueError(f"contest {self.name!r} has no rivals")


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
        if self.smoke:  # so slow a thing is slow in each pair; one of the two may have met a busy disk
            return any(met(self.case.bar, [value], GROSS) for value in self.judged)
        return met(self.case.bar, self.judged)

    def row(self) -> list[str]:
        """name, figure, floor, ratio, bar, ok: the columns of the table."""
        unit = self.case.unit
        pairs = zip(self.subject, self.floor, strict=True) if self.floor and all(self.floor) else []
        ratios = [shown(s, unit) / shown(f, unit) for s, f in pairs]
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


def figures(entry: Case | Contest, folder: Path, *, smoke: bool) -> list[Figure]:
    if isinstance(entry, Case):
        return [measure(entry, folder, smoke=smoke)]
    cases = entry.cases
    sides = [entry.subject, *(rival.side for rival in entry.rivals)]
    subject, *rivals = rounds(cases[0], sides, folder, smoke, least=1)
    return [figure(case, subject, floor, smoke) for case, floor in zip(cases, rivals, strict=True)]


def measure(case: Case, folder: Path, *, smoke: bool) -> Figure:
    sides = [case.subject, case.floor] if case.floor else [case.subject]
    subject, *floors = rounds(case, sides, folder, smoke, least=2)
    return figure(case, subject, floors[0] if floors else [], smoke)


def figure(case: Case, subject: list[float], floor: list[float], smoke: bool) -> Figure:
    return Figure(case, subject, floor, case.bar.values(subject, floor) if case.bar else [], smoke)


def rounds(case: Case, sides: Sequence[Side], folder: Path, smoke: bool, *, least: int) -> list[list[float]]:
    """The values of each side; a first round does not count (imports, caches, first touch of the disk)."""
    values: list[list[float]] = [[] for _ in sides]
    both = list(zip(sides, values, strict=True))
    for number in range(0 if smoke else -1, least if smoke else case.repetitions):
        for side, kept in both if number % 2 else reversed(both):
            value = once(case, side, folder, smoke)
            if number >= 0:
                kept.append(value)
    return values


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
