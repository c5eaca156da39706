"""Workflows that the benchmarks run, and where these may leave something.

Not here: what is measured about them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import graflow_ckpt.engine.engine  # noqa: F401 - what is loaded late is loaded now
from benchmarks.harness import Run
from graflow_ckpt import task

Body = Callable[..., Any]  # Any: a task takes and returns what it likes

logging.getLogger("graflow_ckpt").setLevel(logging.ERROR)


def place(run: Run) -> str:
    """The folder of this call for checkpoints. The key is made beside it, never in the user's home."""
    os.environ["XDG_STATE_HOME"] = str(run.folder / "state")
    return str(run.folder / "checkpoints")


def noop() -> None:
    """The body of most tasks here."""


def numbered(count: int, body: Body = noop) -> list[Any]:
    """`count` tasks with one body."""
    one = task(id="t0")(body)
    return [one, *(one.bind(id=f"t{n}") for n in range(1, count))]


def functions(count: int, source: str) -> list[Body]:
    """Functions of their own. `source` is the text of t{n}; {before} is the name of the one before."""
    names: dict[str, Any] = {"__name__": "tasks"}
    text = "\n".join(source.format(n=n, before=f"t{n - 1}" if n else "none") for n in range(count))
    exec(compile(text, "<tasks>", "exec"), names)
    return [names[f"t{n}"] for n in range(count)]


def chain(tasks: Sequence[Any]) -> Any:
    """a >> b >> c …"""
    joined = tasks[0]
    for one in tasks[1:]:
        joined = joined >> one
    return joined
