"""Workflows that many tests run: one task that comes round, two in a row; and the cuts that one has made."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from inspect import isfunction, signature
from operator import or_, rshift
from typing import Any

from graflow_ckpt import CheckpointManager, Workflow, task, workflow

LONG = 20.0  # seconds: only a hang takes so long


def loop(
    steps: int,
    body: Callable[[Any], None] = lambda context: None,
    *,
    make: Callable[..., Workflow] = workflow,
    durability: str = "checkpoint",
    **options: Any,
) -> Workflow:
    """A workflow of one task that comes round `steps` times; nothing is saved that is not asked for."""
    with make("w", session_id="s", durability=durability, **options) as flow:

        @task(inject_context=True)
        def turn(context) -> int:
            body(context)
            if context.cycle + 1 < steps:
                context.next_iteration()
            return context.cycle

    return flow


def pair(
    ran: list[str] | None = None, *, fails: bool = False, session: str | None = "s", **options: Any
) -> Workflow:
    """A workflow of `a` and then `b`, which gives 2, or fails; each says in `ran` that it has run."""
    said = [] if ran is None else ran
    with workflow("w", session, **options) as flow:

        @task
        def a() -> int:
            said.append("a")
            return 1

        @task
        def b(a: int) -> int:
            said.append("b")
            if fails:
                raise OSError("not yet")
            return a + 1

        a >> b
    return flow


def cuts(cause: str = "policy") -> list[int]:
    """The steps at which there are cuts, oldest first."""
    found = CheckpointManager.list_checkpoints("s")
    return [metadata.steps for metadata in reversed(found) if metadata.cause == cause]


OF_TASKS = {
    "isolation", "max_retries", "backoff", "jitter", "timeout", "priority", "max_cycles", "queue",
    "on_interrupted",
}  # fmt: skip


def of(body: Any, name: str = "", **options: Any) -> Any:
    """A task of a function, which gets the context that it has a first parameter `context` for.

    Of a tuple: all of them, side by side.
    """
    if isinstance(body, tuple):
        return reduce(or_, map(of, body))
    if not isfunction(body):
        return body
    takes = next(iter(signature(body).parameters), "") == "context"
    return task(id=name or body.__name__, inject_context=takes, **options)(body)


def chain(*bodies: Any, make: Callable[..., Workflow] = workflow, **given: Any) -> Workflow:
    """A workflow of tasks, one after the other: of functions and tasks, and of functions by name.

    What else is given are settings, and options of the last task.
    """
    links = [("", body) for body in bodies]
    links += [(name, given.pop(name)) for name, value in [*given.items()] if isfunction(value)]
    options = {name: given.pop(name) for name in OF_TASKS & given.keys()}
    *before, (name, last) = links
    whole = reduce(rshift, [*(of(body, name) for name, body in before), of(last, name, **options)])
    return make(given.pop("workflow", "w"), **given).add(whole)
