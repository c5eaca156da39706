"""A task: a named function with options. And a group: a node without a body.

Both are inert; `graph.py` joins them, `decide.py` says what follows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from graflow_ckpt.core.arguments import flag, kind, real, settle, text, whole
from graflow_ckpt.core.errors import GraphError

OnInterrupted = Literal["rerun", "skip", "fail", "ask"]
Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before attempt n + 1: `base * factor**n`, at most `limit`, spread by `jitter`."""

    base: float = 0.0
    factor: float = 2.0
    limit: float = 300.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("base", "factor", "limit", "jitter"):
            real(f"Backoff({name}=)", getattr(self, name))
        if self.base < 0 or self.factor < 1 or self.limit < 0 or not 0 <= self.jitter <= 1:
            raise GraphError(
                f"{self} makes no delays.", hint="base and limit >= 0, factor >= 1, jitter from 0 to 1."
            )
        settle(self, "base", "factor", "limit", "jitter")

    def delay(self, retries: int, spread: float) -> float:
        """Return the seconds before a retry; `spread` is a random number in [0, 1)."""
        try:
            plain = min(self.limit, self.base * self.factor**retries)
        except OverflowError:  # hundreds of retries later
            plain = self.limit if self.base else 0.0
        return float(plain * (1.0 + self.jitter * (2.0 * spread - 1.0)))


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `@task(...)`."""

    inject_context: bool = False
    max_retries: int = 0
    backoff: Backoff = Backoff()
    timeout: float | None = None
    priority: int = 0
    max_cycles: int | None = None
    on_interrupted: OnInterrupted = "rerun"
    isolation: Isolation = "thread"
    queue: str = "default"

    def __post_init__(self) -> None:
        flag("inject_context", self.inject_context)
        whole("max_retries", self.max_retries, least=0)
        kind("backoff", self.backoff, Backoff, "a number of seconds or a Backoff")
        if self.timeout is not None:
            real("timeout", self.timeout, above=0)
        whole("priority", self.priority)
        if self.max_cycles is not None:
            whole("max_cycles", self.max_cycles, least=1)
        text("queue", self.queue)
        if self.on_interrupted not in ("rerun", "skip", "fail", "ask"):
            raise GraphError(
                f"on_interrupted={self.on_interrupted!r} is none of rerun, skip, fail, ask.",
                on_interrupted=self.on_interrupted,
            )
        if self.isolation not in ("thread", "process"):
            raise GraphError(f"isolation={self.isolation!r} is neither thread nor process.")
        settle(self, "max_retries", "timeout", "priority", "max_cycles")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Task:
    """A named function with options; `arguments` are bound ones."""

    name: str
    func: Callable[..., Any]
    options: Options = Options()
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def task_id(self) -> str:
        return self.name

    def renamed(self, name: str, arguments: dict[str, Any]) -> Task:
        return replace(self, name=name, arguments={**self.arguments, **arguments})


# --- groups ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class All:
    """Every member has to arrive."""

    def need(self, size: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class BestEffort:
    """The group continues when all members have ended, whether they succeeded or failed."""

    def need(self, size: int) -> int:
        return -1


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The group continues as soon as `count` members have succeeded."""

    count: int

    def __post_init__(self) -> None:
        whole("AtLeast", self.count)
        if self.count < 1:
            raise GraphError(f"AtLeast({self.count}) asks for nothing; use BestEffort().")

    def need(self, size: int) -> int:
        if self.count > size:
            raise GraphError(f"AtLeast({self.count}) in a group of {size} can never be met.")
        return self.count


GroupPolicy = All | BestEffort | AtLeast


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A node without a body that joins its members under a policy."""

    name: str
    policy: GroupPolicy
    members: tuple[str, ...]  # the last task of each member
    inside: frozenset[str]  # every task of every member

    @property
    def task_id(self) -> str:
        return self.name
