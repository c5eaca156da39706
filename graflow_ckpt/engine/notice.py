"""Notices: one line for a run that is not simply new. Every run but that of a new session has one.

    session nightly continues: 3 of 5 tasks completed, saved 2 h ago (checkpoints/session_…-4.pkl)
    session nightly was finished 2 h ago (5 tasks); nothing is run. To run it again: …

It goes to stderr: as a warning of a logger, or through the command line, which has its own way to
write there. Never names a command that would fail.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from graflow_ckpt.checkpoint.inventory import seconds
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.core.state import SessionState

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.session")

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def tell(context: ExecutionContext, line: str) -> None:
    """Write the line, unless the command line does."""
    level = logging.INFO if context.settings.told else logging.WARNING
    log.log(level, "%s", line, extra={"session": context.session_id})


def continuing(context: ExecutionContext, state: SessionState) -> str:
    """How much is done, how old it is, and why the former run ended if it failed."""
    total = len(set(context.graph.task_names()) | state.completed.keys())
    tasks = f"{len(state.completed)} of {counted(total)} completed"
    verb = f"continues from step {state.steps}"
    if state.dead:
        failed = sorted({state.specs[key].task_id for key in state.dead})
        why = " ".join(next(iter(state.dead.values())).split())
        verb = f"failed in {some(failed)} ({why[:120]}) and {verb}"
    return f"session {context.session_id} {verb}: {tasks}{_saved(context)}"


def _saved(context: ExecutionContext) -> str:
    if context.found is None:
        return ""
    count = context.replayed
    journal = f", and {count} journal record{'' if count == 1 else 's'}" if count else ""
    return f", saved {since(context.found.meta)} ({context.found.path}{journal})"


def finished(context: ExecutionContext, state: SessionState) -> str:
    """Since when, that nothing is run, and how to run it again."""
    meta = context.found.meta if context.found is not None else {}
    when = f"{since(meta)} " if meta else ""
    line = (
        f"session {context.session_id} was finished {when}({counted(len(state.completed))} completed); "
        "nothing is run. To run it again: another session id"
    )
    if not meta or context.rewinds:
        return line
    file = str(meta.get("file") or "")
    command = f", or: graflow-ckpt run {shlex.quote(file)} --session {context.session_id} --again"
    return f'{line}, or workflow(…, on_finished="again"){command if file.endswith(".py") else ""}'


def again(context: ExecutionContext) -> str:
    """Which run begins."""
    number = context.state.run
    return f"session {context.session_id} was finished and begins run {number}; the former run is kept"


def since(meta: Document) -> str:
    """How long ago a checkpoint was written, in one unit."""
    made = seconds(meta.get("created_at"))
    age = max(0.0, time.time() - made)
    if made == float("inf"):
        return "at an unknown time"
    unit, size = next(((u, n) for u, n in _UNITS if age >= n), ("s", 1))
    return f"{int(age // size)} {unit} ago"


def counted(number: int) -> str:
    return f"{number} task{'' if number == 1 else 's'}"


def some(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
