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
    what: str  # kill, stop, server
    whom: str = ""
    draw: float = 0.0  # whom exactly, from 0 to 1
    seconds: float = 0.0  # stopped, or without a server
    waits: bool = False  # stopped for longer yet, until somebody else has what it had

    def __str__(self) -> str:
        for_how_long = f" {self.seconds:.2f} s" if self.seconds else ""
        for_how_long += " or until it was taken over" if self.waits else ""
        return f"{self.at:4.0%} {self.what} {self.whom}{for_how_long}".rstrip()


def schedule(seed: int, kills: int, stops: int, servers: int, lease: float) -> list[Blow]:
    """So many of each, spread over the run. Each kind of victim comes before one of them comes twice."""
    rng = random.Random(f"blows {seed}")
    some = list(KILLED)[: min(kills, len(KILLED))]
    whom = some + rng.choices(list(KILLED), list(KILLED.values()), k=kills - len(some))
    blows = [Blow(at, "kill", who, rng.random()) for at, who in zip(_times(rng, kills), whom, strict=True)]
    blows += [
        Blow(at, "stop", "body", rng.random(), rng.uniform(1.3, 2.0) * lease, n % 2 == 0)
        for n, at in enumerate(_times(rng, stops))
    ]
    blows += [Blow(at, "server", "", 0.0, rng.choice([0.0, 0.3, 1.0])) for at in _times(rng, servers)]
    return sorted(blows, key=lambda blow: blow.at)


def _times(rng: random.Random, count: int) -> list[float]:
    """One in each of as many equal stretches, so that no seed spends all at the start."""
    stretch = (LAST - FIRST) / max(1, count)
    times = [FIRST + stretch * (n + rng.random()) for n in range(count)]
    rng.shuffle(times)
    return times


def printed(blows: Iterable[Blow]) -> str:
    return "\n".join(f"  {blow}" for blow in blows)
