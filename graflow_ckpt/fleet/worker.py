"""A worker process: what it connects to, what it runs slices with, and how it ends.

    drain      finish the task that runs, commit, pass the token on   SIGTERM
    deadline   it does not finish: checkpoint, release claim, exit    the end of the grace period
    leave      release its claim and exit, at once                    a second signal to the pool
    lost       the token is void and the body still runs: exit        hard cancel, a lease that ran out

What cannot wait for the body has a thread of its own, begun when it is needed: by the signal's handler, or
by the keeper, since a handler only runs between two steps of the main thread, and the body may be anywhere:
in C code, in a lock, in an `except BaseException`. A worker that holds the interpreter's lock is killed by
the pool's parent. Not here: what a slice does (slice.py), what starts workers (pool.py).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from types import FrameType
from typing import Any, Literal

from redis import Redis, RedisError, ResponseError
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from rq import Queue
from rq.exceptions import DequeueTimeout
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty
from rq.utils import get_version
from rq.worker import SimpleWorker

from graflow_ckpt._restore import in_foreign_main
from graflow_ckpt.core.errors import GraflowError, ServerGone
from graflow_ckpt.fleet.board import BoardLine, Order, State
from graflow_ckpt.fleet.deaths import GAVE_UP, STOPPED, take
from graflow_ckpt.fleet.lists import owner_text
from graflow_ckpt.fleet.slice import CODE_PATIENCE, Slice, Worker, observers_of, run_slice, serve
from graflow_ckpt.fleet.tokens import Carrier, queue_name, token_in
from graflow_ckpt.links.complaints import code_of, taken
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores.around.keys import Keyring

log = logging.getLogger("graflow_ckpt.fleet")

TTL = 75
"""Seconds without a sign of life after which RQ takes a worker for dead."""


Manner = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of a pool. Parsed already: what is wrong here is the caller's mistake."""

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


def work(settings: PoolSettings, line: BoardLine, label: str, keyring: Keyring) -> int:
    """Run a worker, in a process of its own; return its exit status."""
    in_foreign_main()
    link = reached(settings.url)
    rq = reached(settings.rq).client
    # without retries RQ would leave its loop at the first broken connection
    rq.set_retry(Retry(ExponentialBackoff(cap=0.5, base=0.02), 10))
    carrier = Carrier(reached(settings.rq))
    owner = owner_text(replace(myself(), argv=label))
    worker = Worker(
        link, carrier, keyring, owner=owner, lease=settings.lease, budget=settings.budget,
        code_patience=settings.code_patience,
    )  # fmt: skip
    worker.note = line.note
    worker.observers = tuple(observers_of(settings.observers))
    serve(worker)
    listening = Listening(
        [queue_name(queue) for queue in settings.queues],
        name=rq_name(os.getpid()),
        connection=rq,
        serializer=JSONSerializer,
        worker_ttl=TTL,
        log_job_description=False,
    )
    listening.worker = worker
    shutdown = Shutdown(listening, line, settings.grace)
    listening.on_stop = shutdown.told
    shutdown.begin()
    line.now(State.IDLE)
    listening.work(logging_level="WARNING")
    return 0


def rq_name(pid: int) -> str:
    """Return what RQ calls a worker of this machine."""
    return f"graflow-{socket.gethostname()}-{pid}"


def reached(url: str) -> RedisLink:
    """Return a link; a server that is not there yet is waited for."""
    said = False
    while True:
        try:
            return open_link(url)
        except ServerGone as error:
            if not said:
                log.warning("waiting: %s", error)
            said = True
            time.sleep(0.5)


# --- RQ's side of it ------------------------------------------------------------------------

OFTEN = timedelta(seconds=5)
"""Between signs of life of a worker that has much to do."""

_BLMOVE = (6, 2, 0)  # the version of Redis that has it
_said: set[str] = set()  # each key that something else is kept under is named once


class NoAlarm(BaseDeathPenalty):
    """Attempts have deadlines of their own, and the alarm of a process may be the task's."""

    def setup_death_penalty(self) -> None:
        """Do nothing."""

    def cancel_death_penalty(self) -> None:
        """Do nothing."""


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
                if timeout is None:
                    return None  # the caller does not wait, and would ask again at once
                time.sleep(timeout)
                raise DequeueTimeout(timeout, keys) from None
            found = cls.lpop(sound, timeout, connection=connection)
        if found is None:
            return None
        key, name = found
        return (key.encode() if isinstance(key, str) else key), name


class Listening(SimpleWorker):
    """A worker of RQ that waits for tokens, runs slices in its own process, and is asked for nothing else.

    It supervises nothing: its alarms, retries, callbacks, orders, scheduler and maintenance are not used, and
    what it still keeps of the dead is withdrawn by the worker or steward that reaps them. Of RQ's classes
    only what is public is touched, and the flag that ends its loop.

    Promise: of what RQ keeps in Redis a worker reads the names in its queues and nothing else. A job is made
    here of its name, which holds session and token, so nothing that a job's hash, a registry or a callback
    says is imported, called or fetched. RQ's lists are advisory: one that cannot be written to is named, and
    the slice runs.
    """

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
        _flush()  # a pipe or a file would show what tasks print when the worker ends, and never after a kill
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
        """Stop; RQ has this called for SIGTERM and SIGINT, and the second is for the parent to handle."""
        if signum != signal.SIGINT:
            self.on_stop(signum, frame)

    def take_no_more(self) -> None:
        """Take no more tokens; called in a handler, in the main thread."""
        self._stop_requested = True
        if self._waits:
            raise SystemExit(0)

    # --- what RQ is told ---------------------------------------------------------------

    def _begin(self, job: Job, queue: Queue) -> None:
        """Report to RQ that the job runs, in one round trip, in which nothing is read."""
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
        """Report to RQ that the job is over, and delete it."""
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
            between = [queue.intermediate_queue_key for queue in self.queues]
            _name(self.connection, {**kinds, **dict.fromkeys(between, "list")})

    def register_birth(self) -> None:
        self._listed(super().register_birth)

    def register_death(self) -> None:
        self._listed(super().register_death)

    def _listed(self, change: Callable[[], None]) -> None:
        """Change the lists of workers; an error there is logged: they are for observers only."""
        try:
            change()
        except ResponseError as error:
            if code_of(error) != "WRONGTYPE":
                raise
            lists = [self.redis_workers_keys, *(f"rq:workers:{name}" for name in self.queue_names())]
            _name(self.connection, {**dict.fromkeys(lists, "set"), self.key: "hash"})

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Send a heartbeat, but not with each job: a session waits for it."""
        beat = self.last_heartbeat
        if pipeline is None and timeout is None and beat is not None and datetime.now(UTC) < beat + OFTEN:
            return
        super().heartbeat(timeout, pipeline)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        if pipeline is not None or state != self.get_state():
            super().set_state(state, pipeline)

    def beat(self) -> None:
        """Send a sign of life from a thread: RQ's lists would lose a job without one for some minutes."""
        if (job := self.job) is not None:
            self.maintain_heartbeats(job)

    def subscribe(self) -> None:
        """Do nothing: RQ's way to stop a job would count as a crash of the task."""

    def unsubscribe(self) -> None:
        """See subscribe."""


def _name(connection: Redis, kinds: dict[str, str]) -> None:
    """Log what else is kept under keys that RQ needs, each time it is something new."""
    client: Any = connection
    error = taken("RQ's server", kinds, client.type)
    if error.message not in _said:
        _said.add(error.message)
        log.error("%s", error)


# --- children of a pool: forked, and gone the moment their parent is ------------------------

# A child inherits what its parent has loaded, so that it is ready in milliseconds and shares its memory. It
# inherits no connection: the parent uses none that a child would use.

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None)  # opened once, by the parent


def fork(body: Callable[[], int]) -> int:
    """Fork a child that runs `body` and ends with the status that it returns; return its pid."""
    parent = os.getpid()
    _flush()
    gc.freeze()  # else the first collection in the child would copy every page that it looks at
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)  # a terminal's Ctrl-C is for the parent, and not for what tasks have started
        die_with(parent)
        _seed()
        status = body()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        log.exception("a process of the pool failed")
    finally:
        leave(status)
    raise AssertionError("unreachable")


def leave(status: int) -> None:
    """End this process: without the exit handlers that it has inherited, and without waiting for threads."""
    logging.shutdown()
    _flush()
    os._exit(status)


def die_with(parent: int) -> None:
    """End this process from now on when its parent ends, whatever it is doing."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), name="graflow-parent", daemon=True).start()
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def be_called(name: str) -> None:
    """Set the name of this process in `ps` and `top`, next to the command line that it shares."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_NAME, name.encode()[:15])


def deaf(number: int) -> None:
    """Ignore the signal here. Not SIG_IGN: programs that a task starts would inherit that."""
    signal.signal(number, lambda number, frame: None)


def _watch(parent: int) -> None:
    """End this process when its parent has ended; without handles of processes it has to look."""
    with suppress(AttributeError, OSError):
        select.select([os.pidfd_open(parent)], [], [])
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _seed() -> None:
    """Reseed numpy, else every worker draws the same numbers; the standard library reseeds itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or no process reads it
            stream.flush()


# --- how it ends ----------------------------------------------------------------------------

LAST = 1.0
"""Seconds that a body is given to unwind, once what it does does not count any more."""

LOOK = 0.05
"""Seconds between looks at the board while the end of the grace period is waited for."""

BEAT = 60.0
"""Seconds between signs of life of a slice that runs."""


class Shutdown:
    """One per process that runs slices. Made in its main thread."""

    def __init__(self, listening: Listening, line: BoardLine, grace: float) -> None:
        self._listening = listening
        self._worker = listening.worker
        self._line = line
        self._grace = grace
        self._lost: Slice | None = None
        self._pid = os.getpid()
        self._drains = False
        self._beat_at = monotonic() + BEAT
        self._gone = False  # the main thread may unwind now
        self._worker.watched_by(self._token_lost, self._look)

    def begin(self) -> None:
        """Handle signals from now on."""
        deaf(signal.SIGINT)
        signal.signal(signal.SIGTERM, self.told)
        os.register_at_fork(after_in_child=_forget)  # what a task forks has to end when it is told to
        if self._line.order is not Order.WORK:  # it has come before there was a handler
            self.told(signal.SIGTERM, None)

    def told(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM."""
        if os.getpid() != self._pid:  # a child that a task has just forked
            _forget()
            os.kill(os.getpid(), number)
            return
        if self._gone:
            self._listening.take_no_more()  # a slice catches the exit, and RQ would take the next token
            raise SystemExit(GAVE_UP)
        self._begin_to_drain()
        self._listening.take_no_more()

    def _begin_to_drain(self) -> None:
        self._worker.drain()
        if not self._drains:
            self._drains = True
            start_new_thread(self._drain, ())  # not a Thread: its locks may be held by the interrupted code

    def _token_lost(self) -> None:
        now = self._worker.slice
        if now is not None and now is not self._lost:
            self._lost = now
            start_new_thread(self._go_when_it_stays, (now,))

    def _look(self) -> None:
        """Look at the board; the keeper calls this many times a second while a slice runs."""
        if self._line.order is not Order.WORK:
            self._begin_to_drain()
        if monotonic() > self._beat_at:
            self._beat_at = monotonic() + BEAT
            start_new_thread(self._beat, ())

    # --- threads -----------------------------------------------------------------------

    def _beat(self) -> None:
        try:
            self._listening.beat()
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
        """Save how far the session is, for another worker: the task does not finish in time."""
        session, home = now.part.session, now.part.home
        try:
            with home.facts.turn() as mine:  # of several workers of a session, one
                if mine:
                    home.cut("signal", None)
        except Exception as error:  # noqa: BLE001  a save
            log.error("checkpoint failed: %s", error, extra={"session": session.id})

    def _give_back(self, now: Slice) -> None:
        session = now.part.session
        facts: dict[str, Any] = {"session": session.id, "token": session.token}
        self._worker.leaves()
        for claim in list(session.held.values()):
            task = claim.spec.task_id
            log.warning("task %s did not finish in time; it runs again", task, extra={**facts, "task": task})
        try:
            take(self._worker, session.id, session.token, STOPPED, forced=True, crashed=False)
        except GraflowError as error:  # the parent tries again, and then the stewards
            log.warning("a claim could not be given back: %s", error, extra=facts)

    def _go_when_it_stays(self, now: Slice) -> None:
        """Replace this process if what runs has lost its token, and the body does not stop."""
        deadline = monotonic() + LAST
        while (stays := self._worker.slice is now and bool(now.part.session.held)) and monotonic() < deadline:
            sleep(0.02)
        if stays:
            facts = {"session": now.part.session.id, "token": now.part.session.token}
            log.warning("a task goes on though its token is lost: this process is replaced", extra=facts)
            self._worker.leaves()
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
