"""huey on Redis: `huey_consumer` with one worker, every result kept.

Settings: RedisHuey with its blocking queue, its default and the simplest of its Redis stores; a thread as
worker, which is as fast as a process here; no periodic tasks, quiet; `store_none`, because results of no-op
tasks are kept by everybody. Tasks are submitted one by one: huey has no other way.
A chain: each task enqueues the next one. `then()` packs all that is to come into every message, and a task of
a chain of 300 takes twice as long.
"""

from __future__ import annotations

import os
import sys
import time

from huey import RedisHuey

from benchmarks.fleet_runs import Contender, poll
from benchmarks.peers import jobs

ADDRESS = "FLEET_BENCHMARK_HUEY"  # how the workers are told where their server is


class Tasks:
    """The same tasks where they are submitted and where they run."""

    def __init__(self, url: str) -> None:
        self.huey = RedisHuey("fleet", url=url, store_none=True)
        self.noop = self.huey.task()(jobs.noop)
        self.link = self.huey.task(name="link")(self._link)

    def _link(self, left: int) -> float:
        began = time.monotonic()
        if left:
            self.link(left - 1)
        return began


class Huey(Contender):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.environment[ADDRESS] = url
        self.tasks = Tasks(url)
        self.storage = self.tasks.huey.storage
        self.submitted = 0

    def commands(self, workers: int) -> list[list[str]]:
        command = [sys.executable, "-m", "huey.bin.huey_consumer", f"{__name__}.huey", "--quiet"]
        return [[*command, "--workers", "1", "--worker-type", "thread", "--no-periodic"]] * workers

    def ready(self, workers: int) -> bool:
        return int(self.storage.conn.info("clients")["blocked_clients"]) == workers

    def bag(self, count: int) -> None:
        self.submitted += count
        for _ in range(count):
            self.tasks.noop()

    def chain(self, length: int) -> None:
        self.submitted += length
        self.tasks.link(length - 1)

    def wait(self) -> None:
        poll(lambda: self.storage.result_store_size() == self.submitted)

    def check(self) -> None:
        result = self.tasks.noop()
        poll(result.is_ready)
        assert result.get() is None


# What `huey_consumer` imports; only a worker has the address in its environment.
huey = Tasks(os.environ[ADDRESS]).huey if ADDRESS in os.environ else None
