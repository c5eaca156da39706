"""How many coroutines does a session have under way without any setting?

Method: wall time of `execute()` on 1,000 tasks, each `async def` and asleep for 0.2 s; durability="none".
Unit: s. The floor: `asyncio.gather` of the same coroutines.
A regression: coroutines that count for the bound of threads, or a commit each before the next one is claimed.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.harness import AtMost, Case, Run
from benchmarks.programs import place
from graflow_ckpt import task, workflow

NAME = "coroutines"
NAP = 0.2


async def nap() -> None:
    await asyncio.sleep(NAP)


def ours(run: Run) -> None:
    first = task(id="n0")(nap)
    with workflow("coroutines", durability="none", store=place(run)) as flow:
        flow.add(first, *(first.bind(id=f"n{n}") for n in range(1, run.size(1_000, smoke=100))))
        with run.timed():
            flow.execute()


def gathered(run: Run) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(nap() for _ in range(run.size(1_000, smoke=100))))

    began = perf_counter()
    asyncio.run(all_of_them())
    run.report(perf_counter() - began)


CASES = [Case("1,000 coroutines that sleep 0.2 s", ours, gathered, AtMost(1, "s"), unit="s")]
