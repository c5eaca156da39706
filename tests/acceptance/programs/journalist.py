"""What the programs share: a log of executions that no kill can take back, and the final state."""

from __future__ import annotations

import os
from typing import Any

from graflow_ckpt import Event, Workflow


def note(line: str) -> None:
    """One line, one write, at the end of a file of the current folder."""
    fd = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


def begins(context: Any) -> None:
    """The first line of every body."""
    note(f"start {context.task_id} {context.cycle}")


def ended(event: Event) -> None:
    """An observer: told after the commit."""
    if event.kind == "task_ended" and event.facts["outcome"] == "done":
        note(f"end {event.task} -")


def final_state(flow: Workflow) -> dict[str, Any]:
    """All that has to be equal, as JSON can hold it."""
    context, channel = flow.execution_context, flow.get_channel()
    return {
        "status": context.status,
        "steps": context.steps,
        "completed": sorted(context.completed_tasks),
        "cycles": context.cycle_counts,
        "values": {name: _plain(channel.get(name)) for name in sorted(channel.keys())},
    }


def _plain(value: Any) -> Any:
    return value.tobytes().hex() if type(value).__name__ == "ndarray" else repr(value)
