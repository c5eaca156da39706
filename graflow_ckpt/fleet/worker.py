"""A worker process: what it connects to, what it runs slices with, and how it comes to its end.

    drain      finish the task that runs, commit, hand the token over       SIGTERM
    deadline   it does not finish: checkpoint, give back its claim, go      the end of the grace period
    leave      give back its claim and go, at once                          a second signal to the pool
    lost       the token is void and the body still runs: go                hard cancel, a lease that ran out

What cannot wait for the body has a thread of its own, begun when it is needed: by the signal's handler, or
by the keeper, since a handler only runs between two steps of the main thread, and the body may be anywhere:
in C code, in a lock, in an `except BaseException`. A worker that holds the interpreter's lock is killed by
the pool's parent. Not here: how it waits for tokens (listening.py), what a slice does (slice.py), who
starts workers (pool.py).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic, sleep
from types import FrameType
from typing import Any, Literal

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from rq.serializers import JSONSerializer

from graflow_ckpt._restore import in_foreign_main
from graflow_ckpt.core.errors import GraflowError, ServerGone
from graflow_ckpt.fleet.board import Line, Order, State
from graflow_ckpt.fleet.forks import deaf, leave
from graflow_ckpt.fleet.listening import Listening
from graflow_ckpt.fleet.lists import owner_text
from graflow_ckpt.fleet.reaping import GAVE_UP, STOPPED, take
from graflow_ckpt.fleet.slice import CODE_PATIENCE, Observers, Slice, Worker, serve
from graflow_ckpt.fleet.tokens import Carrier, queue_name
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores.keys import Keyring

log = logging.getLogger("graflow_ckpt.fleet")

TTL = 75
"""Seconds without a sign of life after which RQ takes a worker for dead."""


Manner = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How a pool is run. Parsed already: what is wrong here is the caller's mistake."""

    url: str
    rq_url: str = ""  # "": the same server
    queues: tuple[str, ...] = ("default",)
    n: int = 1
    lease: float = 15.0
    budget: float = 2.0
    grace: float = 30.0
    log: Manner = "text"
    preload: tuple[str, ...] = ()  # modules that are imported once, before the workers are forked
    code_patience: float = CODE_PATIENCE
    observers: tuple[str, ...] = ()  # module:name of what makes them

    @property
    def rq(self) -> str:
        """The server of RQ's queues."""
        return self.rq_url or self.url


def work(settings: PoolSettings, line: Line, label: str, keyring: Keyring) -> int:
    """The life of a worker, in a process of its own; its exit status."""
    in_foreign_main()
    link = reached(settings.url)
    rq = reached(settings.rq).client
    # without retries RQ would leave its loop at the first broken connection
    rq.set_retry(Retry(ExponentialBackoff(cap=0.5, base=0.02), 10))
    carrier = Carrier(reached(settings.rq).client)
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


def _listening(settings: PoolSettings, rq: redis.Redis, worker: Worker, line: Line) -> Listening:
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


LAST = 1.0
"""Seconds that a body is given to unwind, once what it does does not count any more."""

LOOK = 0.05
"""Seconds between looks at the board while the end of the grace period is waited for."""

BEAT = 60.0
"""Seconds between signs of life of a slice that runs."""


class Leaving:
    """One per process that runs slices. Made in its main thread."""

    def __init__(self, worker: Worker, line: Line, grace: float) -> None:
        self._worker = worker
        self._line = line
        self._grace = grace
        self._lost: Slice | None = None
        self._pid = os.getpid()
        self._drains = False
        self._beat_at = monotonic() + BEAT
        self._gone = False  # the main thread may unwind now
        self.on_stop: Callable[[], None] = lambda: None  # in the main thread: nothing new is to begin
        self.beat: Callable[[], None] = lambda: None  # now and then while a slice runs
        worker.on_lost = self._token_lost
        worker.keeper.look = self._look

    def begin(self) -> None:
        """From now on signals are heard."""
        deaf(signal.SIGINT)
        signal.signal(signal.SIGTERM, self.told)
        os.register_at_fork(after_in_child=_forget)  # what a task forks has to end when it is told to
        self._look()  # the order may have come before there was anybody to hear it

    def told(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM."""
        if os.getpid() != self._pid:  # a child that a task has just forked
            _forget()
            os.kill(os.getpid(), number)
            return
        if self._gone:
            raise SystemExit(GAVE_UP)
        self._begin_to_drain()
        self.on_stop()

    def _begin_to_drain(self) -> None:
        self._worker.drain()
        if not self._drains:
            self._drains = True
            start_new_thread(self._drain, ())  # not a Thread: its locks may be held by who was interrupted

    def _token_lost(self) -> None:
        now = self._worker.slice
        if now is not None and now is not self._lost:
            self._lost = now
            start_new_thread(self._go_when_it_stays, (now,))

    def _look(self) -> None:
        """By the keeper, many times a second while a slice runs."""
        if self._line.order is not Order.WORK:
            self._begin_to_drain()
        if monotonic() > self._beat_at:
            self._beat_at = monotonic() + BEAT
            start_new_thread(self._beat, ())

    # --- threads -----------------------------------------------------------------------

    def _beat(self) -> None:
        try:
            self.beat()
        except Exception as error:  # noqa: BLE001  a keeper's pass
            log.info("no sign of life for RQ: %s", error)

    def _drain(self) -> None:
        order = self._line.order
        deadline = self._line.deadline if order is not Order.WORK else monotonic() + self._grace
        while self._line.order is not Order.LEAVE and (left := deadline - monotonic()) > 0:
            sleep(min(left, LOOK))
        now = self._worker.slice
        if now is not None:
            if self._line.order is not Order.LEAVE:
                self._cut(now)
            self._give_back(now)
        self._go()

    def _cut(self, now: Slice) -> None:
        """The task does not finish in time: how far the session is, for who wants to go on elsewhere."""
        session = now.session
        try:
            with now.home.turn() as mine:  # of several workers of a session, one
                if mine:
                    now.home.cut("signal", None)
        except Exception as error:  # noqa: BLE001  a save
            log.error("checkpoint failed: %s", error, extra={"session": session.id})

    def _give_back(self, now: Slice) -> None:
        session = now.session
        facts: dict[str, Any] = {"session": session.id, "token": session.token}
        self._worker.leaving = True
        for claim in list(session.held.values()):
            task = claim.spec.task_id
            log.warning("task %s did not finish in time; it runs again", task, extra={**facts, "task": task})
        try:
            take(self._worker, session.id, session.token, STOPPED, forced=True, crashed=False)
        except GraflowError as error:  # the parent tries again, and then the stewards
            log.warning("a claim could not be given back: %s", error, extra=facts)

    def _go_when_it_stays(self, now: Slice) -> None:
        """What runs has lost its token. It was told; a body that does not listen goes with its process."""
        deadline = monotonic() + LAST
        while self._worker.slice is now and monotonic() < deadline:
            sleep(0.02)
        if self._worker.slice is now:
            facts = {"session": now.session.id, "token": now.session.token}
            log.warning("a task goes on though its token is lost: this process is replaced", extra=facts)
            self._worker.leaving = True
            self._go()

    def _go(self) -> None:
        """Unwind the body, so that it can put its things in order; if it does not, leave without it."""
        self._gone = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        sleep(LAST)
        leave(GAVE_UP)


def _forget() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
