"""Deaths in a fleet: what the dead held goes to the other workers, by tokens through RQ.

The decisions are the engine's (engine/reaping.py), in one transition that one reaper wins. Here: how
a death is put into words, tokens for the workers that continue, and what RQ still keeps of the dead.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from graflow_ckpt.core.errors import ServerError
from graflow_ckpt.core.facts import Cell, Op
from graflow_ckpt.engine.reaping import release
from graflow_ckpt.engine.run import CRASH_BUDGET
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.facts import RedisFacts
from graflow_ckpt.sessions.redis.keys import keys_of

log = logging.getLogger("graflow_ckpt.fleet")

_MEGA = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there, in kilobytes elsewhere

FALLS = "falls"
"""In the facts of a session: how often a worker has died of its program."""

GAVE_UP = 75
"""The exit status of a process that leaves while a task runs in it: to be tried again elsewhere."""

STOPPED = "it was stopped before its task had finished"


class FleetLinks(Protocol):
    """The links to where sessions are, and to what carries tokens."""

    @property
    def link(self) -> RedisLink: ...

    @property
    def carrier(self) -> Carrier: ...


@dataclass(frozen=True, slots=True)
class Hands:
    """A fleet, as its repairers use it."""

    link: RedisLink
    carrier: Carrier


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process, as its parent knows it. `memory`: its peak, in MB; 0 if that is not known."""

    status: int  # as wait() gives it
    memory: int = 0

    @classmethod
    def of(cls, status: int, usage: resource.struct_rusage | None) -> Death:
        return cls(status, usage.ru_maxrss // _MEGA if usage is not None else 0)

    @property
    def gave_up(self) -> bool:
        """True if it left on purpose, in the middle of a task: that is no crash."""
        return os.waitstatus_to_exitcode(self.status) == GAVE_UP

    def __str__(self) -> str:
        if os.WIFSIGNALED(self.status):
            how = f"it was killed by {_name(os.WTERMSIG(self.status))}"
        else:
            how = f"it ended with status {os.waitstatus_to_exitcode(self.status)}"
        return f"{how} (peak memory {self.memory} MB)" if self.memory else how


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of real time
        return f"signal {number}"


class Opaque:
    """Cells for code that moves specs and looks at no value: no key is needed for that."""

    def pack(self, name: str, cell: Cell, place: str = "") -> bytes:
        raise TypeError("nothing is packed here")

    def unpack(self, name: str, data: bytes, place: str = "") -> Cell:
        return data

    def seal(self, pickle: bytes, place: str) -> bytes:
        raise TypeError("nothing is sealed here")

    def open(self, name: str, data: bytes, place: str) -> bytes:
        return data


OPAQUE = Opaque()


def take(
    fleet: FleetLinks, session: str, token: str, why: str, *, forced: bool = False, crashed: bool = True
) -> bool:
    """Take a token and all that it held from a worker. False: it may be alive, or another was quicker.

    Nothing is waited for: if the server is away or the session frozen, that is an error, and has
    to be tried again.
    """
    facts: dict[str, Any] = {"session": session, "token": token}
    falls = _falls(fleet.link, session, token) if forced and crashed else 0
    fell = f"its program has taken its worker down {falls} times before any task"
    pauses: list[Op] = [("status", "paused", f"WorkerDied: {fell}; at last {why}")]
    emitted = release(
        fleet.link, session, OPAQUE, token, why, forced=forced, crashed=crashed, patience=0,
        also=pauses if falls >= CRASH_BUDGET else [],
    )  # fmt: skip
    if emitted is None:
        return False
    log.warning("token %s of session %s was taken from its worker: %s", token, session, why, extra=facts)
    if falls:  # counted by the reaper that won, and once: others see the same death, and try again
        with suppress(ServerError), translated(fleet.link.address):
            fleet.link.client.hincrby(f"{keys_of(session)}h", FALLS, 1)
    for other, queue in emitted:
        fleet.carrier.offer(session, other, queue)
    try:
        fleet.carrier.withdraw(session, token)
    except ServerError as error:
        log.info("RQ still lists token %s of session %s: %s", token, session, error, extra=facts)
    return True


def _falls(link: RedisLink, session: str, token: str) -> int:
    """Return how often workers have died of the program itself, of a module, say, with this one; else 0.

    It died with no claim, so no task can be blamed for it; when it comes too often, the session pauses.
    """
    prefix = keys_of(session)
    with translated(link.address):
        if RedisFacts(link, session).held(token, OPAQUE) or not link.client.hexists(f"{prefix}own", token):
            return 0
        return int(link.client.hget(f"{prefix}h", FALLS) or 0) + 1
