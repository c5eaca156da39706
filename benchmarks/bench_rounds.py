"""What does a round of `context.rounds` cost?

Method: wall time of `execute`. A loop of 2,000 rounds with a state of 1 KB (a dict, one number of which
changes) beside the same work as steps of `next_iteration`, same durability, in turns; and a loop whose
model of 64 MB changes in each round of 0.5 s beside a plain `for` in a session without any durability.
The floor is what stands beside: nobody pays less for a step that is kept. Unit: µs and ms per round.
A regression: a second sync for each round, a copy of large state at each, anything that is kept per round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy

from benchmarks.harness import Case, Ratio, Run
from benchmarks.programs import place
from graflow_ckpt import task, workflow
from graflow_ckpt.engine.settings import Durability

NAME = "rounds"

NUMBERS = 100  # 1 KB of state


def state() -> dict[str, Any]:
    return {"step": 0} | {f"n{number}": float(number) for number in range(NUMBERS)}


def small_rounds(durability: Durability) -> Callable[[Run], None]:
    def side(run: Run) -> None:
        count = run.size(2_000, smoke=50)

        @task(inject_context=True)
        def loop(context: Any) -> None:
            values = state()
            for number in context.rounds(range(count), state={"values": values}):
                values["step"] = number

        with workflow("loop", "loop", durability=durability, store=place(run)) as flow:
            flow.add(loop)
            with run.timed(per=count):
                flow.execute()

    return side


def small_steps(durability: Durability) -> Callable[[Run], None]:
    def side(run: Run) -> None:
        count = run.size(2_000, smoke=50)

        @task(inject_context=True)
        def loop(context: Any) -> None:
            values = context.get_channel().get("values", default=None)
            if values is None:
                values = state()
                context.get_channel().set("values", values)
            values["step"] = context.cycle
            if context.cycle + 1 < count:
                context.next_iteration()

        with workflow("loop", "loop", durability=durability, store=place(run)) as flow:
            flow.add(loop)
            with run.timed(per=count):
                flow.execute()

    return side


class Model:
    """64 MB that are changed in place."""

    def __init__(self, size: int) -> None:
        self.array = numpy.zeros(size)

    def state_dict(self) -> dict[str, Any]:
        return {"array": self.array}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        self.array[:] = found["array"]


def large_model(durability: Durability, *, plain: bool = False) -> Callable[[Run], None]:
    def side(run: Run) -> None:
        rounds = run.size(60, smoke=3)

        @task(inject_context=True)
        def train(context: Any) -> None:
            model = Model(run.size(8_000_000, smoke=300_000))
            epochs: Iterable[int] = range(rounds)
            if not plain:
                epochs = context.rounds(epochs, state={"model": model})
            for _ in epochs:
                until = time.perf_counter() + run.size(500, smoke=20) / 1000
                while time.perf_counter() < until:
                    model.array[:100_000] += 1.0

        with workflow("train", "train", durability=durability, store=place(run)) as flow:
            flow.add(train)
            with run.timed(per=rounds):
                flow.execute()

    return side


CASES = [
    Case(
        "a round of 1 KB, journal / a step",
        small_rounds("journal"),
        small_steps("journal"),
        Ratio(1.3),
        unit="µs",
    ),
    Case("a round of 1 KB, auto / a step", small_rounds("auto"), small_steps("auto"), Ratio(1.3), unit="µs"),
    Case("a round of 1 KB, none / a step", small_rounds("none"), small_steps("none"), None, unit="µs"),
    Case(
        "64 MB of state, 0.5 s a round, auto / a plain loop",
        large_model("auto"),
        large_model("none", plain=True),
        Ratio(1.08),
    ),
]
