"""Names that a session in Redis can have: queues, tasks, priorities."""

from __future__ import annotations

import re

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState

_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_CONTROL = re.compile(r"[\x00-\x1f]")
PRIORITIES = 2**15
"""Priorities lie between this and its negative: order within one has to fit beside them."""


def check_queue(queue: str) -> str:
    if not _QUEUE.match(queue):
        raise GraphError(
            f"{queue!r} is not a queue name.",
            hint="Use 1 to 64 letters, digits, '_', '.' or '-'.",
            queue=queue,
        )
    return queue


def check_names(graph: TaskGraph) -> None:
    """Refuse what the tables of a session cannot hold."""
    for name, route in graph.routes.items():
        if _CONTROL.search(name):
            raise GraphError(f"The task id {name!r} has control characters in it.", task=name)
        check_queue(route.options.queue)
        if not -PRIORITIES < route.options.priority < PRIORITIES:
            raise GraphError(
                f"Task {name!r} has priority {route.options.priority}.",
                hint=f"On a fleet priorities are between -{PRIORITIES} and {PRIORITIES}.",
                task=name,
            )


def check_specs(graph: TaskGraph, state: SessionState) -> None:
    """The same of what was scheduled elsewhere."""
    check_names(graph)
    for spec in state.specs.values():
        check_queue(spec.queue)
        if not -PRIORITIES < spec.priority < PRIORITIES:
            raise GraphError(
                f"A spec of task {spec.task_id!r} has priority {spec.priority}.",
                hint=f"In Redis priorities are between -{PRIORITIES} and {PRIORITIES}.",
                task=spec.task_id,
            )
