"""A group whose members change one live array in place, each its own slice, two rounds of it.

What is added twice shows: a cut that photographed half a member's work would end with other numbers.
"""

from __future__ import annotations

from typing import Any

import numpy

from graflow_ckpt import EveryTask, task, workflow
from tests.acceptance.programs.journalist import begins, ended, final_state

COMMITS_AT_ONCE = False  # a member's change is durable with the cut that follows when nothing is on loan
FOLLOWS = {
    "left": {"prepare"},
    "middle": {"prepare"},
    "right": {"prepare"},
    "total": {"left", "middle", "right"},
}


def main(durability: Any) -> dict[str, Any]:
    with workflow(
        "shared", session_id="shared", durability=durability, checkpoint=EveryTask(), max_parallel=3,
        observers=(ended,),
    ) as flow:  # fmt: skip

        @task(inject_context=True)
        def prepare(context: Any) -> None:
            begins(context)
            if context.cycle == 0:
                context.channel.set("shared", numpy.zeros(12))

        def member(context: Any, at: int) -> None:
            begins(context)
            array = context.channel.get("shared")
            for number in range(at * 4, at * 4 + 4):
                array[number] += (number + 1) * (context.cycle + 1)

        @task(inject_context=True)
        def left(context: Any) -> None:
            member(context, 0)

        @task(inject_context=True)
        def middle(context: Any) -> None:
            member(context, 1)

        @task(inject_context=True)
        def right(context: Any) -> None:
            member(context, 2)

        @task(inject_context=True)
        def total(context: Any) -> float:
            begins(context)
            context.channel.append("sums", float(context.channel.get("shared", readonly=True).sum()))
            if context.cycle == 0:
                context.next_task("prepare", goto=True)
            return float(context.cycle)

        prepare >> (left | middle | right) >> total
        flow.execute("prepare")
    return final_state(flow)
