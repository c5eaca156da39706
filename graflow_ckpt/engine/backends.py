"""Where queue and channel of a session are: in this process, or in Redis."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graflow_ckpt.core.errors import SessionError

if TYPE_CHECKING:  # it imports this module
    from graflow_ckpt.checkpoint.archive import Found
    from graflow_ckpt.core.graph import TaskGraph
    from graflow_ckpt.engine.context import ExecutionContext

BACKENDS = ("memory", "redis")


def one_backend(queue: str, channel: str) -> str:
    """Both are views of one session, for one commit has to span both."""
    for name, backend in (("queue", queue), ("channel", channel)):
        if backend not in BACKENDS:
            raise SessionError(
                f"{name}_backend={backend!r} is not available.", hint=f"There are: {', '.join(BACKENDS)}."
            )
    if queue != channel:
        raise SessionError(
            f"queue_backend={queue!r} and channel_backend={channel!r} do not agree.",
            hint="Queue and channel are two views of one session: give both the same.",
        )
    return queue


# What follows is loaded when somebody asks for it: its links need a package, and say which.


def made_in_redis(*arguments: Any) -> ExecutionContext:
    """A new session in Redis, or the one of that id: see SharedContext.made."""
    made: ExecutionContext = _module("shared_context").SharedContext.made(*arguments)
    return made


def attached(found: Found, graph: TaskGraph, store: str) -> ExecutionContext:
    """The live session in Redis that a checkpoint was taken of."""
    live: ExecutionContext = _module("shared_context").attach(found, graph, store)
    return live


def moved(verb: str, *arguments: Any, **options: Any) -> ExecutionContext:
    """A session in Redis that begins at a checkpoint: `rewind` or `fork` of moving.py."""
    session: ExecutionContext = getattr(_module("moving"), verb)(*arguments, **options)
    return session


def _module(name: str) -> Any:
    return import_module(f"graflow_ckpt.engine.{name}")
