"""What does a task cost that is made at run time, if ten thousand of them are made?

Method: one task makes them all with `next_task`, each before a join; or each of a chain makes the next one.
In this process (durability="none") by its CPU time, and in Redis with one worker by wall time, from `submit`
to the end.
Unit: µs per task made. The floor of 10,000 is 1,000 of them in the same run.
A regression: whatever is read, copied or prepared again for all tasks that are there when one more is made.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any, Literal

from benchmarks.fleet_ours import Ours
from benchmarks.fleet_runs import up
from benchmarks.harness import Case, Ratio, Run
from benchmarks.programs import noop, place
from graflow_ckpt import task, workflow

NAME = "made"
FEW, MANY = 1_000, 10_000


def fan(count: int, **options: Any) -> Any:
    made = task(id="made")(noop)

    @task(inject_context=True)
    def root(context: Any) -> None:
        for n in range(count):
            context.next_task(made.bind(id=f"made{n}"), before="join")

    with workflow("made", **options) as flow:
        _ = root >> task(id="join")(noop)
    return flow


def chain(count: int, **options: Any) -> Any:
    def body(context: Any) -> None:
        following = int(context.task_id[4:]) + 1
        if following < count:
            context.next_task(link.bind(id=f"link{following}"))

    link = task(id="link0", inject_context=True)(body)
    with workflow("made", **options) as flow:
        flow.add(link)
    return flow


def here(shape: Any, full: int, run: Run) -> None:
    count = run.size(full, smoke=full // 10)
    flow = shape(count, durability="none", store=place(run))
    with run.timed(per=count):
        flow.execute()


class InRedis:
    """Whichever side of a pair comes first runs both on one server; the other one takes its own figure."""

    def __init__(self) -> None:
        self.took: dict[int, float] = {}

    def __call__(self, shape: Any, full: int, run: Run) -> None:
        if full not in self.took:
            with up(run, Ours, together=True) as (contender, _):
                self.took = {size: self.each(shape, size, run, contender.url) for size in (FEW, MANY)}
        run.report(self.took.pop(full))

    def each(self, shape: Any, full: int, run: Run, url: str) -> float:
        count = run.size(full, smoke=full // 10)
        flow = shape(count)
        began = perf_counter()
        status = flow.submit(url).wait(120)
        took = perf_counter() - began
        assert status.status == "completed", status
        return took / count


def of(side: Any, shape: Any, count: int) -> Any:
    found: Any = partial(side, shape, count)
    found.__name__ = f"{shape.__name__} of {count}"
    return found


SHAPES: list[tuple[str, Any, Any, Literal["cpu", "wall"]]] = [
    ("made before a join, in process", here, fan, "cpu"),
    ("a chain, in process", here, chain, "cpu"),
    ("made before a join, in Redis", InRedis(), fan, "wall"),
    ("a chain, in Redis", InRedis(), chain, "wall"),
]

CASES = [
    Case(
        f"{name}, each of {MANY:,} / of {FEW:,}",
        of(side, shape, MANY),
        of(side, shape, FEW),
        Ratio(1.5),
        unit="µs",
        clock=clock,
    )
    for name, side, shape, clock in SHAPES
]
