"""How a session is to be run: one frozen value, checked where it is made."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal

from graflow_ckpt.checkpoint.allowance import MB
from graflow_ckpt.checkpoint.retention import DEFAULT, Retention
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.events import Observer
from graflow_ckpt.core.facts import Claim, Outcome
from graflow_ckpt.core.policy import OnRequest, Policy
from graflow_ckpt.engine.slowness import slow_after

Durability = Literal["checkpoint", "journal", "none"]
Resume = Literal["auto", "never", "must"]
OnFailure = Literal["pause", "continue", "rollback"]
OnSaveFailure = Literal["event", "fail"]
Changed = Literal["reuse", "rerun"]
Invoke = Callable[[Claim], Outcome]
Middleware = Callable[[Claim, Invoke], Outcome]

_CHOICES = {
    "durability": ("checkpoint", "journal", "none"),
    "resume": ("auto", "never", "must"),
    "on_failure": ("pause", "continue", "rollback"),
    "on_save_failure": ("event", "fail"),
    "changed": (None, "reuse", "rerun"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about a run that is neither the graph nor the session's state."""

    workflow: str = "workflow"
    durability: Durability = "checkpoint"
    resume: Resume = "auto"
    policy: Policy = field(default_factory=OnRequest)
    keep: Retention = DEFAULT
    on_failure: OnFailure = "pause"
    on_save_failure: OnSaveFailure = "event"
    max_checkpoint_size_mb: float | None = None  # of a million bytes each; None: no limit
    changed: Changed | None = None
    max_parallel: int | None = None
    rng: bool = True
    grace: float = 30.0
    unsafe_pickle: bool = False
    take_over: bool = False
    until_damage: bool = False  # of a damaged journal the records before the damage count
    in_doubt: tuple[tuple[str, str], ...] = ()  # answers for on_interrupted="ask"
    slow_save: float = field(default_factory=slow_after)  # seconds from which on a save is said to be slow
    options: tuple[tuple[str, str], ...] = ()  # as somebody typed them; checkpoints keep them for `resume`
    observers: tuple[Observer, ...] = ()
    middleware: tuple[Middleware, ...] = ()
    # New fields come last: a stored workflow has its settings in this order, and may lack the newest.
    program: str = ""  # the file that defines the workflow

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                words = ", ".join(repr(c) for c in choices if c is not None)
                raise GraphError(f"{name}={value!r} is none of {words}.", setting=name)
        if self.max_parallel is not None and self.max_parallel < 1:
            raise GraphError(f"max_parallel={self.max_parallel}: at least one task has to run.")

        if self.max_checkpoint_size_mb is not None and not self.max_checkpoint_size_mb > 0:
            raise GraphError(f"max_checkpoint_size_mb={self.max_checkpoint_size_mb}: more than 0, or None.")

    def __setstate__(self, state: list[object]) -> None:
        """Restore what a pickle holds; fields that are newer than the pickle get their defaults."""
        for known, value in zip(fields(self), state, strict=False):
            object.__setattr__(self, known.name, value)
        for known in fields(self)[len(state) :]:
            object.__setattr__(self, known.name, known.default)

    @property
    def size_limit(self) -> int | None:
        """In bytes."""
        return None if self.max_checkpoint_size_mb is None else int(self.max_checkpoint_size_mb * MB)

    @property
    def slots(self) -> int:
        return self.max_parallel or min(32, (os.cpu_count() or 1) + 4)
