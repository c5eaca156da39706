"""What front ends ask of a fleet: a graph, a call or many calls become a session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blake3 import blake3

from graflow_ckpt.core.errors import BadAddress
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.client import Client, Terms, client_at
from graflow_ckpt.fleet.handle import Handle


def at(url: str | None) -> Client:
    """The fleet of an address, or of the environment."""
    where = url or os.environ.get("GRAFLOW_CKPT_REDIS_URL", "")
    if not where:
        raise BadAddress(
            "There is no fleet to submit to.", hint='Give url="redis://…", or set GRAFLOW_CKPT_REDIS_URL.'
        )
    return client_at(where, os.environ.get("GRAFLOW_CKPT_RQ_URL") or None)


# Any, here and below: arguments are whatever the user hands over.
def submit(
    url: str | None,
    graph: TaskGraph,
    settings: Settings,
    starts: Sequence[str],
    inputs: Mapping[str, Any],
    terms: Terms,
) -> Handle:
    return at(url).submit(graph, settings, starts, inputs, terms)


def submit_call(
    task: Task, args: tuple[Any, ...], kwargs: dict[str, Any], url: str | None,
    priority: int | None, delay: float, key: str | None, existing: str,
) -> Handle:  # fmt: skip
    session = None if key is None else session_of(task.name, key)
    terms = Terms(session, existing, priority=priority, delay=delay)
    return at(url).submit_calls(task, None, terms, (args, kwargs))


def submit_many(task: Task, calls: Iterable[Any], url: str | None, priority: int | None) -> Handle:
    return at(url).submit_calls(task, map(_call, calls), Terms(priority=priority))


def session_of(task: str, key: str) -> str:
    """The session of a task under a key: the same for everybody who submits it."""
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in f"{task}-{key}")
    return f"{readable[:40]}-{blake3(f'{task}/{key}'.encode()).hexdigest(6)}"


def _call(item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if type(item) is tuple:
        return item, {}
    if type(item) is dict:
        return (), item
    return (item,), {}
