"""The steward: one process per pool that sweeps, and says once a second that the pool is alive.

It survives whatever goes wrong in a sweep, a server that is away, and a failover; each kind of trouble
is said once a minute. It keeps nothing: killed at any moment, it is restarted and continues.
"""

from __future__ import annotations

import logging
import os
import platform
import select
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

from redis import RedisError

from graflow_ckpt import __version__
from graflow_ckpt.core.errors import (
    GraflowError,
    KeyTaken,
    SchemaUnsupported,
    ServerError,
    ServerGone,
    SessionDamaged,
)
from graflow_ckpt.engine.reaping import LEASE_OVER
from graflow_ckpt.fleet.board import BoardLine, Order, RunningSlice, State
from graflow_ckpt.fleet.deaths import OPAQUE, FleetLinks, Hands, take
from graflow_ckpt.fleet.health import PoolFacts, sign, worker_facts
from graflow_ckpt.fleet.lists import ACTIVE, LOOK, ROTA, SESSIONS, asked, discard, host_key, place, session_in
from graflow_ckpt.fleet.tokens import Carrier, job_id, token_in
from graflow_ckpt.fleet.worker import deaf, reached
from graflow_ckpt.links.complaints import damaged, translated
from graflow_ckpt.links.processes import describe, is_gone, myself, owner_from
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Step
from graflow_ckpt.sessions.redis.keys import head_of, keys_of, source, wrong_keys
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import parse_line

log = logging.getLogger("graflow_ckpt.fleet")

HERE = 0.25
SIGN = 1.0
TIDY = 10.0
AWAY = 0.5  # seconds until a server that is away is asked again
SAID = 60.0  # seconds until the same trouble is said again
_MANY = 1000  # kinds of trouble that are remembered


# --- what is found and put right ------------------------------------------------------------

TICK = 0.025  # seconds between rounds, unless there is more than one can take
BATCH = 100  # sessions per look
ROUND = 1000  # ms between looks at a session that runs
SLOW = 5000  # ms, at one that waits for a worker or the user
TAKEN = 500  # ms after which another steward takes a session that this one took and said nothing about
AGAIN = 5000  # ms that a token which waits in its queue is left there
INIT = 3600.0  # seconds after which a submission that was not completed is cleared away
_PAGE = 200
_FREEZE = source("freeze")

GONE = "its process is gone, and no parent saw how"


class FleetRepair:
    """Finds what workers, submitters and servers leave behind when they die, and puts it right.

    each quarter of a second   slices of this place whose process is gone
    each second, per session   leases that ran out, tokens that no worker has begun on, delayed specs
                               that are due, work that no worker was asked for, sessions frozen by the dead
    now and then               lists that a server which lost its latest writes has forgotten

    Promise: two sweepers at once do no harm, and share the work; nothing of it is done for a session whose
    worker is well. Every repair is a transition that the session itself refuses if it is not needed.
    """

    def __init__(
        self, fleet: FleetLinks, where: str, watched: Callable[[], Collection[RunningSlice]] = tuple
    ) -> None:
        self._fleet = fleet
        self._link: RedisLink = fleet.link
        self._host = host_key(where)
        self._watched = watched  # slices whose parent sees them die, and the cause
        self._rota = self._link.script(ROTA)
        self._noted: list[bytes | str | int] = []  # (session, expected, next)*, for the next call of the rota
        self._waiting: dict[str, set[str]] = {}  # jobs in RQ's queues, as of a moment ago
        self._forget = 0.0
        self._suspects: set[bytes] = set()
        self._page = 0
        self._void: set[tuple[str, str]] = set()
        self.done = dict.fromkeys(("taken", "posted", "woken"), 0)  # for the pool's sign of life
        self.failed: list[Exception] = []  # since they were last looked at

    # --- this place --------------------------------------------------------------------

    def here(self) -> None:
        """Release slices that ran here, and whose process has gone."""
        client = self._link.client
        with translated(self._link.address):
            listed: dict[bytes, bytes] = client.hgetall(self._host)
            if listed:
                client.expire(self._host, 24 * 3600)
        gone = {name for name, owner in listed.items() if (o := owner_from(owner)) is None or is_gone(o)}
        watched = {f"{session} {token}".encode() for session, token in self._watched()}
        for name in gone:
            if name in watched and name not in self._suspects:
                continue  # its parent is about to take it, with more to say about its death
            with self._alone(name), suppress(SchemaUnsupported):  # for a steward that knows its format
                if (run := token_in(b"-".join(name.rpartition(b" ")[::2]))) is None:
                    log.warning("%.100r in %s names no slice, and is removed", name, self._host)
                else:
                    self.done["taken"] += take(self._fleet, *run, GONE, forced=True)
                with translated(self._link.address):
                    client.hdel(self._host, name)
        self._suspects = gone

    @contextmanager
    def _alone(self, name: bytes) -> Iterator[None]:
        """Catch what is wrong with one session, so that it does not hold up the others."""
        try:
            yield
        except ServerGone:
            raise
        except Exception as error:  # noqa: BLE001  a sweeper's pass
            self._failed(name.partition(b" ")[0].decode(errors="replace"), error)

    def _failed(self, session: str, error: Exception) -> None:
        known = isinstance(error, GraflowError)
        if type(error) is ServerError or (isinstance(error, ValueError | LookupError) and not known):
            error = damaged(session, self._link.address, error)  # of what stands in its tables
        self.failed.append(error)

    # --- active sessions -----------------------------------------------------------------

    def round(self) -> float:
        """Look at what is due; seconds until something else is."""
        noted, self._noted = self._noted, []
        now, first, *names = self._rota([ACTIVE], ["", BATCH, TAKEN, *noted])
        if monotonic() > self._forget:
            self._waiting.clear()
            self._forget = monotonic() + 0.2
        known = {session: name for name in names if (session := session_in(name)) is not None}
        for junk in set(names) - set(known.values()):
            log.warning("%.100r in %s is no session, and is removed", junk, ACTIVE)
            self._note(junk, now + TAKEN, "")
        for session, found in zip(known, self._looks(known), strict=True):
            self._note(known[session], now + TAKEN, self._see_to(session, found, now))
        if len(names) == BATCH:
            return 0.0
        nexts = [float(at) for at in self._noted[2::3] if at != ""]
        earliest: float = min([*nexts, float(first or "inf")])
        return max(TICK, (earliest - float(now)) / 1000)

    def _looks(self, sessions: Iterable[str]) -> list[Any]:
        """Return what there is to do in each; an error where one cannot be looked at."""
        look = self._link.script(LOOK)
        steps: list[Step] = [(look, [f"{keys_of(session)}c"], ["", AGAIN]) for session in sessions]
        return self._link.together(steps) if steps else []

    def _note(self, name: bytes, expected: int, following: int | str) -> None:
        self._noted += (name, expected, following)

    def _see_to(self, session: str, found: Any, now: int) -> int | str:
        """Do what has to be done; when to look again, "" for never."""
        try:
            if isinstance(found, KeyTaken):
                raise wrong_keys(self._link, session) from found
            if isinstance(found, Exception):
                raise found
            what = found[0].decode()
            if what == "init":
                return self._init(session, float(found[1]), now)
            if what in ("over", "gone"):
                return ""
            words = [word.decode() for word in found[2:]]
            again = self._repair(session, words)
            return min(now + (ROUND if what == "running" else SLOW), max(now + 1, int(found[1])), now + again)
        except SchemaUnsupported:
            return now + TAKEN  # for a steward that knows its format
        except Exception as error:  # noqa: BLE001  a sweeper's pass: one session does not hold up the others
            self._failed(session, error)
            return now + ROUND

    def _repair(self, session: str, words: list[str]) -> int:
        """Repair each thing that was found; return the ms after which to look again."""
        again = SLOW
        while words:
            match words.pop(0):
                case "r":
                    taken = take(self._fleet, session, words.pop(0), LEASE_OVER)
                    self.done["taken"] += taken
                    again = 1 if taken else again  # others may continue at once, or it has left more behind
                case "p":
                    self._post(session, words.pop(0), words.pop(0))
                case "n":
                    self._wake(session)
                case "f":
                    again = min(again, self._thaw(session, words.pop(0)))
        return again

    def _post(self, session: str, token: str, queue: str) -> None:
        """Post a token that no worker has begun on: it waits behind others, or it was lost on its way."""
        waiting = self._waiting.get(queue)
        if waiting is None:
            waiting = self._waiting[queue] = self._fleet.carrier.ids(queue)
        if job_id(session, token) in waiting:
            return
        pipe = self._link.client.pipeline(transaction=False).hexists(f"{keys_of(session)}own", token)
        with translated(self._link.address):
            begun, rests = pipe.hexists(f"{keys_of(session)}h", "decliners").execute()
        if begun:
            return  # a worker has, meanwhile
        if not rests:  # else it waited here for a worker that has its program
            text, facts = "token %s of session %s was lost on its way", {"session": session, "token": token}
            log.info(text, token, session, extra=facts)
        self._fleet.carrier.post_again(session, token, queue, waiting)
        self.done["posted"] += 1

    def _wake(self, session: str) -> None:
        """Commit nothing: what is due becomes ready, and the workers that are needed are asked for."""
        offer = partial(self._fleet.carrier.offer, session)
        with closing(RedisSession(self._link, session, OPAQUE, patience=0.0, post=offer)) as sender:
            sender.commit([("claim", 0)])
        self.done["woken"] += 1

    def _thaw(self, session: str, maker: str) -> int:
        """Thaw a session that was frozen to be copied, if the copier has died here: before its time."""
        owner = owner_from(maker.partition(" ")[2])
        if owner is None or not is_gone(owner):
            return ROUND
        self._link.script(_FREEZE)([f"{keys_of(session)}c"], [maker, 0, ""])
        text = "session %s was frozen by a process that is gone, and goes on"
        log.warning(text, session, extra={"session": session})
        return 1

    def _init(self, session: str, created: float, now: int) -> int | str:
        """Delete a submission that was cut short; at once if its maker has died here."""
        with translated(self._link.address):
            maker = self._link.client.hget(f"{keys_of(session)}h", "maker") or b""
        owner = owner_from(maker)
        if (owner is None or not is_gone(owner)) and now / 1000 - created < INIT:
            return now + SLOW
        if not discard(self._link, session, maker):
            return now + 1  # it was completed meanwhile
        text = "session %s was never submitted to its end and is cleared away"
        log.warning(text, session, extra={"session": session})
        return ""

    # --- lists -------------------------------------------------------------------------

    def tidy(self) -> None:
        """Look at a page of all sessions: remove those that are gone, list those that run as active."""
        with asked(self._link, **{SESSIONS: "zset", ACTIVE: "zset"}):
            client = self._link.client
            page = client.zrange(SESSIONS, self._page, self._page + _PAGE - 1, withscores=True)
            self._page = self._page + _PAGE if len(page) == _PAGE else 0
            noted: list[Any] = []
            missing: list[bytes] = []
            for name, accepted in page:
                if (session := session_in(name)) is None:
                    log.warning("%.100r in %s is no session, and is removed", name, SESSIONS)
                    noted += (name, repr(accepted), "")
                    continue
                with self._alone(name), suppress(SchemaUnsupported):  # of an unknown format: it stays listed
                    line = head_of(client, self._link.address, session)
                    if line is None:
                        noted += (name, repr(accepted), "")
                    elif "e" not in (c := parse_line(session, line))["flags"] and "f" in c["flags"]:
                        missing.append(name)
            if missing:
                client.zadd(ACTIVE, dict.fromkeys(missing, 0), nx=True)
        if noted:  # taken off only if it is still the one that was accepted then
            self._rota([SESSIONS], ["", 0, 0, *noted])

    def tidy_rq(self) -> None:
        """Delete jobs whose token is void, left behind because RQ's server was away when it was taken."""
        begun, wrong = self._fleet.carrier.begun()
        self.failed += wrong
        void = set()
        for session, token in begun:
            key = f"{keys_of(session)}tok"
            with self._alone(session.encode()), asked(self._link, **{key: "zset"}):
                if self._link.client.zscore(key, token) is None:
                    void.add((session, token))
        for session, token in void & self._void:  # for longer than a slice takes to end
            text = "RQ forgets token %s of session %s, which is void"
            log.info(text, token, session, extra={"session": session})
            self._fleet.carrier.withdraw(session, token, begun[session, token])
        self._void = void - self._void
        self._fleet.carrier.forget_workers()


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of a steward: what it looks after."""

    pool: str
    url: str
    rq_url: str
    queues: tuple[str, ...]
    started: float
    workers: Sequence[tuple[str, BoardLine]]
    parent: BoardLine
    line: BoardLine


class Complaints:
    """Says the same trouble once a minute, with how often it came."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, where: str, error: Exception) -> None:
        named = isinstance(error, KeyTaken | SessionDamaged)  # each of them is something else
        kind = f"{where} {error if named else type(error).__name__}"
        if len(self._said) > _MANY:
            self._said.clear()
        at, before = self._said.get(kind, (-SAID, 0))
        if monotonic() < at + SAID:
            self._said[kind] = (at, before + 1)
            return
        self._said[kind] = (monotonic(), 0)
        often = f" ({before} more times in the last minute)" if before else ""
        known = isinstance(error, GraflowError | RedisError)
        log.warning("%s failed: %s%s", where, error, often, exc_info=None if known else error)


@dataclass(frozen=True, slots=True)
class Chore:
    """Something that is done again and again."""

    name: str
    every: float
    body: Callable[[], float | None]


class Steward:
    """Does its chores until the pool ends."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._owner = replace(describe(os.getppid()), argv=f"pool {charge.pool}")
        self._link = reached(charge.url)
        self._rq_link = reached(charge.rq_url)
        self._sweeper = FleetRepair(Hands(self._link, Carrier(self._rq_link)), place(), self._running)
        self._complaints = Complaints()
        self._chores = [
            Chore("the look at this place", HERE, self._sweeper.here),
            Chore("a round", HERE, self._sweeper.round),
            Chore("the sign of life", SIGN, self._sign),
            Chore("tidying up", TIDY, self._sweeper.tidy),
            Chore("tidying up in RQ", TIDY, self._sweeper.tidy_rq),
        ]

    def _running(self) -> list[RunningSlice]:
        return [run for _, line in self._charge.workers if (run := line.run) is not None]

    def run(self, ear: int) -> None:
        """Do all chores until told to stop; `ear`: a pipe that a signal writes to."""
        self._charge.line.now(State.IDLE)
        due: dict[Chore, float] = {}
        while self._charge.line.order is Order.WORK:
            for chore in self._chores:
                if monotonic() >= due.get(chore, 0.0):
                    due[chore] = monotonic() + self._do(chore)
            _wait(ear, min(due.values()) - monotonic())

    def _do(self, chore: Chore) -> float:
        """Do a chore; return the seconds until it is done again."""
        try:
            sooner = chore.body()
        except Exception as error:  # noqa: BLE001  a sweeper's pass
            self._complaints.say(chore.name, error)
            for link in (self._link, self._rq_link):
                link.leave_former(error)
            return max(AWAY, chore.every)
        for failed in self._sweeper.failed:
            self._complaints.say("a repair", failed)
        self._sweeper.failed.clear()
        return chore.every if sooner is None else max(0.0, min(sooner, chore.every))

    def _sign(self) -> float:
        charge = self._charge
        workers = [worker_facts(name, line) for name, line in charge.workers if line.pid]
        facts = PoolFacts(
            charge.pool, self._owner, replace(myself(), argv="steward"), charge.queues,
            charge.started, __version__, platform.python_version(), charge.parent.order is not Order.WORK,
            charge.parent.slices, tuple(workers),
            self._sweeper.done,
        )  # fmt: skip
        sign(self._link, facts)
        return HERE if any(worker.state == "starting" for worker in workers) else SIGN


def _wait(ear: int, seconds: float) -> None:
    """Wait so long, or until a signal has come: what to do then is on the board."""
    if select.select([ear], [], [], max(0.0, seconds))[0]:
        os.read(ear, 1000)  # else the next wait would be none


def steward(charge: Charge) -> int:
    """Run a steward, in a process of its own."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    deaf(signal.SIGTERM)
    while charge.line.order is Order.WORK:
        try:
            Steward(charge).run(ear)
        except Exception:
            log.exception("the steward starts anew")
            _wait(ear, AWAY)
    return 0
