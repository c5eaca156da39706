"""The steward: one process per pool that sweeps, and says once a second that the pool is alive.

It survives whatever goes wrong in a sweep, a server that is away, and a failover; each kind of trouble
is said once a minute. It keeps nothing: killed at any moment, it is started anew and goes on.
"""

from __future__ import annotations

import logging
import os
import platform
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from redis import RedisError

from graflow_ckpt import __version__
from graflow_ckpt.core.errors import GraflowError, KeyTaken, ServerGone, SessionDamaged
from graflow_ckpt.fleet.board import Line, Order, Run, State
from graflow_ckpt.fleet.forks import deaf
from graflow_ckpt.fleet.health import PoolFacts, is_draining, sign, worker_facts
from graflow_ckpt.fleet.lists import place
from graflow_ckpt.fleet.reaping import Hands
from graflow_ckpt.fleet.sweeper import Sweeper
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.fleet.worker import reached
from graflow_ckpt.links.processes import describe, myself

log = logging.getLogger("graflow_ckpt.fleet")

HERE = 0.25
ROUND = 0.25
SIGN = 1.0
TIDY = 10.0
AWAY = 0.5  # seconds until a server that is away is asked again
SAID = 60.0  # seconds until the same trouble is said again
_MANY = 1000  # kinds of trouble that are remembered


@dataclass(frozen=True, slots=True)
class Charge:
    """What a steward looks after."""

    pool: str
    url: str
    rq_url: str
    queues: tuple[str, ...]
    started: float
    workers: Sequence[tuple[str, Line]]
    parent: Line
    line: Line


class Complaints:
    """Says the same trouble once a minute, with how often it came."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, where: str, error: Exception) -> None:
        named = isinstance(error, KeyTaken | SessionDamaged)  # each of them is something else
        kind = f"{where} {error if named else type(error).__name__}"
        if len(self._said) > _MANY:
            self._said.clear()
        at, before = self._said.get(kind, (-SAID, 0))
        if monotonic() < at + SAID:
            self._said[kind] = (at, before + 1)
            return
        self._said[kind] = (monotonic(), 0)
        often = f" ({before} more times in the last minute)" if before else ""
        known = isinstance(error, GraflowError | RedisError)
        log.warning("%s failed: %s%s", where, error, often, exc_info=None if known else error)


@dataclass(slots=True)
class Chore:
    """Something that is done again and again."""

    name: str
    every: float
    body: Callable[[], float | None]
    due: float = 0.0


class Steward:
    """Does its chores until the pool ends."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._owner = replace(describe(os.getppid()), argv=f"pool {charge.pool}")
        self._link = reached(charge.url)
        carrier = Carrier(reached(charge.rq_url).client)
        self._sweeper = Sweeper(Hands(self._link, carrier), place(), self._running)
        self._complaints = Complaints()
        self._chores = [
            Chore("the look at this place", HERE, self._sweeper.here),
            Chore("a round", ROUND, self._sweeper.round),
            Chore("the sign of life", SIGN, self._sign),
            Chore("tidying up", TIDY, self._sweeper.tidy),
            Chore("tidying up in RQ", TIDY, self._sweeper.tidy_rq),
        ]

    def _running(self) -> list[Run]:
        return [run for _, line in self._charge.workers if (run := line.run) is not None]

    def run(self, ear: int) -> None:
        """`ear`: a pipe that a signal writes to."""
        self._charge.line.now(State.IDLE)
        while self._charge.line.order is Order.WORK:
            for chore in self._chores:
                if monotonic() >= chore.due:
                    chore.due = monotonic() + self._do(chore)
            left = min(chore.due for chore in self._chores) - monotonic()
            if select.select([ear], [], [], max(0.0, left))[0]:
                os.read(ear, 1000)

    def _do(self, chore: Chore) -> float:
        """Seconds until it is done again."""
        try:
            sooner = chore.body()
        except Exception as error:  # noqa: BLE001  a sweeper's pass
            self._complaints.say(chore.name, error)
            if isinstance(error, ServerGone):
                self._sweeper.was_away()
            return max(AWAY, chore.every)
        for failed in self._sweeper.swept.failed:
            self._complaints.say("a repair", failed)
        self._sweeper.swept.failed.clear()
        return chore.every if sooner is None else max(0.0, min(sooner, chore.every))

    def _sign(self) -> float:
        charge, swept = self._charge, self._sweeper.swept
        workers = [worker_facts(name, line) for name, line in charge.workers if line.pid]
        facts = PoolFacts(
            charge.pool, self._owner, replace(myself(), argv="steward"), charge.queues,
            charge.started, __version__, platform.python_version(), is_draining(charge.parent),
            charge.parent.slices, tuple(workers),
            {"taken": swept.taken, "posted": swept.posted, "woken": swept.woken},
        )  # fmt: skip
        sign(self._link, facts)
        return HERE if any(worker.state == "starting" for worker in workers) else SIGN


def _woken_by_signals() -> int:
    """A signal ends a wait, and nothing else: what to do stands on the board."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    deaf(signal.SIGTERM)
    return ear


def steward(charge: Charge) -> int:
    """The life of a steward, in a process of its own."""
    ear = _woken_by_signals()
    while charge.line.order is Order.WORK:
        try:
            Steward(charge).run(ear)
        except Exception:
            log.exception("the steward starts anew")
            time.sleep(AWAY)
    return 0
