"""Names that a session in Redis can have: queues, tasks, priorities."""

from __future__ import annotations

import re

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState

_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
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
        check_spec(name, route.options.priority, route.options.queue)


def check_specs(graph: TaskGraph, state: SessionState) -> None:
    """Check the names of a graph, and of what was scheduled elsewhere."""
    check_names(graph)
    for spec in state.specs.values():
        check_spec(spec.task_id, spec.priority, spec.queue)


def check_spec(task: str, priority: int, queue: str) -> None:
    """Refuse what would break the records of others: they are divided by control characters."""
    if _CONTROL.search(task):
        raise GraphError(f"The task id {task!r} has control characters or lone surrogates in it.", task=task)
    if (priority, queue) in _sound:
        return
    check_queue(queue)
    if type(priority) is not int or not -PRIORITIES < priority < PRIORITIES:
        raise GraphError(
            f"Task {task!r} has priority {priority!r}.",
            hint=f"In Redis priorities are whole numbers between -{PRIORITIES} and {PRIORITIES}.",
            task=task,
        )
    if len(_sound) < _MANY:
        _sound.add((priority, queue))


def check_value(name: str) -> str:
    """Refuse a name that cannot be sent."""
    if not name.isascii() and _SURROGATE.search(name):
        raise GraphError(f"The name {name!r} of a value has lone surrogates in it.", name=name)
    return name


_sound: set[tuple[int, str]] = set()  # pairs that were looked at before
_MANY = 1000
