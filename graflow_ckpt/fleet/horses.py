"""Horses: each slice runs in a child of the worker, and what kills that kills nobody else.

A horse is forked when its token is there, and everything that it touches first is slow, connections above
all. So its parent, who has them, does what it can before and after: it begins on the token, tells RQ, and
takes what a dead horse held.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from redis import RedisError
from rq import Queue
from rq.job import Job
from rq.worker import Worker as ForkWorker

from graflow_ckpt.core.errors import GraflowError, ServerFull, ServerGone
from graflow_ckpt.fleet.board import Line, Order
from graflow_ckpt.fleet.forks import die_with, leave
from graflow_ckpt.fleet.leaving import Leaving
from graflow_ckpt.fleet.listening import Listening, NoAlarm
from graflow_ckpt.fleet.reaping import Death, take
from graflow_ckpt.fleet.slice import Worker, run_slice

log = logging.getLogger("graflow_ckpt.fleet")


class InHorses(Listening, ForkWorker):
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
        with suppress(GraflowError):  # a server that is away is waited for where it is needed
            self.worker.link.provide()
        if self._status == 0:
            self.done(job, queue)
        else:
            self.set_current_job_id(None)

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        self._parent = os.getpid()
        self.prepare_job_execution(job, len(self.queues) == 1)
        self._prepare(job)
        super().fork_work_horse(job, queue)
        self.worker.link.provided()
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

    def set_current_job_working_time(self, current_job_working_time: float, pipeline: Any = None) -> None:
        """See maintain_heartbeats."""
        with suppress(RedisError):
            super().set_current_job_working_time(current_job_working_time, pipeline)

    def maintain_heartbeats(self, job: Job) -> None:
        """A server that is away is waited for by the horse: without its parent it would be killed."""
        with suppress(RedisError):
            super().maintain_heartbeats(job)

    def wait_for_horse(self) -> Any:
        """RQ would see to the remains later, and ask its server first."""
        found = super().wait_for_horse()
        signal.alarm(0)  # RQ's own, for a horse that lives: how this one died would be forgotten
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
