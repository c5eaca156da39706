"""Our side of the fleet benchmarks: what a user gets by default, as `Contender` says it.

Result kept and readable through the handle, k = 1 claims, fencing on. Nothing is claimed in batches, so there
is no other figure to report.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import Any

import redis
from rq import Worker

from benchmarks.fleet_runs import Contender
from benchmarks.peers import jobs
from graflow_ckpt import task, workflow
from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.stores.around.keys import new_key

noop = task(jobs.noop)
given = task(jobs.given)
spin = task(jobs.spin)
stamp = task(jobs.stamp)


class Ours(Contender):
    """One pool."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.connection = redis.Redis.from_url(url)
        os.environ.setdefault("GRAFLOW_CKPT_KEY", new_key())
        self.environment = {"GRAFLOW_CKPT_KEY": os.environ["GRAFLOW_CKPT_KEY"]}
        self.handles: list[Any] = []  # of sessions that nobody has waited for

    def commands(self, workers: int) -> list[list[str]]:
        return [[sys.executable, "-m", "graflow_ckpt", "worker", "--url", self.url, "-n", str(workers)]]

    def ready(self, workers: int) -> bool:
        return Worker.count(connection=self.connection) == workers

    def bag(self, count: int) -> None:
        self.handles.append(noop.submit_many([()] * count, url=self.url))

    def spin(self, count: int) -> None:
        self.handles.append(spin.submit_many([()] * count, url=self.url))

    def chain(self, length: int) -> None:
        self._chain(length, jobs.noop)

    def sessions(self, sessions: int, each: int) -> None:
        for _ in range(sessions):
            self.bag(each)

    def _chain(self, length: int, body: Any) -> Any:
        tasks = [task(id=f"link-{i}")(body) for i in range(length)]
        with workflow("chain") as flow:
            for earlier, later in pairwise(tasks):
                _ = earlier >> later
            if length == 1:
                flow.add(tasks[0])
        handle = flow.submit(self.url)
        self.handles.append(handle)
        return handle

    def wait(self) -> None:
        for handle in self.handles:
            status = handle.wait(120)
            assert status.status == "completed", status
        self.last, self.handles = self.handles[-1], []

    def check(self) -> None:
        assert self.last.result() is None  # raises what a task has failed with

    def handoff(self) -> float:
        return float(stamp.submit(url=self.url).result(60))

    def hops(self, length: int) -> list[float]:
        handle = self._chain(length, jobs.stamp)
        handle.wait(60)
        self.handles.clear()
        return [float(handle.value(f"link-{i}{RESULT}")) for i in range(length)]


class Given(Ours):
    """The same with tasks that have arguments."""

    def bag(self, count: int) -> None:
        self.handles.append(given.submit_many([(n, "a name") for n in range(count)], url=self.url))
