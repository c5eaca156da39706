"""What can be read of a session, wherever its tables are: the same names for all."""

from __future__ import annotations

from typing import Any

from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.inputs import CycleController, Inputs


class Readable:
    """Facts and results; copies, so that whoever changes them changes nothing else."""

    _channel: Inputs

    @property
    def state(self) -> SessionState:
        raise NotImplementedError

    @property
    def start_node(self) -> str:
        return self.state.start_node

    @property
    def steps(self) -> int:
        return self.state.steps

    @property
    def max_steps(self) -> int | None:
        return self.state.max_steps

    @property
    def status(self) -> str:
        return self.state.status

    @property
    def completed_tasks(self) -> set[str]:
        return set(self.state.completed)

    @property
    def cycle_controller(self) -> CycleController:
        return CycleController(self.state)

    @property
    def cycle_counts(self) -> dict[str, int]:
        return self.cycle_controller.cycle_counts

    def get_next_task(self) -> str | None:
        """The task that would run next."""
        return next((spec.task_id for spec in self.state.pending()), None)

    # Any: whatever a task has returned.
    def get_result(self, task: str, default: Any = None) -> Any:
        """What a task returned when it last completed."""
        return self._channel.get(task + RESULT, default)

    def result(self) -> Any:
        """What the task that completed last returned."""
        last = next(reversed(self.state.completed), None)
        return None if last is None else self.get_result(last)
