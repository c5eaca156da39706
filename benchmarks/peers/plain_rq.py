"""RQ as it comes: `rq worker` with SimpleWorker, results kept for RQ's 500 s.

Settings: quiet, job descriptions not logged, no scheduler, jobs submitted with `enqueue_many`; the rest is
RQ's default. Its JSON serializer is no faster: a job's time is its many round trips.
A chain: each job enqueues the next one, which takes no longer than `depends_on`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import redis
from rq import Queue
from rq.job import Job

from benchmarks.fleet_runs import Contender, poll
from benchmarks.peers import jobs
from benchmarks.peers.rq_links import link, name


class PlainRq(Contender):
    kind = "rq.SimpleWorker"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.connection = redis.Redis.from_url(url)
        self.queue = Queue(connection=self.connection)
        self.finished = self.queue.finished_job_registry.key
        self.submitted = 0
        self.last = ""

    def commands(self, workers: int) -> list[list[str]]:
        command = [sys.executable, "-m", "rq.cli", "worker", "--url", self.url, "--worker-class", self.kind]
        return [[*command, "--quiet", "--disable-job-desc-logging"]] * workers

    def ready(self, workers: int) -> bool:
        return int(self.connection.info("clients")["blocked_clients"]) == workers

    def bag(self, count: int) -> None:
        self._submit(jobs.noop, count)

    def sessions(self, sessions: int, each: int) -> None:
        """RQ knows jobs only: a bag."""
        self.bag(sessions * each)

    def spin(self, count: int) -> None:
        self._submit(jobs.spin, count)

    def chain(self, length: int) -> None:
        self.submitted += length
        self.last = name(0)
        self.queue.enqueue(link, length - 1, job_id=name(length - 1))

    def wait(self) -> None:
        poll(lambda: self.connection.zcard(self.finished) == self.submitted)

    def check(self) -> None:
        result = Job.fetch(self.last, connection=self.connection).latest_result()
        assert result is not None
        assert result.type is result.Type.SUCCESSFUL, result.exc_string

    def handoff(self) -> float:
        self.submitted += 1
        job = self.queue.enqueue(jobs.stamp)
        poll(lambda: job.return_value(refresh=True) is not None)
        return float(str(job.return_value()))

    def hops(self, length: int) -> list[float]:
        self.chain(length)
        self.wait()
        names = [name(left) for left in range(length)]
        links = Job.fetch_many(names, connection=self.connection)
        return sorted(float(str(job.return_value())) for job in links if job is not None)

    def _submit(self, body: Callable[[], None], count: int) -> None:
        self.submitted += count
        made = self.queue.enqueue_many([Queue.prepare_data(body) for _ in range(count)])
        self.last = made[-1].id
