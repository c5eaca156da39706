"""Sessions in Redis for the tests of what works on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graflow_ckpt import ExecutionContext, task, workflow
from graflow_ckpt.core.facts import Claim, Op
from graflow_ckpt.engine.resuming import Written
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.sessions.redis.session import RedisSession

RAN: list[str] = []


def context_of(url: str, *tasks: Any, session: str | None = "s", **options: Any) -> Any:
    """A session of these tasks, none after another; the same session under the same id."""
    settings = options.pop("settings", None) or Settings(workflow="w", **options.pop("manner", {}))
    with workflow("w") as flow:
        flow.add(*tasks)
    return ExecutionContext.create(
        flow.graph,
        session_id=session,
        queue_backend="redis",
        channel_backend="redis",
        config={"redis_url": url},
        settings=settings,
        **options,
    )


def home_of(context: Any, cells: Any = None) -> SharedHome:
    """What another process that works on the session has of its checkpoints."""
    home, said = context.home, Written(cwd=None, argv=())
    another = SharedHome(home.facts.link, "s", cells or home.cells, home.store, None, said)
    another.describe(context.graph, context.settings)
    return another


def named(name: str, constant: int = 1, **options: Any) -> Any:
    """A task that notes that it ran."""

    @task(id=name, **options)
    def body() -> int:
        RAN.append(name)
        return constant

    return body


class Holder:
    """Somebody else who works on a session."""

    def __init__(self, context: Any, owner: str = "{}") -> None:
        home = context.home
        begun = home.facts.begin(owner, 15.0)
        self.session = RedisSession(home.facts.link, context.session_id, home.cells, *begun)

    def commit(self, ops: Sequence[Op], **options: Any) -> list[Claim]:
        return self.session.commit(ops, **options)

    def leave(self) -> None:
        ops: list[Op] = [("release", key, 0) for key in self.session.held]
        self.session.commit([*ops, ("claim", 0)], mode="q")
        self.session.close()
