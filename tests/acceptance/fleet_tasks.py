"""Tasks for real workers: each execution leaves a line when it begins and when it ends, outside of Redis."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from graflow_ckpt import task
from tests.chaos.tasks import note

GATE = "CHAOS_GATE"
"""In the environment of the workers: a file for which `waiting` waits."""


class Again(Exception):
    """What a task raises that is to be retried."""


def work(context: Any, seconds: float = 0.0, fails: int = 0, data: Any = None) -> str:
    """Takes so long, and fails so often before it does not."""
    note("began", context)
    time.sleep(seconds)
    if context._attempt.claim.spec.retry_count < fails:
        note("failed", context)
        raise Again(context.task_id)
    note("ended", context)
    return str(context.task_id)


def compute(context: Any, seconds: float) -> str:
    """The same, of CPU."""
    note("began", context)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    note("ended", context)
    return str(context.task_id)


def wait(context: Any) -> str:
    """Until the gate is open."""
    note("began", context)
    while not os.path.exists(os.environ[GATE]):
        time.sleep(0.01)
    note("ended", context)
    return str(context.task_id)


def make(context: Any, names: list[str], seconds: float) -> None:
    """Makes so many tasks at run time."""
    note("began", context)
    for name in names:
        context.next_task(named(name, seconds=seconds))
    note("ended", context)


def stray(context: Any) -> None:
    """Changes what belongs to its process."""
    note("began", context)
    os.chdir("/")
    os.environ["STRAY"] = "1"
    os.environ["PATH"] += ":/stray"
    del os.environ["HOME"]
    note("ended", context)
    if context.task_id == "failing" and context.attempt == 1:
        raise Again("once")


def surroundings(context: Any) -> list[Any]:
    """What a task finds."""
    return [os.getcwd(), *(os.environ.get(name) for name in ("STRAY", "PATH", "HOME"))]


def ask(context: Any, data: Any = None) -> list[str]:
    """Asks the server for whatever a body can ask for, once the gate is open."""
    note("began", context)
    while not os.path.exists(os.environ[GATE]):
        time.sleep(0.01)
    names: list[str] = context.get_channel().keys()
    context.get_channel().get("nothing")
    context.checkpoint()
    context.next_task(named("other"))
    note("ended", context)
    return names


def pay(context: Any, amount: int = 1) -> tuple[str, int]:
    """Pays once under its key."""
    note("ended", context)
    return context.idempotency_key, amount


def named(name: str, body: Any = work, *, options: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """A body as a task of that name."""
    return task(inject_context=True, id=name, **(options or {}))(body).bind(**arguments)


def train(context: Any, rounds: int = 20, seconds: float = 0.02) -> list[Any]:
    """A loop with state; each round leaves a line when it begins, and waits for the gate in the tenth."""
    model, losses = {"weight": 0.0}, list[float]()
    noise = random.random()
    for epoch in context.rounds(range(rounds), state={"model": model, "losses": losses}):
        note(f"round-{epoch}", context)
        model["weight"] += noise * random.random()
        time.sleep(seconds)
        while epoch == 10 and not os.path.exists(os.environ[GATE]):
            time.sleep(0.01)
        losses.append(model["weight"])
    note("ended", context)
    return [noise, len(losses), losses[-1] == model["weight"]]
