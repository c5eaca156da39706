"""Does a long loop get slower, or its checkpoint larger?

Method: one task runs 100,000 times by `next_iteration`, reads and sets a channel value each time, and asks
for a checkpoint after 1,000 and after 100,000 steps (and one before, so that both have a parent). Subject and
floor are two halves of the same run: the median CPU time of the steps 99,000 to 100,000 against that of the
steps 1,000 to 2,000, and the bytes of the last checkpoint (all three files) against those of the first.
Unit: µs and B.
A regression: anything that is kept per iteration, or looked through per iteration.
"""

from __future__ import annotations

import os
from itertools import pairwise
from statistics import median
from time import process_time
from typing import Any, NamedTuple

from benchmarks.harness import Case, Ratio, Run, Within
from benchmarks.programs import place
from graflow_ckpt import task, workflow

NAME = "loop"


class Halves(NamedTuple):
    early: float
    late: float
    first: float
    last: float


def loop(run: Run) -> Halves:
    steps = run.size(100_000, smoke=2_000)
    window = steps // 100
    marks: list[float] = []
    paths: list[str] = []

    @task(inject_context=True)
    def step(context: Any) -> None:
        marks.append(process_time())
        channel = context.get_channel()
        number = channel.get("number", 1)
        channel.set("number", number + 1)
        if number in (window // 2, window, steps):
            paths.append(context.checkpoint().path)
        if number <= steps:  # so that the last checkpoint too has a step pending
            context.next_iteration()

    with workflow("loop", "loop", durability="checkpoint", store=place(run)) as flow:
        flow.add(step)
        flow.execute(step)
    took = [after - before for before, after in pairwise(marks)]
    first, last = map(trio_size, paths[1:])
    return Halves(median(took[window : 2 * window]), median(took[-window:]), first, last)


def trio_size(path: str) -> float:
    base = path.removesuffix(".pkl")
    return sum(os.path.getsize(f"{base}.{part}") for part in ("pkl", "state.json", "meta.json"))


class Pairs:
    """Whichever side of a pair comes first runs the loop; the other one takes its half of the same run."""

    def __init__(self) -> None:
        self.left: dict[str, float] = {}

    def side(self, mine: str, other: str) -> Any:
        def side(run: Run) -> None:
            if mine not in self.left:
                self.left = loop(run)._asdict()
                run.report(self.left.pop(mine))
            else:
                run.report(self.left.pop(mine))
                self.left = {}

        side.__name__ = f"{mine} (beside {other})"
        return side


time, size = Pairs(), Pairs()

CASES = [
    Case(
        "late step / early step",
        time.side("late", "early"),
        time.side("early", "late"),
        Ratio(1.15),
        unit="µs",
    ),
    Case(
        "late checkpoint / early one",
        size.side("last", "first"),
        size.side("first", "last"),
        Within(0.01),
        unit="B",
    ),
]
