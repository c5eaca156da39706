"""When the engine cuts by itself: frozen values with one pure method.

They combine with `|`. Signals, failures and requests are not policies: they cut where the
values on loan allow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from graflow_ckpt.core.arguments import kind, real, whole
from graflow_ckpt.core.errors import GraphError


class Since(NamedTuple):
    """What has happened since the last cut."""

    steps: int
    seconds: float
    idle: bool  # nothing is running now


class Policy:
    """What all policies share: they can be combined."""

    __slots__ = ()

    def due(self, since: Since) -> bool:
        raise NotImplementedError

    def __or__(self, other: Policy) -> Policy:
        kind("|", other, Policy, "a policy such as EveryN(10)")
        return Either((self, other))

    @property
    def watches(self) -> bool:
        """Whether `due` has to be asked after every commit."""
        return True

    @property
    def period(self) -> float | None:
        """Seconds after which `due` should be asked although nothing was committed."""
        return None


@dataclass(frozen=True, slots=True)
class OnRequest(Policy):
    """Only when a task calls `context.checkpoint()`."""

    def due(self, since: Since) -> bool:
        return False

    @property
    def watches(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class EveryN(Policy):
    """Every `steps` completed tasks."""

    steps: int

    def __post_init__(self) -> None:
        whole("EveryN", self.steps)
        if self.steps < 1:
            raise GraphError(f"EveryN({self.steps}): a cut needs at least one step before it.")

    def due(self, since: Since) -> bool:
        return since.steps >= self.steps


def EveryTask() -> EveryN:
    """After every completed task."""
    return EveryN(1)


@dataclass(frozen=True, slots=True)
class EverySeconds(Policy):
    """When something was committed and the last cut is that old."""

    seconds: float

    def __post_init__(self) -> None:
        real("EverySeconds", self.seconds)
        if self.seconds <= 0:
            raise GraphError(f"EverySeconds({self.seconds}) is not a positive number.")

    def due(self, since: Since) -> bool:
        return since.steps > 0 and since.seconds >= self.seconds

    @property
    def period(self) -> float | None:
        return self.seconds


@dataclass(frozen=True, slots=True)
class WhenIdle(Policy):
    """Between waves: something was committed and nothing is running."""

    def due(self, since: Since) -> bool:
        return since.idle and since.steps > 0


@dataclass(frozen=True, slots=True)
class Either(Policy):
    """Any of several."""

    members: tuple[Policy, ...]

    def due(self, since: Since) -> bool:
        return any(member.due(since) for member in self.members)

    @property
    def watches(self) -> bool:
        return any(member.watches for member in self.members)

    @property
    def period(self) -> float | None:
        periods = [p for p in (member.period for member in self.members) if p is not None]
        return min(periods, default=None)
