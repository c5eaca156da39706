"""Listening: RQ waits for tokens and calls slices, and is asked for nothing else.

It supervises nothing: its alarms, retries, callbacks, orders and scheduler are not used, and what it
still believes of the dead is withdrawn by whoever reaps them. Of RQ's classes only what is public is
touched, and the flag that ends its loop.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.timeouts import BaseDeathPenalty
from rq.worker import SimpleWorker

from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.fleet.slice import Worker, run_slice
from graflow_ckpt.fleet.tokens import RUN_SLICE

log = logging.getLogger("graflow_ckpt.fleet")

OFTEN = timedelta(seconds=5)
"""Between signs of life of a worker that has much to do."""

_TOKEN = re.compile(r"e\d+t\d+")


class NoAlarm(BaseDeathPenalty):
    """Attempts have deadlines of their own, and the alarm of a process may be the task's."""

    def setup_death_penalty(self) -> None:
        """None."""

    def cancel_death_penalty(self) -> None:
        """None."""


class Listening(SimpleWorker):
    """A worker of RQ that runs slices in its own process."""

    death_penalty_class = NoAlarm
    worker: Worker
    job: Job | None = None
    max_connection_wait_time = 1.0  # a server that is back is noticed at once
    # shorter than a link is patient: RQ raises the patience of new connections only, and a wait that the
    # open one gave up would look like a lost server; after ten of them, an idle minute, RQ ends the worker
    dequeue_timeout = 3
    _waits = False
    on_stop: Callable[[int, FrameType | None], None]

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

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """RQ has this called for SIGTERM and SIGINT; the second is for the parent to understand."""
        if signum != signal.SIGINT:
            self.on_stop(signum, frame)

    def handle_job_success(self, job: Job, *args: Any, **options: Any) -> None:
        """A job whose token was taken from here is withdrawn; RQ would call that a failure, and keep it."""
        try:
            super().handle_job_success(job, *args, **options)
        except (InvalidJobOperation, NoSuchJobError):
            if self.connection.hexists(job.key, "status"):
                raise
            with self.connection.pipeline() as pipeline:
                self.cleanup_execution(job, pipeline=pipeline)
                pipeline.delete(job.key)  # a sign of life may have made it anew
                pipeline.execute()

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Not with each job: somebody waits for it."""
        beat = self.last_heartbeat
        if pipeline is None and timeout is None and beat is not None and datetime.now(UTC) < beat + OFTEN:
            return
        super().heartbeat(timeout, pipeline)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        if pipeline is not None or state != self.get_state():
            super().set_state(state, pipeline)

    def subscribe(self) -> None:
        """No orders through RQ: its way to stop a job would count as a crash of the task."""

    def unsubscribe(self) -> None:
        """See subscribe."""

    def accepts(self, job: Job, queue: Queue) -> bool:
        """Whether it is a token. Nothing else is ever called: who can write to RQ's queues can name any
        function there, and no key is asked for."""
        try:
            session, token = job.args
            if job.func_name == RUN_SLICE and check_session_id(session) and _TOKEN.fullmatch(token):
                return True
        except Exception as error:  # noqa: BLE001  a worker's loop: whatever somebody has written there
            log.debug("job %s cannot be read: %s", job.id, error)
        log.error("job %s in %s is no token of a session, and is removed", job.id, queue.name)
        queue.intermediate_queue.remove(job.id)
        job.delete()
        return False

    def done(self, job: Job, queue: Queue) -> None:
        """For RQ its job has succeeded, whatever became of the session."""
        job.ended_at = datetime.now(UTC)
        self.handle_job_success(job, queue, queue.started_job_registry)

    def take_no_more(self) -> None:
        """In a handler, in the main thread."""
        self._stop_requested = True
        if self._waits:
            raise SystemExit(0)

    def execute_job(self, job: Job, queue: Queue) -> None:
        if not self.accepts(job, queue):
            return
        self.job = job
        super().execute_job(job, queue)
        self.job = None
        if self.worker.worn:
            log.warning("a task does not end: this process is replaced")
            self._stop_requested = True

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """RQ would call whatever function the job names, and tell its server more about it."""
        self.prepare_job_execution(job, len(self.queues) == 1)
        job.started_at = datetime.now(UTC)
        run_slice(*job.args)
        self.done(job, queue)
        return True

    def beat(self) -> None:
        """From a thread: RQ takes a job for abandoned that gives no sign of life for some minutes."""
        if (job := self.job) is not None:
            self.maintain_heartbeats(job)
