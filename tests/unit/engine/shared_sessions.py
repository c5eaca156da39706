"""Sessions in Redis for the tests of what works on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graflow_ckpt import ExecutionContext, task, workflow
from graflow_ckpt.core.facts import Claim, Op
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_context import SharedContext
from graflow_ckpt.sessions.redis.keys import START
from graflow_ckpt.sessions.redis.session import RedisSession, new_nonce

RAN: list[str] = []


def context_of(url: str, *tasks: Any, session: str | None = "s", **options: Any) -> SharedContext:
    """A session of these tasks, none after another; the same session under the same id."""
    settings = options.pop("settings", None) or Settings(workflow="w", **options.pop("manner", {}))
    with workflow("w") as flow:
        flow.add(*tasks)
    made = ExecutionContext.create(
        flow.graph,
        session_id=session,
        queue_backend="redis",
        channel_backend="redis",
        config={"redis_url": url},
        settings=settings,
        **options,
    )
    assert isinstance(made, SharedContext)
    return made


def named(name: str, constant: int = 1, **options: Any) -> Any:
    """A task that notes that it ran."""

    @task(id=name, **options)
    def body() -> int:
        RAN.append(name)
        return constant

    return body


class Holder:
    """Somebody else who works on a session."""

    def __init__(self, context: SharedContext, lease: float = 15.0, owner: str = "{}") -> None:
        key = f"{context._prefix}c"
        reply = context.link.script(START)([key], ["", owner, int(lease * 1000), "", new_nonce()])
        token, began = reply[1].decode(), reply[3].decode()
        self.session = RedisSession(context.link, context.session_id, context.cells, token, began)

    def commit(self, ops: Sequence[Op], **options: Any) -> list[Claim]:
        return self.session.commit(ops, **options)

    def leave(self) -> None:
        ops: list[Op] = [("release", key, 0) for key in self.session.held]
        self.session.commit([*ops, ("claim", 0)], mode="q")
        self.session.close()
