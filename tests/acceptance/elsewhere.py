"""Programs played in Redis: in the caller's process, and by workers of a fleet that share a session.

Nothing is ever given up there: what was committed stays, whoever dies. `Here` runs a session with
`execute`, as often as it takes. `Fleet` submits it and gives its tokens to several workers in turn, each
with a graph of its own; their time is so short that they hand the session over all the time. A worker
dies by an exception, or it loses its token while a body runs and goes on as if nothing had happened.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import cycle
from typing import Any

from rq.job import Job
from rq.serializers import JSONSerializer

from graflow_ckpt import ExecutionContext
from graflow_ckpt.core.errors import Fenced, SessionCancelled, Stalled, WorkflowCancelled
from graflow_ckpt.core.facts import Claim, Outcome
from graflow_ckpt.engine.reaping import release
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.slice import Worker
from graflow_ckpt.fleet.status import ENDED
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.layout import keys_of
from tests.acceptance import played
from tests.acceptance.oracle import End
from tests.acceptance.played import Death, Stage, build, end_of
from tests.acceptance.program import Program

MOST = 200  # processes, or slices in a row that nothing comes of


def without_random(program: Program) -> Program:
    """Random state belongs to a process: a session that many share has none."""

    def plain(body: Any) -> Any:
        return replace(body, ops=tuple(op for op in body.ops if op[0] != "random"))

    return replace(program, bodies=tuple(map(plain, program.bodies)), made=tuple(map(plain, program.made)))


# --- in the caller's process -------------------------------------------------------------


class Here:
    """Sessions in Redis that are run with `execute`."""

    def __init__(self, url: str, store: str) -> None:
        self.link = open_link(url)
        self.store = store

    def context(self, stage: Stage, session: str, **settings: Any) -> ExecutionContext:
        """What a process holds that is started anew."""
        played.current = stage
        flow = build(stage.program, **settings)
        return ExecutionContext.create(
            flow.graph,
            stage.program.start,
            session_id=session,
            queue_backend="redis",
            channel_backend="redis",
            config={"redis_client": self.link.client},
            settings=flow.settings,
            store=self.store,
        )

    def run(self, stage: Stage, session: str, *, slices: int | None = None, **settings: Any) -> End:
        """As many processes as it takes: after a death, a failure or a slice, the next one."""
        limit, failed_at = slices, -1
        for _ in range(MOST):
            context = self.context(stage, session, **settings)
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

    def take_the_token(self, context: ExecutionContext) -> Callable[[], None]:
        """Somebody finds that its lease is over, while its body runs."""
        return lambda: rob(self.link, context.session_id, context.cells)


def rob(link: Any, session: str, cells: Any) -> list[tuple[str, str]]:
    """Take away the token of whoever works on a session; what somebody has to be given."""
    client: Any = link.client
    emitted: list[tuple[str, str]] = []
    for token in client.hkeys(f"{keys_of(session)}own"):
        emitted += release(link, session, cells, token.decode(), "robbed", forced=True) or ()
    return emitted


# --- by a fleet ---------------------------------------------------------------------------


def around(claim: Claim, call_next: Callable[[Claim], Outcome]) -> Outcome:
    """The middleware of all workers, by name: a body fails by the number of its failures."""
    stage = played.current
    stage.here.process, stage.here.tries = stage.process, claim.spec.retry_count
    return call_next(claim)


class Fleet:
    """A client, and workers in this process that take turns."""

    def __init__(self, url: str, store: str, workers: int = 3, budget: float = 0.003) -> None:
        self.client = Client(open_link(url))
        self.store = store
        self.workers = []
        for number in range(workers):
            link = open_link(url)
            owner = json.dumps(asdict(replace(myself(), argv=f"worker {number}")))
            self.workers.append(
                Worker(link, Carrier(link.client), self.client.keyring, owner=owner, budget=budget)
            )
        self.turns = cycle(self.workers)
        self.slices: Counter[str] = Counter()

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

    def run(self, stage: Stage, session: str, *, slices: int | None = None, **settings: Any) -> End:
        handle = self.submit(stage, session, slices=slices, **settings)
        limit, failed_at = slices, -1
        while True:
            self.work(stage)
            status = handle.status()
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
        return self.end(stage, session)

    def work(self, stage: Stage) -> None:
        """Give out tokens until there are none."""
        for _ in range(MOST):
            token = self.token()
            if token is None:
                return
            worker = next(self.turns)
            try:
                worker.run(*token)
            except Death:
                stage.died += 1
        raise AssertionError("the slices do not come to an end")

    def token(self) -> tuple[str, str] | None:
        """The next one that waits in RQ: a session and a token."""
        redis: Any = self.client.carrier.connection
        for name in sorted(redis.smembers("rq:queues")):
            queue = self.client.carrier.queue(name.decode().removeprefix("rq:queue:graflow-"))
            found = redis.lpop(queue.key)
            if found is not None:
                job = Job.fetch(found.decode(), redis, serializer=JSONSerializer)
                session, token = job.args
                job.delete()
                self.slices[session] += 1
                return session, token
        return None

    def rob(self, session: str) -> Callable[[], None]:
        """How a worker dies that does not know it: the session gives its token to others."""
        handle = self.client.session(session)

        def robbed() -> None:
            played.current.died += 1
            for token, queue in rob(self.client.link, session, handle._cells):
                self.client.carrier.post(session, token, queue)

        return robbed

    def end(self, stage: Stage, session: str) -> End:
        context = ExecutionContext.create(
            build(stage.program).graph, stage.program.start, session_id=session, queue_backend="redis",
            channel_backend="redis", config={"redis_client": self.client.link.client}, settings=Settings(),
        )  # fmt: skip
        return end_of(context)

    def ledger(self, session: str) -> list[tuple[str, int, str]]:
        """Every end that was committed: task, cycle, how."""
        redis: Any = self.client.link.client
        found = []
        for entry in redis.lrange(f"{keys_of(session)}ledger", 0, -1):
            _, _, task, visit, _, how, _ = entry.decode().split("\x1f")
            found.append((task, int(visit), how))
        return found


__all__ = ["Fleet", "Here", "SessionCancelled", "Stalled", "WorkflowCancelled", "without_random"]
