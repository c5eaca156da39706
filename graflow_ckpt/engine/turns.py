"""Where a run hands over: to those who cut, and to whoever takes the session back to a cut."""

from __future__ import annotations

from typing import Protocol

from graflow_ckpt.core.facts import Claim, Failed, Op, Outcome
from graflow_ckpt.engine.attempt import Attempt


class Cuts(Protocol):
    """When and how a checkpoint is taken: see cuts.py."""

    waiting: bool

    def committed(self, outcome: Outcome, idle: bool) -> None: ...
    def poll(self, idle: bool) -> None: ...
    def starts(self, number: int, alone: bool) -> None: ...
    def failed(self, claim: Claim, outcome: Failed) -> None: ...
    def before_commit(self, ops: list[Op], attempt: Attempt | None = None) -> None: ...
    def timer(self) -> float | None: ...


class GoBack(Exception):
    """The session has to go back to its newest cut: a failed attempt changed a live value."""

    def __init__(self, claim: Claim, outcome: Failed, names: list[str], budget: int) -> None:
        super().__init__(names)
        self.budget = budget  # how often that may happen to one task
        self.claim = claim
        self.outcome = outcome
        self.names = names
