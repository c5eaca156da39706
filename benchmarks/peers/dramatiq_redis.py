"""dramatiq on Redis with its result backend: `dramatiq --processes 1`, every result kept.

Settings: dramatiq's own middleware and Results, which keeps for 10 minutes; one thread, the best number for
no-op tasks in one process; `dramatiq_queue_prefetch=1000`. Without that variable a worker fetches two
messages per thread and then sleeps for some milliseconds: 270 tasks/s with one thread, 2,200 with the default
of eight, 3,900 with sixteen, and 5,500 with one thread that prefetches. Tasks are submitted one by one:
dramatiq has no other way.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.fleet_runs import Contender, poll
from benchmarks.peers import jobs

ADDRESS = "FLEET_BENCHMARK_DRAMATIQ"  # how the workers are told where their server is


class Tasks:
    """The same actors where they are submitted and where they run."""

    def __init__(self, url: str) -> None:
        self.broker = RedisBroker(url=url)
        self.results = RedisBackend(url=url)
        self.broker.add_middleware(Results(backend=self.results, store_results=True))
        self.noop = dramatiq.actor(broker=self.broker)(jobs.noop)


class Dramatiq(Contender):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.environment |= {ADDRESS: url, "dramatiq_queue_prefetch": "1000"}
        self.tasks = Tasks(url)
        self.last: dramatiq.Message[Any] | None = None

    def commands(self, workers: int) -> list[list[str]]:
        command = [sys.executable, "-m", "dramatiq", f"{__name__}:start"]
        return [[*command, "--processes", "1", "--threads", "1"]] * workers

    def ready(self, workers: int) -> bool:
        """A worker that is idle polls, and cannot be told from one that is not there: its tasks will wait."""
        return True

    def bag(self, count: int) -> None:
        for _ in range(count):
            self.last = self.tasks.noop.send()

    def wait(self) -> None:
        """A message leaves this hash when it is acknowledged, after its result was stored."""
        poll(lambda: self.tasks.broker.client.hlen("dramatiq:default.msgs") == 0)

    def check(self) -> None:
        assert self.last is not None
        assert self.last.get_result(backend=self.tasks.results) is None


def start() -> None:
    """What the command `dramatiq` calls in its worker."""
    dramatiq.set_broker(Tasks(os.environ[ADDRESS]).broker)
