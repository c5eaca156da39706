"""Where queue and channel of a session are: in this process, or in Redis."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from graflow_ckpt.core.errors import SessionError

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


def shared() -> Any:
    """SharedContext, loaded when somebody asks for it: its links need a package, and say which."""
    return import_module("graflow_ckpt.engine.shared_context").SharedContext
