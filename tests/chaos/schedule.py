"""What is done to a fleet, drawn from a seed: at which step, to whom, and for how long.

Blows fall by the progress of the session and not by the clock, so that a slow machine gets as many
under load as a fast one. Who stands where when a blow falls is up to the fleet: `draw` picks one of those.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

FIRST, LAST = 0.03, 0.9
"""All blows fall between these shares of the steps."""

KILLED = {"body": 10, "worker": 3, "steward": 4, "parent": 4}
"""How often who is killed: a process that runs a body, any worker, a steward, a pool's parent."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One thing that happens."""

    at: float  # share of the steps
    what: str  # kill, stop, server (killed), freeze (of the server)
    whom: str = ""
    draw: float = 0.0  # whom exactly, from 0 to 1
    seconds: float = 0.0  # stopped, or without a server
    loses: float = 0.0  # the share of its log that the server has lost when it comes back
    waits: bool = False  # stopped for longer yet, until somebody else has what it had

    def __str__(self) -> str:
        for_how_long = f" {self.seconds:.2f} s" if self.seconds else ""
        for_how_long += " or until it was taken over" if self.waits else ""
        for_how_long += f" loses {self.loses:.1%} of its log" if self.loses else ""
        return f"{self.at:4.0%} {self.what} {self.whom}{for_how_long}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: how large, and what is done to it how often."""

    seed: int
    tasks: int = 1500
    kills: int = 28
    stops: int = 8  # for longer than the lease
    servers: int = 3  # kills of the server
    losses: int = 1  # kills of a server that comes back without the last of its log
    freezes: int = 1  # the server answers nothing for a while
    lease: float = 2.0
    pace: float = 1.0  # by how much bodies take longer
    fsync: str = "everysec"
    pools: int = 2  # with two workers each


def schedule(plan: Plan) -> list[Blow]:
    """So many of each, spread over the run. Each kind of victim comes before one of them comes twice."""
    rng = random.Random(f"blows {plan.seed}")
    some = list(KILLED)[: min(plan.kills, len(KILLED))]
    whom = some + rng.choices(list(KILLED), list(KILLED.values()), k=plan.kills - len(some))
    times = zip(_times(rng, plan.kills), whom, strict=True)
    blows = [Blow(at, "kill", who, rng.random()) for at, who in times]
    for n, at in enumerate(_times(rng, plan.stops)):
        seconds = rng.uniform(1.3, 2.0) * plan.lease
        blows.append(Blow(at, "stop", "body", rng.random(), seconds, waits=n % 2 == 0))
    for at in _times(rng, plan.servers):
        blows.append(Blow(at, "server", seconds=rng.choice([0.0, 0.3, 1.0])))
    for at in _times(rng, plan.losses):
        loses = rng.choice([0.001, 0.01, 0.1])
        blows.append(Blow(at, "server", seconds=rng.choice([0.0, 0.5]), loses=loses))
    for at in _times(rng, plan.freezes):
        blows.append(Blow(at, "freeze", seconds=rng.uniform(0.5, 2.0) * plan.lease))
    return sorted(blows, key=lambda blow: blow.at)


def _times(rng: random.Random, count: int) -> list[float]:
    """One in each of as many equal stretches, so that no seed spends all at the start."""
    stretch = (LAST - FIRST) / max(1, count)
    times = [FIRST + stretch * (n + rng.random()) for n in range(count)]
    rng.shuffle(times)
    return times


def printed(blows: Iterable[Blow]) -> str:
    return "\n".join(f"  {blow}" for blow in blows)
