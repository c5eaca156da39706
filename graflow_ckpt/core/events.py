"""Events: what observers are told, after the commit, with no way to change anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "session_started",
    "session_finished",  # it had ended before: nothing runs
    "session_ended",
    "task_started",
    "task_ended",
    "task_progress",
    "task_late",
    "checkpoint_saved",
    "checkpoint_failed",
    "session_went_back",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `facts` hold ids, counts and durations, never values."""

    kind: Kind
    session: str
    time: float
    step: int
    task: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


Observer = Callable[[Event], None]
