"""Policies, by which the engine cuts by itself: frozen values with one pure method.

They combine with `|`. Signals, failures and requests are not policies: they cut where the
values on loan allow it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from graflow_ckpt.core.arguments import kind, real, refused, whole
from graflow_ckpt.core.errors import GraphError


class Since(NamedTuple):
    """The facts since the last cut."""

    steps: int  # completed tasks, and rounds of loops
    seconds: float
    idle: bool  # nothing is running now
    elapsed: float = 0.0  # seconds since the run began
    spent: float = 0.0  # of these: seconds that saving has taken
    cost: float = 0.0  # what the next one will take, as far as that is known
    exposed: bool = True  # something that was committed is not durable
    first: bool = True  # it is a value that no checkpoint of this run holds yet
    rounds: int = 0  # that many of the steps were rounds


class Policy:
    """A policy; all of them can be combined."""

    __slots__ = ()

    def due(self, since: Since) -> bool:
        raise NotImplementedError

    def __or__(self, other: Policy) -> Policy:
        kind("|", other, Policy, "a policy such as EveryN(10)")
        return EitherPolicy((self, other))

    @property
    def watches(self) -> bool:
        """True if `due` has to be asked after every commit."""
        return True

    @property
    def period(self) -> float | None:
        """Seconds after which `due` should be asked although nothing was committed."""
        return None

    def left(self, since: Since) -> float | None:
        """Return the seconds until `due` should be asked although nothing is committed."""
        return None if self.period is None or since.steps == 0 else self.period - since.seconds


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
    """Every `steps` completed tasks; rounds of a loop count, too."""

    steps: int

    def __post_init__(self) -> None:
        whole("EveryN", self.steps)
        if self.steps < 1:
            raise GraphError(f"EveryN({self.steps}): a checkpoint needs at least one step before it.")

    def due(self, since: Since) -> bool:
        return since.steps >= self.steps


@dataclass(frozen=True, slots=True, eq=False)
class EveryTask(EveryN):
    """Every completed task, and no round."""

    steps: int = field(default=1, repr=False)

    def due(self, since: Since) -> bool:
        return since.steps > since.rounds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EveryN) and other.steps == 1  # which it was in versions before

    __hash__ = EveryN.__hash__


@dataclass(frozen=True, slots=True)
class EverySeconds(Policy):
    """The policy that cuts when something was committed and the last cut is that old."""

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
class Budget(Policy):
    """As often as saving takes at most `share` of the run's time, and `credit` seconds more.

    The credit is for values that no checkpoint holds yet, so that the first large result is saved before its
    successors start. A value that changes again and again is saved by the share alone.
    """

    share: float = 0.05
    credit: float = 2.0

    def __post_init__(self) -> None:
        real("Budget(share=)", self.share, above=0)
        if self.share > 1:
            raise refused("Budget(share=)", self.share, "at most 1")
        real("Budget(credit=)", self.credit, least=0)

    def due(self, since: Since) -> bool:
        return since.steps > 0 and since.exposed and self._wait(since) <= 0

    def left(self, since: Since) -> float | None:
        return self._wait(since) if since.steps > 0 and since.exposed else None

    def _wait(self, since: Since) -> float:
        credit = self.credit if since.first else 0.0
        return (since.spent + since.cost - credit) / self.share - since.elapsed


@dataclass(frozen=True, slots=True)
class WhenIdle(Policy):
    """Between waves: something was committed and nothing is running."""

    def due(self, since: Since) -> bool:
        return since.idle and since.steps > 0


@dataclass(frozen=True, slots=True)
class EitherPolicy(Policy):
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

    def left(self, since: Since) -> float | None:
        times = [left for left in (member.left(since) for member in self.members) if left is not None]
        return min(times, default=None)
