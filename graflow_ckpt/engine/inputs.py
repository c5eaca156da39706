"""The caller's channel and cycle counts; and inputs: what is set before a session has started."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint.codec import check_storable
from graflow_ckpt.checkpoint.pickles import live_digest
from graflow_ckpt.core.errors import InputsChanged
from graflow_ckpt.core.facts import Cell, Live
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.attempt import from_cells
from graflow_ckpt.sessions.views import MemoryChannel, RedisChannel, Tables, ValueChannel

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext


class CycleController:
    """How often each task has come round."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    @property
    def cycle_counts(self) -> dict[str, int]:
        return {task: n - 1 for task, n in self._state.counts.items() if n > 1}

    def get_count(self, task_id: str) -> int:
        return max(0, self._state.counts.get(task_id, 0) - 1)


class Inputs(ValueChannel):
    """The session's values for its caller; what is set before `execute` is an input."""

    def __init__(self, context: ExecutionContext, session: Tables) -> None:
        super().__init__(session, context.to_cell, from_cells)
        self._context = context

    def set(self, key: str, value: Any) -> None:
        """Committed at once; on a resumed session an equal input is dropped, another refused."""
        if not (self._context.goes_on and self._repeats(key, value)):
            super().set(key, value)

    def _repeats(self, key: str, value: Any) -> bool:
        """Whether a write before `execute` repeats an input of a session that goes on; another is refused."""
        known = self._context.home.inputs.get(key)
        if known is None or known != digest_of(check_storable(key, value)):
            raise InputsChanged(
                f"Session {self._context.session_id} was started with "
                f"{'another' if known else 'no'} input {key!r}.",
                hint="Give the same inputs, none at all, or use a new session id.",
                session=self._context.session_id,
                name=key,
            )
        return True

    def append(self, key: str, item: Any) -> None:
        """Committed at once; on a resumed session refused before `execute`: it would be there twice."""
        if self._context.goes_on:
            raise InputsChanged(
                f"Session {self._context.session_id} goes on and appends to the input {key!r} again.",
                hint="Before execute, set() the whole list: an equal one is taken as the same input.",
                session=self._context.session_id,
                name=key,
            )
        super().append(key, item)


class Channel(Inputs, MemoryChannel):
    """Of a session in this process."""


class SharedChannel(Inputs, RedisChannel):
    """Of a session in Redis."""


def digest_of(cell: Cell) -> str:
    """Of an input: what a resumed session compares."""
    if isinstance(cell, Live):
        return live_digest(cell.value).hex()
    return hashlib.blake2b(cell, digest_size=16).hexdigest()
