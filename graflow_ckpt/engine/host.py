"""What a task context can ask of the run that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graflow_ckpt import __version__
from graflow_ckpt.checkpoint.model import CheckpointMetadata, now_iso
from graflow_ckpt.checkpoint.program import pack_task
from graflow_ckpt.checkpoint.snapshot import BACKEND
from graflow_ckpt.core.facts import Cell, Live
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.run import Run
from graflow_ckpt.engine.task_context import PendingCheckpoint, made_differently, same_task
from graflow_ckpt.stores.places import path_at


class RunHost:
    """A run, as seen from its tasks."""

    execution_context: ExecutionContext | None

    def __init__(self, context: ExecutionContext, run: Run) -> None:
        self.execution_context = self._context = context
        self.session_id = context.session_id
        run_number = context.state.run
        self.execution = self.session_id if run_number == 1 else f"{self.session_id}#{run_number}"
        self._run = run
        self._graph = context.graph

    def task_of(self, name: str) -> Task | None:
        node = self._graph.nodes.get(name)
        return node if isinstance(node, Task) else None

    def is_made(self, name: str) -> bool:
        return name in self._graph.made

    def is_join(self, name: str) -> bool:
        route = self._graph.routes.get(name)
        return route is not None and route.waits

    def successors_of(self, name: str) -> Sequence[str]:
        return self._graph.routes[name].forward

    def progress(self, task: str, done: float, total: float | None) -> None:
        self._run.announcer.emit("task_progress", task, done=done, total=total)

    def reserve(self, task: str, metadata: dict[str, Any], storage: str | None = None) -> PendingCheckpoint:
        """A handle whose path is known before the checkpoint is there."""
        context = self._context
        path = context.home.reserve_path(context.steps + 1)
        if storage is not None:
            path = path_at(storage, context.home.store, path)
        prepared = CheckpointMetadata(
            "", self.session_id, now_iso(), context.steps + 1, context.start_node, dict(BACKEND), metadata,
            path=path, workflow=context.settings.workflow, library=__version__,
        )  # fmt: skip
        return PendingCheckpoint(path, prepared)

    def code_of(self, task: Task, spawner: str, before: tuple[str, ...]) -> Cell:
        """A task made at run time, as the session keeps it."""
        if self._run.settings.durability == "none":
            record: Cell = Live((task, spawner, before))
        else:
            record = pack_task(task, spawner, before)
        state = self._context.state
        known = state.tasks.get(task.name)
        differs = known is not None and not same_task(known, record)
        if differs and task.name in [spec.task_id for spec in list(state.specs.values())]:
            raise made_differently(task.name)  # what is pending would run with what is new
        return record

    @property
    def stopping(self) -> bool:
        return self._run.stopping
