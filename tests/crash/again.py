"""A finished session in Redis that its program or its submitter runs again: what those who are killed do."""

from __future__ import annotations

from typing import Any

from graflow_ckpt import ExecutionContext, TaskExecutionContext, task, workflow
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.handle import Handle


@task(inject_context=True)
def pay(context: TaskExecutionContext, amount: int = 1) -> tuple[str, int]:
    """What it is paid under, and how much."""
    return context.idempotency_key, amount


def opened(url: str, session: str, store: str, amount: int) -> ExecutionContext:
    """The session, by its program, with this input."""
    context = ExecutionContext.create(
        workflow("bills").add(pay).graph, session_id=session, store=store,
        queue_backend="redis", channel_backend="redis", config={"redis_url": url},
        settings=Settings(workflow="bills", on_finished="again"),
    )  # fmt: skip
    context.channel.set("amount", amount)
    return context


def submitted(url: str, session: str, store: str, amount: int) -> Handle:
    """The session, by a program that submits it."""
    flow: Any = workflow("bills", session, on_finished="again").add(pay)
    handle: Handle = flow.submit(url, inputs={"amount": amount}, store=store)
    return handle
