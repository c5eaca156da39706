"""A worker process: what it connects to, and what it runs slices with.

Not here: how it waits for tokens (listening.py), what a slice does (slice.py), how the process
ends (leaving.py), who starts workers (pool.py).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass, replace

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from rq.serializers import JSONSerializer

from graflow_ckpt._restore import in_foreign_main
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.fleet.board import Line, State
from graflow_ckpt.fleet.leaving import Leaving
from graflow_ckpt.fleet.listening import Listening
from graflow_ckpt.fleet.lists import owner_text
from graflow_ckpt.fleet.slice import CODE_PATIENCE, Worker, serve
from graflow_ckpt.fleet.tokens import Carrier, queue_name
from graflow_ckpt.fleet.watching import Observers
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink, open_link

log = logging.getLogger("graflow_ckpt.fleet")

TTL = 75
"""Seconds without a sign of life after which RQ takes a worker for dead."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told when it is started."""

    url: str
    rq_url: str
    queues: tuple[str, ...]
    lease: float = 15.0
    budget: float = 2.0
    grace: float = 30.0
    code_patience: float = CODE_PATIENCE
    observers: tuple[str, ...] = ()


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
    worker.observers = Observers(settings.observers)
    serve(worker)
    listening = _listening(settings, rq, worker, line)
    line.now(State.IDLE)
    listening.work(logging_level="WARNING")
    return 0


def _listening(settings: WorkerSettings, rq: redis.Redis, worker: Worker, line: Line) -> Listening:
    found = Listening(
        [queue_name(queue) for queue in settings.queues],
        name=rq_name(os.getpid()),
        connection=rq,
        serializer=JSONSerializer,
        worker_ttl=TTL,
        log_job_description=False,
    )
    found.worker = worker
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
