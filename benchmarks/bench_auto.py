"""What does durability by default cost a session with an id?

Method: wall time of `execute`, with durability="auto" beside "none" in turns: a chain of tasks that work for
1 ms and return a small result; and a loop whose model of 64 MB changes in each round of 0.5 s. Unit: ms per
task, ms per round. The floor: the same program without any durability. Where a sync of this disk takes more
than 0.2 ms, a sync for each task is added to the floor of the chain: nobody pays less for the same promise.
A regression: a second sync for each task, a large value that is pickled to find out whether it has changed,
saves that take more than their share of the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy

from benchmarks.harness import Case, Ratio, Run
from benchmarks.programs import chain, numbered, place
from graflow_ckpt import task, workflow
from graflow_ckpt.engine.settings import Durability

NAME = "auto"

WORK, ROUND = 0.001, 0.5
SYNC = 0.0002
"""Seconds that a sync may take before it counts as the machine's."""


def small_results(durability: Durability, *, syncs: bool = False) -> Callable[[Run], None]:
    def body() -> int:
        until = time.perf_counter() + WORK
        while time.perf_counter() < until:
            pass
        return 7

    def side(run: Run) -> None:
        count = run.size(1_000, smoke=20)
        with workflow("chain", "chain", durability=durability, store=place(run)) as flow:
            chain(numbered(count, body))
            with run.timed(per=count):
                flow.execute()
                if syncs:
                    slow_syncs(run, count)

    return side


def slow_syncs(run: Run, count: int) -> None:
    """A sync for each task, where the disk is slower than a task may notice."""
    file = os.open(run.folder / "synced", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(10):
            os.pwrite(file, b"x" * 300, 0)
            os.fdatasync(file)
        each = (time.perf_counter() - began) / 10
    finally:
        os.close(file)
    if each > SYNC:
        time.sleep(each * count)


def large_model(durability: Durability) -> Callable[[Run], None]:
    def side(run: Run) -> None:
        rounds = run.size(60, smoke=3)

        with workflow("train", "train", durability=durability, store=place(run)) as flow:

            @task(inject_context=True)
            def turn(context) -> None:  # type: ignore[no-untyped-def]
                channel = context.get_channel()
                model = channel.get("model", default=None)
                if model is None:
                    model = numpy.zeros(run.size(8_000_000, smoke=300_000))
                until = time.perf_counter() + run.size(500, smoke=20) / 1000
                while time.perf_counter() < until:
                    model[:100_000] += 1.0
                channel.set("model", model)
                if context.cycle + 1 < rounds:
                    context.next_iteration()

            flow.add(turn)
            with run.timed(per=rounds):
                flow.execute()

    return side


CASES = [
    Case(
        "a chain of tasks of 1 ms with small results",
        small_results("auto"),
        small_results("none", syncs=True),
        Ratio(1.2),
    ),
    Case(
        "a loop with a model of 64 MB, 0.5 s a round", large_model("auto"), large_model("none"), Ratio(1.08)
    ),
]
