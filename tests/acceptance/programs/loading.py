"""A program with a data loader: a forked child that sleeps on when its parent is killed."""

from __future__ import annotations

import os
from typing import Any

from graflow_ckpt import EveryN, task, workflow
from tests.acceptance.programs.journalist import begins, ended, final_state, note

COMMITS_AT_ONCE = True
FOLLOWS: dict[str, set[str]] = {"end": {"work"}}


def start_loader() -> None:
    """It waits for its end: nobody ever writes to the pipe."""
    if os.fork():
        return
    try:
        note(f"loader {os.getpid()} 0")
        waits, _ = os.pipe()
        os.read(waits, 1)
    finally:
        os._exit(0)


def main(durability: Any) -> dict[str, Any]:
    with workflow(
        "loading", session_id="loading", durability=durability, checkpoint=EveryN(2), observers=(ended,)
    ) as flow:

        @task(inject_context=True)
        def work(context: Any) -> int:
            begins(context)
            if context.cycle == 1:
                start_loader()
            context.channel.append("done", context.cycle)
            if context.cycle < 5:
                context.next_iteration()
            return int(context.cycle)

        @task(inject_context=True)
        def end(context: Any, work: int) -> int:
            begins(context)
            return work * 2

        work >> end
        flow.execute("work")
    return final_state(flow)
