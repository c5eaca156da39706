"""Events: what observers are told, after the commit, with no way to change anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
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
    "checkpoint_restored",
    "journal_damaged",  # with until_damage: what stands before the damage counts, the rest is lost
    "restore_failed",  # of one checkpoint that was passed over, or of all: then path is ""
    "list_failed",  # retention could not read the store: old checkpoints stay
    "delete_failed",  # of one checkpoint that retention does not keep
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


class Tracer(ABC):
    """An observer that follows a session across processes: checkpoints keep the state of its trace."""

    @abstractmethod
    def __call__(self, event: Event, /) -> None: ...

    @abstractmethod
    def trace_context(self, session: str, /) -> Mapping[str, str]:
        """Return the W3C headers (`traceparent`, `tracestate`) of what runs; empty if none is recorded."""
