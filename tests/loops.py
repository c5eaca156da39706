"""A workflow of one task that comes round, and the cuts that it has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graflow_ckpt import CheckpointManager, Workflow, task, workflow

LONG = 20.0  # seconds: only a hang takes so long


def loop(
    steps: int,
    body: Callable[[Any], None] = lambda context: None,
    *,
    make: Callable[..., Workflow] = workflow,
    durability: str = "checkpoint",
    **options: Any,
) -> Workflow:
    """A workflow of one task that comes round `steps` times; nothing is saved that is not asked for."""
    with make("w", session_id="s", durability=durability, **options) as flow:

        @task(inject_context=True)
        def turn(context) -> int:
            body(context)
            if context.cycle + 1 < steps:
                context.next_iteration()
            return context.cycle

    return flow


def cuts(cause: str = "policy") -> list[int]:
    """The steps at which there are cuts, oldest first."""
    found = CheckpointManager.list_checkpoints("s")
    return [metadata.steps for metadata in reversed(found) if metadata.cause == cause]
