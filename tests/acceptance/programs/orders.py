"""An order goes from state to state by goto; a charge fails once and is tried again."""

from __future__ import annotations

from typing import Any

from graflow_ckpt import EveryN, task, workflow
from tests.acceptance.programs.journalist import begins, ended, final_state

FOLLOWS: dict[str, set[str]] = {}  # what starts only after what; the gotos are in the bodies
COMMITS_AT_ONCE = True


def main(durability: Any) -> dict[str, Any]:
    with workflow(
        "order", session_id="order", durability=durability, checkpoint=EveryN(2), observers=(ended,)
    ) as flow:

        @task(inject_context=True)
        def receive(context: Any) -> str:
            begins(context)
            context.channel.set("history", ["received"])
            context.next_task("check", goto=True)
            return "order 17"

        @task(inject_context=True)
        def check(context: Any) -> int:
            begins(context)
            context.channel.get("history").append(f"checked {context.cycle}")
            context.next_task("charge" if context.cycle else "correct", goto=True)
            return context.cycle

        @task(inject_context=True)
        def correct(context: Any) -> None:
            begins(context)
            context.channel.append("history", "corrected")
            context.checkpoint(metadata={"state": "corrected"})
            context.next_task("check", goto=True)

        @task(inject_context=True, max_retries=5)
        def charge(context: Any) -> None:
            begins(context)
            context.channel.append("history", "charged")
            if context.attempt == 1:
                raise ConnectionError("the bank is closed")
            context.next_task("ship", goto=True)

        @task(inject_context=True)
        def ship(context: Any, data: Any = None) -> str:
            begins(context)
            context.channel.append("history", f"shipped {data}")
            if context.cycle < 2:
                context.next_iteration(context.cycle)
            return "done"

        receive >> check >> charge >> ship
        flow.add(correct)
        flow.execute("receive")
    return final_state(flow)
