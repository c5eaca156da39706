"""Listening: RQ waits for tokens and calls slices, and is asked for nothing else.

It supervises nothing: its alarms, retries, callbacks, orders, scheduler and maintenance are not used, and
what it still believes of the dead is withdrawn by the worker or steward that reaps them. Of RQ's classes only
what is public is touched, and the flag that ends its loop.

Promise: of what RQ keeps in Redis a worker reads the names in its queues and nothing else. A job is made
here of its name, which holds session and token, so nothing that a job's hash, a registry or a callback says
is imported, called or fetched. RQ's lists are advisory: one that cannot be written to is named, and the
slice runs.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

from redis import Redis, RedisError, ResponseError
from rq import Queue
from rq.exceptions import DequeueTimeout
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty
from rq.utils import get_version
from rq.worker import SimpleWorker

from graflow_ckpt.fleet.slice import Worker, run_slice
from graflow_ckpt.fleet.tokens import PLACE, token_in
from graflow_ckpt.links.complaints import code_of, taken

log = logging.getLogger("graflow_ckpt.fleet")

OFTEN = timedelta(seconds=5)
"""Between signs of life of a worker that has much to do."""

_BLMOVE = (6, 2, 0)  # the version of Redis that has it
_said: set[str] = set()  # each key that something else is kept under is named once


class NoAlarm(BaseDeathPenalty):
    """Attempts have deadlines of their own, and the alarm of a process may be the task's."""

    def setup_death_penalty(self) -> None:
        """None."""

    def cancel_death_penalty(self) -> None:
        """None."""


class Tokens(Queue):
    """A queue of RQ, of which names are taken and no jobs read."""

    @classmethod
    def dequeue_any(
        cls, queues: Iterable[Queue], timeout: int | None, connection: Redis, *args: Any, **options: Any
    ) -> tuple[Job, Queue] | None:
        """Return the next token of the first queue that has one. Anything else in a queue is removed."""
        known = {queue.key.encode(): queue for queue in queues}
        while True:
            found = cls._next(known, timeout, connection)
            if found is None:
                return None
            key, name = found
            queue = known[key]
            if token_in(name) is not None:
                job = Job(name.decode(), connection=connection, serializer=JSONSerializer)
                job.origin, job.timeout = queue.name, -1
                return job, queue
            log.error("job %.100r in %s is no token of a session, and is removed", name, queue.name)
            connection.lrem(queue.intermediate_queue_key, 0, name)  # type: ignore[arg-type]  # bytes as they are

    @classmethod
    def _next(
        cls, known: dict[bytes, Queue], timeout: int | None, connection: Redis
    ) -> tuple[bytes, bytes] | None:
        """Return key and name, as bytes; a queue that is no list is named and passed over."""
        keys = [queue.key for queue in known.values()]
        found: Any
        try:
            if len(keys) == 1 and get_version(connection) >= _BLMOVE:
                found = cls.lmove(connection, keys[0], timeout)
            else:
                found = cls.lpop(keys, timeout, connection=connection)
        except ResponseError as error:
            if code_of(error) != "WRONGTYPE":
                raise
            between = [queue.intermediate_queue_key for queue in known.values()] if len(keys) == 1 else []
            _name(connection, dict.fromkeys((*keys, *between), "list"))
            sound = [key for key in keys if connection.type(key) in (b"list", b"none")]
            if not sound:
                time.sleep(timeout or 0)
                raise DequeueTimeout(timeout, keys) from None
            found = cls.lpop(sound, timeout, connection=connection)
        if found is None:
            return None
        key, name = found
        return (key.encode() if isinstance(key, str) else key), name


class Listening(SimpleWorker):
    """A worker of RQ that runs slices in its own process."""

    queue_class = Tokens
    death_penalty_class = NoAlarm
    worker: Worker
    job: Job | None = None
    max_connection_wait_time = 1.0  # a server that is back is noticed at once
    # shorter than a link is patient: RQ raises the patience of new connections only, and a wait that the
    # open one gave up would look like a lost server; after ten of them, an idle minute, RQ ends the worker
    dequeue_timeout = 3
    _waits = False
    on_stop: Callable[[int, FrameType | None], None]

    # --- the loop ----------------------------------------------------------------------

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        self._waits = True
        try:
            if self._stop_requested:
                raise SystemExit(0)
            found: tuple[Job, Queue] | None = super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
            return found
        finally:
            self._waits = False

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run the slice of a token. For RQ its job succeeds, whatever becomes of the session."""
        run = token_in(job.id.encode())
        assert run is not None  # else it would not have been taken
        self.job = job
        self._begin(job, queue)
        run_slice(*run)
        self._end(job)
        self.job = None
        if self.worker.worn:
            log.warning("a task does not end: this process is replaced")
            self._stop_requested = True

    @property
    def should_run_maintenance_tasks(self) -> bool:
        """Never: RQ would import and call what an abandoned job names. The stewards tidy up (tidy_rq)."""
        return False

    def run_maintenance_tasks(self) -> None:
        """See should_run_maintenance_tasks."""

    def clean_registries(self) -> None:
        """See should_run_maintenance_tasks."""

    # --- signals -----------------------------------------------------------------------

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """RQ has this called for SIGTERM and SIGINT; the second is for the parent to understand."""
        if signum != signal.SIGINT:
            self.on_stop(signum, frame)

    def take_no_more(self) -> None:
        """In a handler, in the main thread."""
        self._stop_requested = True
        if self._waits:
            raise SystemExit(0)

    # --- what RQ is told ---------------------------------------------------------------

    def _begin(self, job: Job, queue: Queue) -> None:
        """Tell RQ that the job runs, in one round trip, in which nothing is read."""
        ttl = self.get_heartbeat_ttl(job)
        pipe = self.connection.pipeline(transaction=False)
        self.execution = Execution.create(job, ttl, pipeline=pipe)
        self.set_state("busy", pipeline=pipe)
        self.set_current_job_id(job.id, pipeline=pipe)
        self.heartbeat(ttl, pipeline=pipe)
        job.prepare_for_execution(self.name, pipeline=pipe)
        pipe.lrem(queue.intermediate_queue_key, 1, job.id)
        self._tell(pipe, job)

    def _end(self, job: Job) -> None:
        """Tell RQ that the job is over, and delete it."""
        pipe = self.connection.pipeline(transaction=False)
        self.increment_successful_job_count(pipeline=pipe)
        self.increment_total_working_time(datetime.now(UTC) - (job.started_at or datetime.now(UTC)), pipe)
        self.cleanup_execution(job, pipeline=pipe)
        pipe.delete(job.key, job.dependents_key)
        self.set_state("idle", pipeline=pipe)
        self._tell(pipe, job)

    def _tell(self, pipe: Any, job: Job) -> None:
        if any(isinstance(reply, RedisError) for reply in pipe.execute(raise_on_error=False)):
            started, tries = job.started_job_registry.key, f"rq:executions:{job.id}"
            kinds = {started: "zset", tries: "zset", f"rq:job:{job.id}": "hash", self.key: "hash"}
            _name(self.connection, {**kinds, **dict.fromkeys(map(_between, self.queues), "list")})

    def register_birth(self) -> None:
        self._listed(super().register_birth)

    def register_death(self) -> None:
        self._listed(super().register_death)

    def _listed(self, change: Callable[[], None]) -> None:
        """The lists of workers are for those who look on."""
        try:
            change()
        except ResponseError as error:
            if code_of(error) != "WRONGTYPE":
                raise
            lists = [self.redis_workers_keys, *(f"rq:workers:{name}" for name in self.queue_names())]
            _name(self.connection, {**dict.fromkeys(lists, "set"), self.key: "hash"})

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Not with each job: a session waits for it."""
        beat = self.last_heartbeat
        if pipeline is None and timeout is None and beat is not None and datetime.now(UTC) < beat + OFTEN:
            return
        super().heartbeat(timeout, pipeline)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        if pipeline is not None or state != self.get_state():
            super().set_state(state, pipeline)

    def beat(self) -> None:
        """From a thread: RQ's lists would lose a job that gives no sign of life for some minutes."""
        if (job := self.job) is not None:
            self.maintain_heartbeats(job)

    def subscribe(self) -> None:
        """No orders through RQ: its way to stop a job would count as a crash of the task."""

    def unsubscribe(self) -> None:
        """See subscribe."""


def _between(queue: Queue) -> str:
    key: str = queue.intermediate_queue_key
    return key


def _name(connection: Redis, kinds: dict[str, str]) -> None:
    """Log what else is kept under keys that RQ needs, each time it is something new."""
    client: Any = connection
    error = taken(PLACE, list(kinds), list(kinds.values()), client.type)
    if error.message not in _said:
        _said.add(error.message)
        log.error("%s", error)
