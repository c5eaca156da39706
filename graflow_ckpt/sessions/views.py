"""TaskQueue and Channel: two views of one session, under the names that users know.

They hold nothing themselves. A write through them is a transition of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from graflow_ckpt.core.arguments import no_name
from graflow_ckpt.core.facts import Cell, Claim, Op, TaskSpec
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.sessions.protocol import Found

# Encoding and decoding belong to the layer above; values are whatever users put in, hence Any.
ToCell = Callable[[str, Any], Cell]
FromCells = Callable[[str, Cell, tuple[Cell, ...]], Any]


class Tables(Protocol):
    """A session, as a view of it needs it."""

    @property
    def state(self) -> SessionState: ...

    def commit(self, ops: Sequence[Op]) -> list[Claim]: ...

    def read(self, name: str) -> Found | None: ...

    def names(self) -> list[str]: ...

    def still(self) -> AbstractContextManager[bool]: ...


class TaskQueue:
    """The specs that wait to run, in order."""

    def __init__(
        self,
        session: Tables,
        to_cell: ToCell = lambda name, data: data,
        from_cells: FromCells = lambda name, cell, items: cell,
    ) -> None:
        self._session = session
        self._to_cell = to_cell
        self._from_cells = from_cells

    def enqueue(self, spec: TaskSpec) -> bool:
        """Schedule one execution."""
        data = None if spec.task_data is None else self._to_cell("task_data", spec.task_data)
        op = (
            "enqueue", spec.task_id, data, spec.priority, spec.max_retries, spec.queue,
            spec.execution_strategy,
        )  # fmt: skip
        self._session.commit([op])
        return True

    def get_pending_task_specs(self) -> list[TaskSpec]:
        """Return the full specs of all that has still to run."""
        return [
            spec
            if spec.task_data is None
            else spec._replace(task_data=self._from_cells("task_data", spec.task_data, ()))
            for spec in self._pending()
        ]

    def get_pending_tasks(self) -> list[str]:
        """Return the ids of all that has still to run."""
        return [spec.task_id for spec in self._pending()]

    def _pending(self) -> list[TaskSpec]:
        with self._session.still():
            return self._session.state.pending()

    def size(self) -> int:
        return len(self._session.state.specs)

    def is_empty(self) -> bool:
        return not self._session.state.specs

    def __len__(self) -> int:
        return self.size()


class InMemoryTaskQueue(TaskQueue):
    """The queue of a session in this process."""


class RedisTaskQueue(TaskQueue):
    """The queue of a session in Redis: it persists by itself, and a resume finds it where it is."""


class ValueChannel:
    """Named values of a session, outside of a task: each `set` is committed at once."""

    def __init__(self, session: Tables, to_cell: ToCell, from_cells: FromCells) -> None:
        self._session = session
        self._to_cell = to_cell
        self._from_cells = from_cells

    def get(self, key: str, default: Any = None) -> Any:
        """Return the committed value; changing it in place changes nothing in the session if it is plain."""
        found = self._session.read(key)
        if found is None:
            return default
        return self._from_cells(key, found[0], found[2])

    def set(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise no_name(key)
        self._session.commit([("put", key, self._to_cell(key, value), -1)])

    def append(self, key: str, item: Any) -> None:
        if not isinstance(key, str):
            raise no_name(key)
        self._session.commit([("append", key, self._to_cell(key, item))])

    def keys(self) -> list[str]:
        return self._session.names()

    def __contains__(self, key: str) -> bool:
        return self._session.read(key) is not None


class MemoryChannel(ValueChannel):
    """The channel of a session in this process."""


class RedisChannel(ValueChannel):
    """The channel of a session in Redis: any process that knows the session's id sees the same values."""
