"""Where sessions of tests live, in this process and in Redis; a state machine and tasks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from graflow_ckpt import (
    CheckpointManager,
    CheckpointMetadata,
    Event,
    ExecutionContext,
    TaskExecutionContext,
    TaskGraph,
    Workflow,
    task,
    workflow,
)
from graflow_ckpt.core.errors import GraflowError
from tests.acceptance.command_line import COUNT

# The program that counts, with a journal, so that nothing that was committed is lost.
SAVES = COUNT.replace('workflow("count")', 'workflow("count", durability="journal")')
LOG: list[str] = []
WORLD = {"down": False}


@task(inject_context=True)
def step(context: TaskExecutionContext) -> str:
    """A state machine: A, B, C, one iteration each, with a checkpoint after each."""
    channel = context.get_channel()
    state: str = channel.get("state", default="A")
    LOG.append(state)
    if state == "C" and WORLD["down"]:
        raise ConnectionError("down")
    channel.set("state", {"A": "B", "B": "C", "C": "D"}[state])
    context.checkpoint(metadata={"was": state})
    if state != "C":
        context.next_iteration()
    return state


@task
def last() -> str:
    return "last"


def machine(session_id: str | None = None) -> Workflow:
    return workflow("machine", session_id).add(step, last)


def files_of(path: str) -> dict[str, Path]:
    base = path.removesuffix(".pkl")
    return {part: Path(f"{base}.{part}") for part in ("pkl", "state.json", "meta.json")}


def cuts(session: str) -> list[CheckpointMetadata]:
    """The cuts that were asked for, oldest first."""
    return [m for m in reversed(CheckpointManager.list_checkpoints(session)) if m.cause == "request"]


# --- a live value, tasks that do nothing, and an observer to wait for -------------------


LONG = 20.0  # seconds: only a hang takes so long


class Box:
    """A live value."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)


def idle(*names: str) -> list[Any]:
    """Tasks that do nothing."""
    return [task(id=name)(lambda: None) for name in names]


class Seen(list[Event]):
    """An observer; `first(kind)` is set when the first event of that kind has come."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, threading.Event] = {}

    def __call__(self, event: Event) -> None:
        self.append(event)
        self.first(f"{event.kind} {event.task}").set()
        self.first(event.kind).set()

    def first(self, what: str) -> threading.Event:
        return self._first.setdefault(what, threading.Event())

    def kinds(self, *kinds: str) -> list[str]:
        return [f"{e.kind} {e.task}".strip() for e in self if e.kind in kinds]


def rows_of(page: Path, heading: str) -> list[str]:
    """The first cells of the table under this heading."""
    section = page.read_text().partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


# --- where sessions of tests live -------------------------------------------------------


Make = Callable[..., Workflow]
SESSION = "12345"


def session_in_redis(
    client: redis.Redis, graph: TaskGraph, start: str | None = None, **options: Any
) -> ExecutionContext:
    """A session with its queue and channel at that server."""
    there: dict[str, Any] = {"queue_backend": "redis", "channel_backend": "redis"}
    return ExecutionContext.create(graph, start, config={"redis_client": client}, **there, **options)


def machine_in_redis(client: redis.Redis, session: str = SESSION, **options: Any) -> ExecutionContext:
    """The state machine as such a session; a program that is started again calls this again."""
    graph = workflow("machine").add(step).graph
    return session_in_redis(client, graph, "step", session_id=session, **options)


class InRedis(Workflow):
    """A workflow whose session has its queue and channel in Redis; executed in this process."""

    server: redis.Redis

    @property
    def execution_context(self) -> ExecutionContext:
        if self._context is None:
            self._context = session_in_redis(
                self.server,
                self.graph,
                session_id=self._session_id,
                settings=self.settings,
                store=self._store,
            )
        return self._context

    def execute(
        self, start: Any = None, max_steps: int | None = None, *, inputs: Mapping[str, Any] | None = None
    ) -> Any:
        with self._running(start, max_steps, inputs) as context:
            return context.execute(max_steps)

    def _prepared(self, start: Any, max_steps: int | None, inputs: Mapping[str, Any] | None) -> Any:
        names = self._starts(start) if start is not None else ()
        self._renew()
        context: Any = self.execution_context
        _ = self.graph  # with what was decorated since
        for name, value in (inputs or {}).items():
            context.channel.set(name, value)
        if names and context.state.next_key == 1:
            context.graph.compile(names)
            context.schedule_start()
        return context

    def _renew(self) -> None:
        """Another session when one has ended, as in memory."""
        if self._ended and self._context is not None:
            try:
                over = self._context.status == "completed"
            except GraflowError:
                over = True
            self._ended = False
            if over:
                self._context = None


def in_redis(client: redis.Redis) -> Make:
    """What makes workflows whose sessions are at that server."""

    def make(name: str, session_id: str | None = None, **options: Any) -> Workflow:
        plain = workflow(name, session_id, **options)
        made = InRedis(name, session_id, plain._store or "checkpoints", replace(plain.settings))
        made.server = client
        return made

    return make
