"""A pool: a parent without threads, N workers and a steward, all forked from it.

    SIGTERM, SIGINT   drain: each worker finishes its task and hands its session over; again: leave now
    SIGHUP            each worker in turn drains and is restarted; of a terminal that was closed: drain
    a child dies      what it ran is given to the others at once, with what killed it; a new one is started

Promise: no child outlives its parent, however that ends; a task that kills its worker costs the others
nothing. The parent never waits for Redis: what cannot be done now is done when the server is back.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from time import monotonic
from typing import Any
from urllib.parse import quote

from rq.version import VERSION

import graflow_ckpt
from graflow_ckpt.core.errors import (
    GraflowError,
    KeyTaken,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    SessionBusy,
)
from graflow_ckpt.fleet.board import Board, BoardLine, Order, RunningSlice, State
from graflow_ckpt.fleet.deaths import STOPPED, Death, Hands, take
from graflow_ckpt.fleet.health import sign_off
from graflow_ckpt.fleet.lists import asked
from graflow_ckpt.fleet.slice import maker_of
from graflow_ckpt.fleet.steward import Charge, steward
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.fleet.worker import Manner, PoolSettings, be_called, deaf, fork, rq_name, work
from graflow_ckpt.links.addresses import parse
from graflow_ckpt.links.redis import examine, open_link
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.names import check_queue
from graflow_ckpt.stores.around.keys import Keyring

log = logging.getLogger("graflow_ckpt.fleet")

MARGIN = 10.0
"""Seconds after the grace period in which a worker takes its checkpoint and gives its claim back."""

HASTE = 3.0
"""The same for a worker that was told to leave at once."""

TOO_SOON = 3
"""So many children that died before they had run anything are started anew at once; then it takes longer."""

LATEST = 10.0
"""Seconds until a child is started anew, at the latest."""

OLDEST_RQ = (2, 9)
"""Before, a worker of RQ has no `last_heartbeat`."""

SETTLED = 10.0
"""Seconds after its birth in which a child that dies may have died of its birth."""


@dataclass(slots=True)
class Seat:
    """The place of one child process."""

    label: str
    line: BoardLine
    body: Callable[[], int]
    pid: int = 0
    told: Order = Order.WORK
    until: float = 0.0  # when it is killed, after an order
    killed: bool = False
    not_before: float = 0.0
    born: float = 0.0
    failures: int = 0  # in a row, soon after birth, without having run anything

    @property
    def works(self) -> bool:
        """True for a child that has begun, and was not told to leave."""
        return self.pid != 0 and self.told is Order.WORK and self.line.state is not State.STARTING

    def sat_in_by(self, pid: int) -> None:
        """Note that a child works here from now on."""
        self.told, self.killed = Order.WORK, False
        self.pid, self.born = pid, monotonic()
        self.line.begin(pid)

    def tell(self, order: Order, grace: float) -> None:
        deadline = monotonic() + (grace if order is Order.DRAIN else 0.0)
        self.told, self.until = order, deadline + (MARGIN if order is Order.DRAIN else HASTE)
        self.line.tell(order, deadline)
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        self.killed = True
        os.kill(self.pid, signal.SIGKILL)

    def left(self) -> None:
        """Note that the child has ended; the next one waits if those before have died too soon."""
        self.pid = 0
        well = self.line.slices or self.told is not Order.WORK or monotonic() > self.born + SETTLED
        self.failures = 0 if well else self.failures + 1
        late = max(0, self.failures - TOO_SOON)
        self.waits(min(LATEST, 0.25 * 2**late) if late else 0.0)

    def waits(self, seconds: float) -> None:
        """Start no child here before so many seconds are over."""
        self.not_before = monotonic() + seconds


class Pool:
    """The parent's side of a pool."""

    def __init__(self, settings: PoolSettings, keyring: Keyring) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._settings = settings
        self._board = Board(settings.n + 2)
        *lines, stewards, self._line = self._board.lines
        self._workers = [
            Seat(label, line, partial(work, settings, line, label, keyring))
            for label, line in ((f"worker-{n + 1}", line) for n, line in enumerate(lines))
        ]
        charge = Charge(
            self.name, settings.url, settings.rq, settings.queues, time.time(),
            [(seat.label, seat.line) for seat in self._workers], self._line, stewards,
        )  # fmt: skip
        self._steward = Seat("steward", stewards, partial(steward, charge))
        self._estate = Estate(settings.url, settings.rq, settings.queues)
        self._secrets = secrets_of(settings.url, settings.rq_url)
        self._signals: deque[int] = deque()
        self._stopped = 0  # the signal that asked for it
        self._status = 0
        self._rolling: deque[Seat] = deque()
        self._turning: Seat | None = None  # its process drains, so that a new one takes it
        self._starts = 0

    def run(self) -> int:
        """Run until it is told to stop; return the exit status."""
        ear = self._listen()
        try:
            while not (self._stopped and not any(seat.pid for seat in self._workers)):
                self._start()
                readable, _, _ = select.select([ear], [], [], self._patience())
                if readable:
                    os.read(ear, 1000)
                while self._signals:
                    self._heard(self._signals.popleft())
                for seat in self._seats:
                    self._look_at(seat)
                self._roll()
                self._estate.settle()
        finally:
            self._close()
        log.info("pool %s has ended", self.name)
        return self._status

    @property
    def _seats(self) -> list[Seat]:
        return [*self._workers, self._steward]

    # --- signals -----------------------------------------------------------------------

    def _listen(self) -> int:
        ear, mouth = os.pipe()
        os.set_blocking(mouth, False)
        signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: self._signals.append(number))
        return ear

    def _heard(self, number: int) -> None:
        match number:
            case signal.SIGHUP if not self._stopped and not os.isatty(0):
                log.info("restarting the workers one by one")
                self._rolling = deque(self._workers)
            case signal.SIGTERM | signal.SIGINT | signal.SIGHUP if not self._stopped:
                self._stopped = number
                log.info(
                    "draining: %s (again: leave at once; grace %g s)",
                    signal.Signals(number).name,
                    self._settings.grace,
                )
                self._line.tell(Order.DRAIN, 0.0)
                for seat in self._workers:
                    seat.tell(Order.DRAIN, self._settings.grace)
            case signal.SIGTERM | signal.SIGINT:
                log.warning("leaving at once: %s", signal.Signals(number).name)
                self._status = 128 + number
                for seat in self._workers:
                    seat.tell(Order.LEAVE, 0.0)

    # --- children ----------------------------------------------------------------------

    def _start(self) -> None:
        """Start a child in every seat."""
        for seat in self._seats:
            if seat.pid or monotonic() < seat.not_before or (self._stopped and seat is not self._steward):
                continue
            seat.line.reset()
            try:
                pid = fork(partial(self._child, seat))
            except OSError as error:  # no memory, or too many processes: those that run must not end for it
                log.error("%s cannot be started, and is tried again: %s", seat.label, error)
                seat.waits(LATEST)
                continue
            seat.sat_in_by(pid)
            self._starts += 1
            self._line.count(max(0, self._starts - len(self._seats)))

    def _child(self, seat: Seat) -> int:
        """Run in the child: nothing of the parent's life continues here."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        deaf(signal.SIGINT)
        be_called(seat.label)
        begin_log(self._settings.log, seat.label, self._secrets)
        self._estate.forget()
        return seat.body()

    def _look_at(self, seat: Seat) -> None:
        """Check if its child has ended, or does not, though it was told to."""
        if not seat.pid:
            return
        pid, status, usage = os.wait4(seat.pid, os.WNOHANG)
        if pid:
            self._ended(seat, status, Death.of(status, usage))
        elif seat.told is not Order.WORK and monotonic() > seat.until and not seat.killed:
            log.warning("%s (process %d) does not leave and is killed", seat.label, seat.pid)
            seat.kill()

    def _ended(self, seat: Seat, status: int, death: Death) -> None:
        pid = seat.pid
        run = seat.line.run
        gave_up = seat.killed or death.gave_up
        if run is not None:
            self._estate.owes(run, STOPPED if gave_up else str(death), crashed=not gave_up)
        if status and not gave_up:
            log.warning("%s (process %d) is gone: %s", seat.label, pid, death)
        if seat is not self._steward:
            self._estate.leaves(rq_name(pid), listed=bool(status) or seat.killed)
        seat.left()

    def _roll(self) -> None:
        """Let the next one drain when the one before it works again."""
        if self._stopped or (self._turning is not None and not self._turning.works):
            return
        self._turning = None
        if self._rolling and self._rolling[0].works:
            self._turning = self._rolling.popleft()
            self._turning.tell(Order.DRAIN, self._settings.grace)

    def _patience(self) -> float:
        """Return the seconds until there is something to do without a signal."""
        now = monotonic()
        times = [seat.not_before - now for seat in self._seats if not seat.pid and not self._stopped]
        leave = [seat for seat in self._seats if seat.pid and seat.told is not Order.WORK and not seat.killed]
        times += [seat.until - now for seat in leave]  # of one that was killed a signal tells when it is gone
        times += [0.05] if self._rolling or self._turning is not None else []
        return max(0.0, min([1.0, self._estate.patience, *times]))

    def _close(self) -> None:
        """Kill every child that is left."""
        for seat in self._seats:
            if seat.pid:
                with suppress(ProcessLookupError):
                    os.kill(seat.pid, signal.SIGKILL)
                os.wait4(seat.pid, 0)
        self._estate.close(self.name)


def run(settings: PoolSettings) -> int:
    """Run a pool, in this process, which it has to itself; return the exit status."""
    begin_log(settings.log, "pool", secrets_of(settings.url, settings.rq_url))
    _check(settings)
    keyring = Keyring.load(local=False)
    _examine(settings)
    _ = graflow_ckpt.task  # what the modules of all tasks import: once, and not in each worker
    for module in settings.preload:
        _import(module)
    for maker in settings.observers:
        maker_of(maker)  # what is not there is said now, and what is there is shared by all
    pool = Pool(settings, keyring)
    queues, where = ", ".join(settings.queues), parse(settings.url)
    log.info("pool %s: %d workers on %s at %s", pool.name, settings.n, queues, where)
    return pool.run()


def _check(settings: PoolSettings) -> None:
    if tuple(map(int, VERSION.split(".")[:2])) < OLDEST_RQ:
        raise GraflowError(
            f"RQ {VERSION} is too old to run sessions.", hint="Update it: pip install -U 'rq>=2.9,<3'."
        )
    for queue in settings.queues:
        check_queue(queue)
    if settings.n < 1 or settings.lease <= 0 or not settings.queues:
        raise ValueError("a pool has a worker, a queue and a lease")


def _examine(settings: PoolSettings) -> None:
    """Report once, at the start, what is wrong with the server; one that is not there is waited for."""
    for url in dict.fromkeys((settings.url, settings.rq)):
        try:
            link = open_link(url)
            for finding in examine(link):
                if finding.level != "ok":
                    level = logging.ERROR if finding.level == "error" else logging.WARNING
                    log.log(level, "%s %s", finding.what, finding.hint)
            link.close()
        except ServerGone as error:
            log.warning("the workers wait for their server: %s", error)


def _import(module: str) -> None:
    try:
        import_module(module)
    except ImportError as error:
        raise GraflowError(
            f"The module {module!r} cannot be imported: {error}.", hint="Check --preload and PYTHONPATH."
        ) from error


# --- its log: one line per fact, as text or as JSON, on stderr -----------------------------

# Promise: the keys of a fact are always the same, and no line has a password in it, whatever a library puts
# into its errors. RQ says what it warns of and nothing else. Not here: what tasks print.

KEYS = ("session", "task", "step", "attempt", "token", "worker")

_QUIET = ("rq", "rq.worker", "rq.job", "rq.queue", "rq.scheduler", "rq.registry")


class LineFormatter(logging.Formatter):
    """A record as one line, which says which process of the pool it is from; secrets are starred out."""

    def __init__(self, manner: Manner, name: str, secrets: Sequence[str]) -> None:
        super().__init__()
        self._json = manner == "json"
        self._name = name
        self._secrets = [secret for secret in secrets if secret]

    def format(self, record: logging.LogRecord) -> str:
        line = self._as_json(record) if self._json else self._as_text(record)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line

    def _as_json(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._facts(record),
            "pid": record.process,
        }
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)

    def _as_text(self, record: logging.LogRecord) -> str:
        facts = self._facts(record)
        worker = facts.pop("worker", "")
        line = f"{_time(record)} {record.levelname:<7} {worker}: {record.getMessage()}"
        words = set(re.split(r"[^\w-]+", record.getMessage()))
        said = [f"{key}={value}" for key, value in facts.items() if str(value) not in words]
        line = "  ".join([line.replace("\n", "\n  "), " ".join(said)]).rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line

    def _facts(self, record: logging.LogRecord) -> dict[str, Any]:
        found = {key: record.__dict__.get(key) for key in KEYS}
        found["worker"] = found["worker"] or self._name
        return {key: value for key, value in found.items() if value is not None}


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def begin_log(manner: Manner, name: str, secrets: Sequence[str] = ()) -> None:
    """Log like that in this process from now on. Called again by each child, under its own name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(manner, name, secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for logger in _QUIET:
        logging.getLogger(logger).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def secrets_of(*urls: str | None) -> list[str]:
    """Return the passwords that addresses hold, as they are written and as they are meant."""
    found = []
    for url in filter(None, urls):
        for name, secret in parse(url).secrets.items():
            if name.endswith("password"):
                found += [secret, quote(secret, safe="")]
    return found


# --- what dead children leave --------------------------------------------------------------

TIMEOUT = 1.0  # seconds of silence after which the server is taken to be away
AGAIN = 0.25


class Estate:
    """The estate of dead children of a pool: what is left to be settled with Redis.

    The parent does it itself, since it alone knows how they died, and at once, since others wait for it.
    It never waits: what cannot be settled now is settled when the server is back, and whatever is
    forgotten on the way a steward finds.
    """

    def __init__(self, url: str, rq_url: str, queues: Sequence[str]) -> None:
        self._urls = url, rq_url
        self._queues = queues
        self._hands: Hands | None = None
        self._left: deque[Callable[[Hands], object]] = deque()
        self._not_before = 0.0
        self._said = False

    def owes(self, run: RunningSlice, why: str, *, crashed: bool) -> None:
        """Note the token that a dead child held."""
        session, token = run
        self._left.append(lambda hands: take(hands, session, token, why, forced=True, crashed=crashed))

    def leaves(self, name: str, *, listed: bool) -> None:
        """Note that a worker has ended; it may just have taken a token. `listed`: it did not tell RQ so."""
        if self._post_again not in self._left:
            self._left.append(self._post_again)
        if listed:
            self._left.append(lambda hands: hands.carrier.bury(name, self._queues))

    @property
    def patience(self) -> float:
        """Seconds until it has to be tried again."""
        return max(0.0, self._not_before - monotonic()) if self._left else 60.0

    def settle(self) -> None:
        """Do as much as can be done now."""
        if monotonic() < self._not_before:
            return
        try:
            while self._left:
                self._left[0](self._open())
                self._left.popleft()
            self._said = False
        except (ServerGone, ServerFull, ServerReadOnly, SessionBusy) as error:
            self._not_before = monotonic() + AGAIN
            if not self._said:
                log.warning("what a dead process held waits: %s", error)
            self._said = True
            self._left.rotate(-1)  # a frozen one does not hold up others
        except GraflowError as error:
            log.warning("what a dead process held is left to the stewards: %s", error)
            self._left.popleft()

    def _open(self) -> Hands:
        if self._hands is None:
            link, rq = (open_link(url, timeout=TIMEOUT) for url in self._urls)
            self._hands = Hands(link, Carrier(rq))
        return self._hands

    def _post_again(self, hands: Hands) -> None:
        """Post tokens that a worker had taken from RQ's queue when it ended, before it began on them.

        One that another worker is about to begin on is posted twice then; the second time it is refused.
        """
        client = hands.link.client
        for queue in self._queues:
            try:
                for session, token in hands.carrier.taken_by_nobody(queue):
                    own, tok = f"{keys_of(session)}own", f"{keys_of(session)}tok"
                    with asked(hands.link, **{own: "hash", tok: "zset"}):
                        lost = client.zscore(tok, token) is not None and not client.hexists(own, token)
                    if lost:
                        hands.carrier.post_again(session, token, queue)
            except KeyTaken as error:  # the stewards look at each session by itself
                log.warning("what a dead process had taken is left to the stewards: %s", error)

    def forget(self) -> None:
        """Forget all in a child: the connections are its parent's."""
        self._left.clear()
        self._hands = None

    def close(self, pool: str) -> None:
        """End the pool; try one last time."""
        self._not_before = 0.0
        self.settle()
        try:
            sign_off(self._open().link, pool)
        except GraflowError as error:
            log.info("the end of pool %s was not noted: %s", pool, error)
