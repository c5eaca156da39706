"""A session that counts, one step for each line that it is told, and says each number when it was saved.

python -m tests.crash.fallback_program STORE [die]      die: when the first checkpoint was handed over
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from graflow_ckpt import Event, EveryTask, TaskExecutionContext, task, workflow
from graflow_ckpt.stores.files.store import LocalStore


def die(*_: Any) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returns to nobody")


def tell(event: Event) -> None:
    if event.kind == "checkpoint_saved":
        print(f"saved {event.step} {'synced' if event.facts['synced'] else 'accepted'}", flush=True)


def main() -> None:
    with workflow(
        "count", "s", durability="checkpoint", store=sys.argv[1], checkpoint=EveryTask(), observers=[tell]
    ) as flow:

        @task(inject_context=True)
        def step(context: TaskExecutionContext) -> None:
            word = sys.stdin.readline().strip()
            channel = context.get_channel()
            channel.append("words", word)
            if word != "end":
                context.next_iteration()

        if "die" in sys.argv:
            LocalStore.delete = die  # type: ignore[assignment,method-assign]
        print(f"from {flow.execution_context.steps}", flush=True)
        flow.execute()
        print(",".join(flow.get_channel().get("words")), flush=True)


if __name__ == "__main__":
    main()
