"""The monkey: carries out a schedule on a fleet that works, and writes down what it has done.

It kills and stops processes by their pids, and only those below a pool that it was given; a pool whose
parent has gone is started again, as a service manager would do.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import psutil

from tests.chaos.model import Blow
from tests.chaos.records import Line, parse_line
from tests.pools import Pool
from tests.servers import Server

AGAIN = 0.5
"""Seconds until a pool is started again."""

BUDGET = 1
"""How often a run of a task is hit knowingly. It may begin in the moment between the look and the blow."""

LONGEST = 6.0
"""Seconds for which a process stays stopped until somebody takes over, after its time."""


@dataclass(frozen=True, slots=True)
class Deed:
    """A blow that has fallen."""

    blow: Blow
    at: float  # wall clock, as in the file of executions
    pid: int
    line: Line | None = None  # what its victim was doing
    until: float = 0.0  # of a stop


@dataclass(slots=True)
class Watch:
    """Who runs a body now, from the file of executions."""

    file: Path
    running: dict[int, Line] = field(default_factory=dict)
    latest: dict[int, Line] = field(default_factory=dict)  # of each spec, by its key
    _offset: int = 0
    _half: bytes = b""

    def look(self) -> dict[int, Line]:
        with suppress(FileNotFoundError), open(self.file, "rb") as file:
            file.seek(self._offset)
            data = self._half + file.read()
            self._offset = file.tell()
            *whole, self._half = data.split(b"\n")
            for text in whole:
                line = parse_line(text.decode())
                if line.what == "began":
                    self.running[line.pid] = self.latest[line.key] = line
                else:
                    self.running.pop(line.pid, None)
        return self.running


class Monkey:
    """One for one run."""

    def __init__(
        self, blows: Sequence[Blow], server: Server, several: Sequence[Pool], runs: Path, steps: int
    ) -> None:
        self.pending = list(blows)
        self.deeds: list[Deed] = []
        self._server = server
        self._pools = several
        self._watch = Watch(runs)
        self._steps = steps
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._patient = True
        self._stopped: set[int] = set()
        self._hits: Counter[int] = Counter()  # how often what ran was hit, by the key of its spec
        self._down: dict[str, float] = {}  # pools that are gone, and when they are to come back

    @property
    def idle(self) -> bool:
        """Whether nothing is pending, stopped or down."""
        return not (self.pending or self._later or self._down)

    def look(self, steps: int) -> None:
        """Do what is due after so many steps."""
        for item in [item for item in self._later if item[0] <= monotonic()]:
            self._later.remove(item)
            item[1]()
        while self.pending and steps >= self.pending[0].at * self._steps:
            if not self._strike(self.pending[0]):
                break  # nobody to be met right now; soon there will be
            self.pending.pop(0)
        for pool in self._pools:
            pool.family()  # so that nobody who was there is forgotten
            if pool.status is not None and pool.name not in self._down:
                self._down[pool.name] = monotonic() + AGAIN
            elif pool.name in self._down and monotonic() > self._down[pool.name]:
                del self._down[pool.name]
                pool.start()

    def calm(self) -> None:
        """Let everybody go on who is stopped, and the server if it is down."""
        while self._later:
            self._patient = False
            self._later.pop()[1]()

    # --- blows -------------------------------------------------------------------------

    def _strike(self, blow: Blow) -> bool:
        if blow.what in ("server", "freeze"):
            return self._server_gone(blow)
        running = self._watch.look()
        victims = self._victims(blow.whom, running)
        if not victims:
            return False
        victim = victims[int(blow.draw * len(victims))]
        if blow.what == "stop":
            return self._stop(blow, victim)
        at, family = time.time(), below(victim)
        if not self._may_fall(victim, self._watch.look()):
            return False
        with suppress(psutil.NoSuchProcess):
            victim.kill()
            running = self._watch.look()  # they may have gone on since
            self.deeds.append(Deed(blow, at, victim.pid, running.get(victim.pid)))
            self._hits.update(running[pid].key for pid in family if pid in running)
            return True
        return False

    def _victims(self, whom: str, running: dict[int, Line]) -> list[psutil.Process]:
        here = [process for pool in self._pools for process in pool.family()]
        stewards = [process for process in here if is_steward(process)]
        if whom == "parent":
            found = [psutil.Process(pool.pid) for pool in self._pools if pool.status is None]
        elif whom == "body":
            found = [process for process in here if process.pid in running]
        else:
            found = stewards if whom == "steward" else [p for p in here if p not in stewards]
        return [process for process in found if self._may_fall(process, running)]

    def _may_fall(self, process: psutil.Process, running: dict[int, Line]) -> bool:
        """Not if somebody who is stopped, and is to come back, would go with it; nor for what was hit before:
        a task that takes its worker down three times is set aside, and rightly."""
        pids = below(process)
        keys = [running[pid].key for pid in pids if pid in running]
        return not pids & self._stopped and all(self._hits[key] < BUDGET for key in keys)

    def _stop(self, blow: Blow, victim: psutil.Process) -> bool:
        """In mid-body; whoever has just ended one goes on at once."""
        os.kill(victim.pid, signal.SIGSTOP)
        line = self._watch.look().get(victim.pid)
        if line is None:
            os.kill(victim.pid, signal.SIGCONT)
            return False
        now = time.time()
        deed = Deed(blow, now, victim.pid, line, now + blow.seconds)
        self.deeds.append(deed)
        self._stopped.add(victim.pid)
        self._hits[line.key] += 1
        self._later.append((monotonic() + blow.seconds, lambda: self._go_on(deed, victim)))
        return True

    def _go_on(self, deed: Deed, victim: psutil.Process) -> None:
        self._watch.look()
        assert deed.line is not None
        taken = self._watch.latest[deed.line.key].token != deed.line.token
        if deed.blow.waits and self._patient and not (taken or time.time() > deed.until + LONGEST):
            self._later.append((monotonic() + 0.05, lambda: self._go_on(deed, victim)))
            return
        self._stopped.discard(victim.pid)
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGCONT)  # not to somebody who has its pid now

    def _server_gone(self, blow: Blow) -> bool:
        if not self._server.running:
            return False
        at, pid = time.time(), self._server.pid
        if blow.what == "freeze":
            self._server.freeze()
            self.deeds.append(Deed(blow, at, pid))
            threading.Timer(blow.seconds, self._thaw).start()  # this thread may be waiting for the server
            return True
        self._server.kill()
        if blow.loses:
            shorten(self._server.folder, blow.loses)
        self.deeds.append(Deed(blow, at, pid))
        self._later.append((monotonic() + blow.seconds, lambda: self._server.start() and None))
        return True

    def _thaw(self) -> None:
        if self._server.running:  # and not killed meanwhile
            self._server.thaw()


def shorten(folder: Path, share: float) -> None:
    """The last of what the server has written never reached the disk, as after a power cut, or a failover
    to a replica that was behind. It may end in the middle of a command: the server takes what is whole."""
    log = max(folder.glob("appendonlydir/*.incr.aof"), key=lambda file: file.stat().st_mtime)
    os.truncate(log, int(log.stat().st_size * (1 - share)))


def below(process: psutil.Process) -> set[int]:
    """It, and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        return {process.pid, *(child.pid for child in process.children(recursive=True))}
    return {process.pid}


def is_steward(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "steward" in process.name()
    return False
