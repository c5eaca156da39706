"""Programs played by the engine: a program becomes real tasks, which run in sessions like those of users.

`Stage` is the world outside of a session: it logs executions, fails what is to fail, and lets the
"process" die at chosen points. Dying is an exception that no task and no engine catches: what the
session had in memory is gone, no cut is taken, and the lease is let go.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from types import CodeType
from typing import Any

from graflow_ckpt import ExecutionContext, task, workflow
from graflow_ckpt.core.errors import SessionCancelled, Stalled, WorkflowCancelled
from graflow_ckpt.core.events import Event
from graflow_ckpt.core.facts import Claim, Outcome
from graflow_ckpt.frontends.dsl import Workflow
from tests.acceptance.oracle import End
from tests.acceptance.program import Body, Program, mix
from tests.chaos.tasks import expression

RESULT = ".__result__"
MEETING = 10.0  # seconds: only a hang takes so long


class Death(BaseException):
    """The process is gone."""


class Broken(Exception):
    """What a task raises that is to fail."""


class Box:
    """A live value: an object that is changed in place."""

    def __init__(self, items: list[int]) -> None:
        self.items = items


def death() -> None:
    raise Death


class Stage:
    """Everything that outlives the processes in which a session runs."""

    def __init__(
        self,
        program: Program,
        deaths: tuple[tuple[int, bool], ...] = (),
        queues: tuple[str, ...] = ("default",),
    ) -> None:
        self.program = program
        self.queues = queues  # of a fleet
        self.backoff = 0.0  # seconds before a retry
        self.thinks = 0.0  # seconds between looking at a value and setting it
        self.meeting: threading.Barrier | None = None  # the first two who add look before either of them sets
        self.bodies = {body.name: body for body in (*program.bodies, *program.made)}
        self.deaths = dict(deaths)  # at the n-th execution: True at its end, False at its beginning
        self.die = death  # how: it need not come back
        self.died = 0
        self.mended = False
        self.executions = 0
        self.started: Counter[tuple[str, int]] = Counter()
        self.committed: set[tuple[str, int]] = set()
        self.twice: list[tuple[str, int]] = []  # executions of what was committed
        self.process = 0
        self.here = threading.local()  # the process that a thread belongs to, and how often its spec failed
        self._cycles: dict[str, int] = {}
        self._lock = threading.Lock()

    def start(self, name: str, cycle: int) -> bool | None:
        """Note an execution; whether, and when in it, the process dies."""
        with self._lock:
            if self.here.process != self.process:
                raise Broken("a thread of a process that is dead")
            number, self.executions = self.executions, self.executions + 1
            self.started[name, cycle] += 1
            self._cycles[name] = cycle
            if (name, cycle) in self.committed:
                self.twice.append((name, cycle))
        return self.deaths.pop(number, None)

    def hesitate(self) -> None:
        """Pass the time between looking at a value and setting it."""
        time.sleep(self.thinks)
        if self.meeting is not None:
            with suppress(threading.BrokenBarrierError):
                self.meeting.wait(MEETING)
            self.meeting = None

    def observe(self, event: Event) -> None:
        if event.kind == "task_ended" and event.facts["outcome"] == "done":
            self.committed.add((event.task, self._cycles[event.task]))

    def queue_of(self, name: str) -> str:
        return self.queues[sum(name.encode()) % len(self.queues)]

    def new_process(self) -> Callable[[Claim, Callable[[Claim], Outcome]], Outcome]:
        """Its middleware: a body fails by the number of its failures, not of its executions."""
        with self._lock:
            self.process += 1
            process = self.process

        def around(claim: Claim, call_next: Callable[[Claim], Outcome]) -> Outcome:
            self.here.process, self.here.tries = process, claim.spec.retry_count
            return call_next(claim)

        return around


current: Stage
"""The stage on which tasks play; a global, so that the tasks pickle by name alone."""


def play(name: str, context: Any, arguments: dict[str, Any], data: Any) -> int:
    """The body of every task."""
    stage, body = current, current.bodies[name]
    asks = body.asks(context.cycle)
    dies = stage.start(name, context.cycle)
    if dies is False:
        stage.die()
    seen = [body.constant, context.cycle, data, *arguments.values()]
    channel = context.get_channel()
    for kind, where, number in body.ops:
        _operate(kind, where, number, context, channel, seen)
    if dies:
        stage.die()
    if (body.broken and not stage.mended) or stage.here.tries < body.flaky:
        raise Broken(name)
    _ask(context, asks)
    return mix(*seen)


def _operate(kind: str, where: str, number: int, context: Any, channel: Any, seen: list[Any]) -> None:
    item = mix(number, context.cycle)
    if kind == "set":
        channel.set(where, mix(number, *seen))
    elif kind == "add":
        known = channel.get(where, 0)
        current.hesitate()
        channel.set(where, known + number)
    elif kind == "append":
        channel.append(where, item)
    elif kind == "mutate":
        known = channel.get(where)
        if known is None:
            channel.set(where, [item])
        else:
            known.append(item)  # changed in place: counts as set
    elif kind == "live":
        box = channel.get(where)
        if box is None:
            channel.set(where, Box([item]))
        else:
            box.items.append(item)
    elif kind == "random":
        channel.set(where, random.random())
    elif kind == "read":
        seen.append(channel.get(where))
    elif kind == "checkpoint":
        context.checkpoint(metadata={"number": number})


def _ask(context: Any, asks: tuple[Any, ...]) -> None:
    verb = asks[0]
    if verb == "again":
        context.next_iteration(asks[1])
    elif verb == "goto":
        context.next_task(asks[1], goto=True)
    elif verb == "also":
        context.next_task(asks[1], data=asks[2])
    elif verb == "make":
        context.next_task(made(current.bodies[asks[1]]), before=asks[2] or ())
    elif verb == "make goto":
        context.next_task(made(current.bodies[asks[1]]), goto=True)
    elif verb == "terminate":
        context.terminate_workflow("enough")
    elif verb == "cancel":
        context.cancel_workflow("never mind")


@lru_cache(maxsize=10_000)
def _code(name: str, reads: tuple[str, ...]) -> CodeType:
    parameters = "".join(f", {n}=None" for n in reads)
    arguments = ", ".join(f"{n!r}: {n}" for n in reads)
    source = (
        f"def {name}(context{parameters}, data=None): return play({name!r}, context, {{{arguments}}}, data)"
    )
    return compile(source, "<program>", "exec")


def made(body: Body) -> Any:
    """A real task for a body."""
    space: dict[str, Any] = {"play": play, "__name__": "program"}
    exec(_code(body.name, body.reads), space)
    options = {"max_retries": body.retries, "priority": body.priority, "max_cycles": body.max_cycles}
    place = {"queue": current.queue_of(body.name), "backoff": current.backoff}
    return task(inject_context=True, **place, **options)(space[body.name])


def build(program: Program, **settings: Any) -> Workflow:
    """The workflow of a program."""
    stage = current
    settings = {"observers": (stage.observe,), "middleware": (stage.new_process(),), **settings}
    with workflow(
        "program",
        on_failure=program.on_failure,  # type: ignore[arg-type]
        max_parallel=4 if program.parallel else 1,
        **settings,
    ) as flow:
        tasks: dict[str, Any] = {body.name: made(body) for body in program.bodies}
        for chain in program.chains:
            expression(chain, tasks)
    return flow


def run(stage: Stage, *, slices: int | None = None, **settings: Any) -> End:
    """A session in as many processes as it takes: after a death, a failure or a slice, the next one."""
    global current
    current = stage
    limit, failed_at = slices, -1
    while True:
        assert stage.process < 100, "the session does not come to an end"
        random.seed(stage.program.seed)  # as a script does at its top
        flow = build(stage.program, **settings)
        try:
            flow.execute(stage.program.start, max_steps=limit)
        except Death:
            stage.died += 1
            continue
        except (WorkflowCancelled, SessionCancelled, Stalled):
            return end_of(flow.execution_context)
        except Exception:  # what a task raised; the status says what became of the session
            state = flow.execution_context.state
            if state.status != "failed":
                raise
            if stage.mended and failed_at == state.steps:
                return end_of(flow.execution_context)
            failed_at, stage.mended = state.steps, True
            continue
        if flow.execution_context.status != "stopped":
            return end_of(flow.execution_context)
        assert limit is not None
        assert slices is not None
        assert flow.execution_context.steps == limit
        limit += slices


def end_of(context: ExecutionContext) -> End:
    """The end of a session in the oracle's words."""
    state, channel = context.state, context.get_channel()
    names = channel.keys()
    return End(
        state.status,
        {n: _plain(channel.get(n)) for n in names if not n.endswith(RESULT)},
        {n.removesuffix(RESULT): channel.get(n) for n in names if n.endswith(RESULT)},
        list(state.completed),
        set(state.skipped),
        set(state.errors),
        context.steps,
        context.cycle_counts,
    )


def _plain(value: Any) -> Any:
    return list(value.items) if isinstance(value, Box) else value
