"""Where sessions of tests live: the same workflows in this process and in Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import redis

from graflow_ckpt import ExecutionContext, TaskGraph, Workflow
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.core.errors import GraflowError
from tests.acceptance.machine import step

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
    with in_memory("machine") as flow:
        flow.add(step)
    return session_in_redis(client, flow.graph, "step", session_id=session, **options)


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
            context.schedule_start(names)
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
        plain = in_memory(name, session_id, **options)
        made = InRedis(name, session_id, plain._store or "checkpoints", replace(plain.settings))
        made.server = client
        return made

    return make
