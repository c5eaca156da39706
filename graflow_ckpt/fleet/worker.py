"""A worker process: RQ waits for tokens in it and calls run_slice, here or in a child (a horse).

RQ supervises nothing: its alarms, retries, callbacks and scheduler are not used, and what it still
believes of the dead is withdrawn by whoever reaps them. It has a connection of its own.
Not here: what a slice does (slice.py), how a process ends (leaving.py), who starts workers (pool.py).
"""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, Literal

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty
from rq.worker import BaseWorker, SimpleWorker
from rq.worker import Worker as ForkWorker

from graflow_ckpt._restore import in_foreign_main
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.core.errors import GraflowError, ServerFull, ServerGone
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.fleet.board import Line, Order, State
from graflow_ckpt.fleet.forks import die_with, leave
from graflow_ckpt.fleet.leaving import Leaving
from graflow_ckpt.fleet.lists import owner_text
from graflow_ckpt.fleet.reaping import Death, take
from graflow_ckpt.fleet.slice import CODE_PATIENCE, Worker, run_slice, serve
from graflow_ckpt.fleet.tokens import RUN_SLICE, Carrier, queue_name
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink, open_link

log = logging.getLogger("graflow_ckpt.fleet")

Mode = Literal["simple", "fork"]

_TOKEN = re.compile(r"e\d+t\d+")

OFTEN = timedelta(seconds=5)
"""Between signs of life of a worker that has much to do."""

TTL = 75
"""Seconds without a sign of life after which RQ takes a worker for dead."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told when it is started."""

    url: str
    rq_url: str
    queues: tuple[str, ...]
    mode: Mode = "simple"
    lease: float = 15.0
    budget: float = 2.0
    grace: float = 30.0
    code_patience: float = CODE_PATIENCE


class NoAlarm(BaseDeathPenalty):
    """Attempts have deadlines of their own, and the alarm of a process may be the task's."""

    def setup_death_penalty(self) -> None:
        """None."""

    def cancel_death_penalty(self) -> None:
        """None."""


class _Waiting(BaseWorker):
    """What both kinds of worker have in common: how they wait, and how they stop."""

    max_connection_wait_time = 1.0  # a server that is back is noticed at once
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
        """No orders through RQ: its way to stop a job would count as a crash of the task. Nor is a thread for
        them wanted where processes are forked."""

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


class InProcess(_Waiting, SimpleWorker):
    """Slices run in this process."""

    death_penalty_class = NoAlarm
    worker: Worker
    job: Job | None = None

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


class InHorses(_Waiting, ForkWorker):
    """Each slice runs in a child. What kills that leaves this process as it was.

    All that needs RQ's server is done here, before and after: a child would have to connect first.
    """

    worker: Worker
    line: Line
    grace: float
    _parent = 0
    _status: int | None = None  # of the last horse

    # --- here --------------------------------------------------------------------------

    def execute_job(self, job: Job, queue: Queue) -> None:
        if not self.accepts(job, queue):
            return
        super().execute_job(job, queue)
        self.worker.part(*job.args)
        if self._status == 0:
            self.done(job, queue)
        else:
            self.set_current_job_id(None)

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        self._parent = os.getpid()
        self.prepare_job_execution(job, len(self.queues) == 1)
        self._prepare(job)
        super().fork_work_horse(job, queue)
        if self._stop_requested:  # the order came while the horse had no name yet
            os.kill(self.horse_pid, signal.SIGTERM)

    def _prepare(self, job: Job) -> None:
        """This process has connections already, and everything that a horse touches first is slow."""
        session, token = job.args
        self.line.note(session, token)  # from here on somebody has to take it, should it come to that
        try:
            self.worker.prepare(session, token)
        except GraflowError as error:  # it is the horse's turn
            log.info("slice %s of session %s: %s", token, session, error, extra={"session": session})

    def wait_for_horse(self) -> Any:
        """RQ would see to the remains later, and ask its server first."""
        found = super().wait_for_horse()
        _, status, usage = found
        self._status = status
        if self.line.run is not None:  # a slice that ends takes its note away, whatever its body did
            self._bury(Death.of(status or 0, usage))
        return found

    def stop(self, number: int, frame: FrameType | None) -> None:
        if self.horse_pid:
            with suppress(ProcessLookupError):
                os.kill(self.horse_pid, signal.SIGTERM)
        self.worker.draining = True
        self.take_no_more()

    def _bury(self, death: Death) -> None:
        """Take the token of a horse that died with it."""
        run = self.line.run
        while run is not None:
            try:
                take(self.worker, *run, death.why, forced=True, crashed=not death.gave_up)
                break
            except (ServerGone, ServerFull) as error:
                if self._stop_requested or self.line.order is not Order.WORK:
                    break  # the stewards will find it
                log.warning("what a dead process held waits: %s", error, extra=run._asdict())
                time.sleep(0.5)
            except GraflowError as error:
                log.warning(
                    "what a dead process held is left to the stewards: %s", error, extra=run._asdict()
                )
                break
        self.line.note("", "")

    # --- in the horse ------------------------------------------------------------------

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        self.death_penalty_class = NoAlarm
        die_with(self._parent)
        super().main_work_horse(job, queue)

    def setup_work_horse_signals(self) -> None:
        Leaving(self.worker, self.line, self.grace).begin()

    def perform_job(self, job: Job, queue: Queue) -> bool:
        run_slice(*job.args)
        leave(0)  # RQ would leave what was printed in its buffer
        return True


def work(settings: WorkerSettings, line: Line, label: str, keyring: Keyring) -> int:
    """The life of a worker, in a process of its own; its exit status."""
    in_foreign_main()
    link = reached(settings.url)
    rq = reached(settings.rq_url).client
    # without retries RQ would leave its loop at the first broken connection
    rq.set_retry(Retry(ExponentialBackoff(cap=0.5, base=0.02), 10))
    carrier = Carrier(reached(settings.rq_url).client)
    owner = replace(myself(), argv=label)
    worker = Worker(
        link, carrier, keyring, owner=owner_text(owner), lease=settings.lease, budget=settings.budget,
        code_patience=settings.code_patience,
    )  # fmt: skip
    worker.note = line.note
    serve(worker)
    listening = _listening(settings, rq, worker, line)
    gc.freeze()  # a horse's collections would copy every page that they look at
    line.now(State.IDLE)
    listening.work(logging_level="WARNING")
    return 0


def _listening(settings: WorkerSettings, rq: redis.Redis, worker: Worker, line: Line) -> InProcess | InHorses:
    kind = InHorses if settings.mode == "fork" else InProcess
    found = kind(
        [queue_name(queue) for queue in settings.queues],
        name=rq_name(os.getpid()),
        connection=rq,
        serializer=JSONSerializer,
        worker_ttl=TTL,
        log_job_description=False,
    )
    found.worker = worker
    if isinstance(found, InHorses):
        found.line, found.grace = line, settings.grace
        found.on_stop = found.stop
        return found
    leaving = Leaving(worker, line, settings.grace)
    leaving.on_stop, leaving.beat = found.take_no_more, found.beat
    found.on_stop = leaving.told
    leaving.begin()
    return found


def rq_name(pid: int) -> str:
    """What RQ calls a worker of this machine."""
    return f"graflow-{socket.gethostname()}-{pid}"


def reached(url: str) -> RedisLink:
    """A link; a server that is not there yet is waited for."""
    said = False
    while True:
        try:
            return open_link(url)
        except ServerGone as error:
            if not said:
                log.warning("waiting: %s", error)
            said = True
            time.sleep(0.5)
