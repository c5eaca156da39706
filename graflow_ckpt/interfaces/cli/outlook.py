"""An outlook over a fleet: sessions, queues and workers at one look, and rates from one look to the next."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from time import monotonic

from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.health import PoolFacts, pools
from graflow_ckpt.fleet.status import Status, read_all
from graflow_ckpt.interfaces.cli.fleet_rows import document
from graflow_ckpt.interfaces.cli.manner import Document
from graflow_ckpt.links.complaints import translated

RECENT = 60.0  # seconds for which a session that has ended is still shown
_NEWEST = 50  # sessions that are looked at although nothing goes on in them


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits in one queue, over all sessions, and who serves it."""

    name: str
    ready: int
    running: int  # workers that are at something of it
    tokens: int  # that wait for a worker
    workers: int  # that serve it


@dataclass(frozen=True, slots=True)
class Outlook:
    """One look."""

    at: str
    time: float
    sessions: list[Status]  # those that are shown
    hidden: int  # and so many that are not
    rates: dict[str, float]  # of each session: steps per second since the last look
    queues: list[Queue]
    pools: list[PoolFacts]

    @property
    def rate(self) -> float:
        return sum(self.rates.values())

    @property
    def workers(self) -> int:
        return sum(len(pool.workers) for pool in self.pools)

    @property
    def busy(self) -> int:
        return sum(bool(worker.session) for pool in self.pools for worker in pool.workers)

    def document(self) -> Document:
        return {
            "at": self.at, "time": self.time, "rate": round(self.rate, 3),
            "workers": self.workers, "busy": self.busy,
            "sessions": [
                {**document(row, self.at), "rate": round(self.rates.get(row.session, 0.0), 3)}
                for row in self.sessions
            ],
            "hidden": self.hidden,
            "queues": [asdict(queue) for queue in self.queues],
            "pools": [asdict(pool) for pool in self.pools],
        }  # fmt: skip


class Overview:
    """Looks, and remembers the last look."""

    def __init__(self, client: Client, limit: int) -> None:
        self._client = client
        self._limit = limit
        self._steps: dict[str, int] = {}
        self._at: float | None = None

    def look(self) -> Outlook:
        found = {row.session: row for row in read_all(self._client.link, self._client.lately(_NEWEST))}
        now = monotonic()
        passed = now - self._at if self._at is not None else 0.0
        rates = {
            name: max(0, row.steps - self._steps[name]) / passed
            for name, row in found.items()
            if passed and name in self._steps
        }
        self._at, self._steps = now, {name: row.steps for name, row in found.items()}
        shown = [row for row in found.values() if not row.over or time.time() - (row.ended or 0) < RECENT]
        shown.sort(key=lambda row: (row.over, -rates.get(row.session, 0.0), -row.running, -row.created))
        alive = pools(self._client.link)
        queues = self._queues(found.values(), alive)
        return Outlook(
            self._client.link.address, time.time(), shown[: self._limit], max(0, len(shown) - self._limit),
            rates, queues, alive,
        )  # fmt: skip

    def _queues(self, rows: Iterable[Status], alive: list[PoolFacts]) -> list[Queue]:
        """Queues that something waits in, or that somebody serves."""
        ready: dict[str, int] = {}
        running: dict[str, int] = {}
        for row in rows:
            for name, size in row.queues:
                ready[name] = ready.get(name, 0) + (0 if row.over else size)
            for name, count in row.slices:
                running[name] = running.get(name, 0) + count
        serving: dict[str, int] = {}
        for pool in alive:
            for name in pool.queues:
                serving[name] = serving.get(name, 0) + len(pool.workers)
        names = sorted(ready.keys() | serving.keys())
        with translated(self._client.link.address):
            waiting = self._client.carrier.waiting(names)
        return [
            Queue(name, ready.get(name, 0), running.get(name, 0), waiting[name], serving.get(name, 0))
            for name in names
        ]
