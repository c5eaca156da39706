"""Programs played in Redis: in the caller's process, and by workers of a fleet that share a session.

Nothing is ever given up there: what was committed stays, whoever dies. `Here` runs a session with
`execute`, as often as it takes. `Fleet` submits it and gives its tokens to several workers, each with a
graph of its own: in turns that are so short that they hand the session over all the time, or side by
side. A worker dies by an exception, or its token is taken while a body runs and it goes on as if nothing
had happened.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle
from typing import Any

from graflow_ckpt import ExecutionContext
from graflow_ckpt.core.errors import Fenced, SessionCancelled, Stalled, WorkflowCancelled
from graflow_ckpt.core.facts import Claim, Outcome
from graflow_ckpt.engine.reaping import release
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.slice import Worker
from graflow_ckpt.fleet.status import ENDED, Status
from graflow_ckpt.fleet.steward import FleetRepair
from graflow_ckpt.fleet.tokens import Carrier, token_in
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.testing.drivers import at_once
from tests.acceptance import played
from tests.acceptance.oracle import End
from tests.acceptance.places import session_in_redis
from tests.acceptance.played import Death, Stage, build, end_of
from tests.acceptance.program import Program

MOST = 300  # processes, or slices in a row that nothing comes of
LONG = 20.0  # seconds: only a hang takes so long


def without_random(program: Program) -> Program:
    """Random state belongs to a process: a session that many share has none."""

    def plain(body: Any) -> Any:
        return replace(body, ops=tuple(op for op in body.ops if op[0] != "random"))

    return replace(program, bodies=tuple(map(plain, program.bodies)), made=tuple(map(plain, program.made)))


def attached(link: RedisLink, stage: Stage, session: str, **settings: Any) -> ExecutionContext:
    """What somebody holds of a session who knows its id and has the program; a new one if there is none."""
    store = settings.pop("store", "checkpoints")
    flow = build(stage.program, **settings)
    return session_in_redis(
        link.client, flow.graph, stage.program.start, session_id=session, settings=flow.settings, store=store
    )


def rob(link: RedisLink, context: Any, session: str) -> list[tuple[str, str]]:
    """Take away the tokens of whoever works on a session; what somebody has to be given instead."""
    client: Any = link.client
    emitted: list[tuple[str, str]] = []
    for token in client.hkeys(f"{keys_of(session)}own"):
        emitted += release(link, session, context, token.decode(), "robbed", forced=True) or ()
    return emitted


# --- in the caller's process -------------------------------------------------------------


class Here:
    """Sessions in Redis that are run with `execute`."""

    def __init__(self, url: str, store: str) -> None:
        self.link = open_link(url)
        self.store = store

    def run(
        self, stage: Stage, session: str, *, slices: int | None = None, robbed: bool = False, **settings: Any
    ) -> End:
        """As many processes as it takes: after a death, a failure or a slice, the next one."""
        played.current = stage
        limit, failed_at = slices, -1
        for _ in range(MOST):
            context: Any = attached(self.link, stage, session, store=self.store, **settings)
            if robbed:
                stage.die = lambda cells=context.home.cells: rob(self.link, cells, session)
            try:
                context.execute(max_steps=limit)
            except (Death, Fenced):
                stage.died += 1
                continue
            except (WorkflowCancelled, SessionCancelled, Stalled):
                return end_of(context)
            except Exception:  # what a task raised; the status says what became of the session
                if context.status != "failed":
                    raise
                if stage.mended and failed_at == context.steps:
                    return end_of(context)
                failed_at, stage.mended = context.steps, True
                continue
            if context.status != "stopped":
                return end_of(context)
            assert limit is not None
            assert slices is not None
            assert context.steps == limit
            limit += slices
        raise AssertionError("the session does not come to an end")


# --- by a fleet ---------------------------------------------------------------------------


def around(claim: Claim, call_next: Callable[[Claim], Outcome]) -> Outcome:
    """The middleware of all workers, by name: a body fails by the number of its failures."""
    stage = played.current
    stage.here.process, stage.here.tries = stage.process, claim.spec.retry_count
    return call_next(claim)


class Fleet:
    """A client, workers in this process, and what finds the work that waits for its time."""

    def __init__(self, url: str, store: str, workers: int = 3, budget: float = 0.003) -> None:
        self.client = Client(open_link(url))
        self.store = store
        self.workers = []
        for number in range(workers):
            link = open_link(url)
            owner = json.dumps(asdict(replace(myself(), argv=f"worker {number}")))
            keyring = self.client.keyring
            self.workers.append(Worker(link, Carrier(link), keyring, owner=owner, budget=budget))
        self.sweeper = FleetRepair(self.client, "nowhere")
        self.ran: Counter[tuple[str, int]] = Counter()  # slices of a session, by worker
        self._turns = cycle(range(workers))

    def close(self) -> None:
        for worker in self.workers:
            worker.keeper.close()
            worker.link.close()
        self.client.close()

    def submit(self, stage: Stage, session: str, *, slices: int | None = None, **settings: Any) -> Handle:
        played.current = stage
        flow = build(stage.program, observers=(), middleware=(around,), **settings)
        terms = Terms(session, max_steps=slices, store=self.store, ledger=True)
        return self.client.submit(flow.graph, flow.settings, (stage.program.start,), {}, terms)

    def run(
        self,
        stage: Stage,
        session: str,
        *,
        slices: int | None = None,
        robbed: bool = False,
        together: bool = False,
        **settings: Any,
    ) -> End:
        """Until it has ended: what fails is mended and gone on with, so is what has reached its limit."""
        if robbed:  # before it is submitted: a function that an object holds is part of the program
            stage.die = lambda: self._rob(session)
        handle = self.submit(stage, session, slices=slices, **settings)
        limit, failed_at = slices, -1
        while True:
            status = self.work_together(handle) if together else self.work(handle)
            if status.status == "failed":
                if stage.mended and failed_at == status.steps:
                    break
                failed_at, stage.mended = status.steps, True
                handle.resume()
            elif status.status == "stopped":
                assert limit is not None
                assert slices is not None
                assert status.steps == limit
                limit += slices
                handle.resume(max_steps=limit)
            else:
                break
        assert status.status in ENDED, "work is left, and nobody was given a token"
        assert (status.tokens, status.running) == (0, 0)
        return end_of(attached(self.client.link, stage, session))

    def work(self, handle: Handle) -> Status:
        """Give out tokens, to one worker after the other, until there are none."""
        for _ in range(MOST):
            token = self.token()
            if token is not None:
                self.give(next(self._turns), token)
            elif not self._waits(handle):
                return handle.status()
        raise AssertionError("the slices do not come to an end")

    def work_together(self, handle: Handle) -> Status:
        """All workers at once, each takes what it can get."""
        deadline = time.monotonic() + LONG

        def works(number: int) -> None:
            while time.monotonic() < deadline:
                token = self.token()
                if token is not None:
                    self.give(number, token)
                elif not number and not self._waits(handle):
                    if handle.status().over or handle.status().status == "paused":
                        return
                elif number and handle.status().over:
                    return

        at_once([partial(works, n) for n in range(len(self.workers))])
        return handle.status()

    def give(self, number: int, token: tuple[str, str]) -> None:
        """A slice of that worker."""
        self.ran[token[0], number] += 1
        try:
            self.workers[number].run(*token)
        except Death:
            played.current.died += 1

    def _waits(self, handle: Handle) -> bool:
        """Whether something of it is to run later; if so, the sweeper has looked."""
        status = handle.status()
        if status.status == "running" and status.tokens and not status.delayed:
            time.sleep(0.01)  # a worker's keeper has called for help, and is about to post the token
            return True
        if status.status != "running" or not status.delayed:
            return False
        time.sleep(max(0.001, min(0.02, self.sweeper.round())))
        return True

    def token(self) -> tuple[str, str] | None:
        """The next one that waits in RQ: a session and a token."""
        redis: Any = self.client.carrier.connection
        for name in sorted(redis.smembers("rq:queues")):
            found = redis.lpop(name)
            if found is not None:
                redis.delete(b"rq:job:" + found)
                return token_in(found)
        return None

    def _rob(self, session: str) -> None:
        played.current.died += 1
        for token, queue in rob(self.client.link, self.client.session(session)._cells, session):
            self.client.carrier.post(session, token, queue)

    def ran_by(self, session: str) -> int:
        """How many workers have had a slice of it."""
        return sum(self.ran[session, number] > 0 for number in range(len(self.workers)))

    def ledger(self, session: str) -> list[tuple[str, int, str]]:
        """Every end that was committed: task, cycle, how."""
        redis: Any = self.client.link.client
        found = []
        for entry in redis.lrange(f"{keys_of(session)}ledger", 0, -1):
            _, _, task, visit, _, how, _ = entry.decode().split("\x1f")
            found.append((task, int(visit), how))
        return found
