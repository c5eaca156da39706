"""graflow_ckpt: workflows and task queues in which the checkpoint comes first.

Tasks are decorated functions joined by `>>` and `|`. Kill the process at any moment, run the
same command again, and it goes on from its newest durable state.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graflow_ckpt.checkpoint.manager import CheckpointManager, load
    from graflow_ckpt.checkpoint.model import CheckpointMetadata
    from graflow_ckpt.checkpoint.retention import (
        BestOf,
        DeleteOnSuccess,
        KeepEvery,
        KeepFor,
        KeepLast,
        KeepWithin,
        LastSuccessful,
        OfAll,
    )
    from graflow_ckpt.core.errors import GraflowError
    from graflow_ckpt.core.events import Event
    from graflow_ckpt.core.facts import TaskSpec
    from graflow_ckpt.core.graph import TaskGraph
    from graflow_ckpt.core.policy import Budget, EveryN, EverySeconds, EveryTask, OnRequest, WhenIdle
    from graflow_ckpt.core.task import All, AtLeast, Backoff, BestEffort
    from graflow_ckpt.engine.body.task_context import PendingCheckpoint, TaskExecutionContext
    from graflow_ckpt.engine.context import ExecutionContext
    from graflow_ckpt.engine.engine import WorkflowEngine
    from graflow_ckpt.frontends.door import connect
    from graflow_ckpt.frontends.dsl import Workflow, task, workflow
    from graflow_ckpt.frontends.expressions import group
    from graflow_ckpt.sessions.views import InMemoryTaskQueue, MemoryChannel, RedisChannel, RedisTaskQueue

_HOMES = {
    "All": "core.task",
    "AtLeast": "core.task",
    "Backoff": "core.task",
    "BestEffort": "core.task",
    "BestOf": "checkpoint.retention",
    "Budget": "core.policy",
    "CheckpointManager": "checkpoint.manager",
    "CheckpointMetadata": "checkpoint.model",
    "DeleteOnSuccess": "checkpoint.retention",
    "Event": "core.events",
    "EveryN": "core.policy",
    "EverySeconds": "core.policy",
    "EveryTask": "core.policy",
    "ExecutionContext": "engine.context",
    "GraflowError": "core.errors",
    "InMemoryTaskQueue": "sessions.views",
    "KeepEvery": "checkpoint.retention",
    "KeepFor": "checkpoint.retention",
    "KeepLast": "checkpoint.retention",
    "KeepWithin": "checkpoint.retention",
    "LastSuccessful": "checkpoint.retention",
    "MemoryChannel": "sessions.views",
    "OfAll": "checkpoint.retention",
    "OnRequest": "core.policy",
    "PendingCheckpoint": "engine.body.task_context",
    "RedisChannel": "sessions.views",
    "RedisTaskQueue": "sessions.views",
    "TaskExecutionContext": "engine.body.task_context",
    "TaskGraph": "core.graph",
    "TaskSpec": "core.facts",
    "WhenIdle": "core.policy",
    "Workflow": "frontends.dsl",
    "WorkflowEngine": "engine.engine",
    "connect": "frontends.door",
    "group": "frontends.expressions",
    "load": "checkpoint.manager",
    "task": "frontends.dsl",
    "workflow": "frontends.dsl",
}

__all__ = [
    "All", "AtLeast", "Backoff", "BestEffort", "BestOf", "Budget", "CheckpointManager", "CheckpointMetadata",
    "DeleteOnSuccess", "Event", "EveryN", "EverySeconds", "EveryTask", "ExecutionContext", "GraflowError",
    "InMemoryTaskQueue", "KeepEvery", "KeepFor", "KeepLast", "KeepWithin", "LastSuccessful", "MemoryChannel",
    "OfAll", "OnRequest", "PendingCheckpoint", "RedisChannel", "RedisTaskQueue", "TaskExecutionContext",
    "TaskGraph", "TaskSpec", "WhenIdle", "Workflow", "WorkflowEngine", "__version__", "connect", "group",
    "load", "task", "workflow",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return what a shell completes."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'graflow_ckpt' has no attribute {name!r}")
    value = getattr(import_module(f"graflow_ckpt.{home}"), name)
    globals()[name] = value
    return value
