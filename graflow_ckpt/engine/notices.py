"""Notices: one line for each run but that of a new session. Never names a command that would fail.

    session nightly continues from step 7: 3 of 5 tasks completed, saved 2 h ago (checkpoints/…)

A program has them on stderr, since Python writes warnings of a logger without handlers there. Not here: what
a stopped run says (engine.py), and what the command line says of a new one (cli/progress.py).
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from graflow_ckpt.checkpoint.care.inventory import seconds
from graflow_ckpt.checkpoint.model import Document, at_round
from graflow_ckpt.checkpoint.snapshot import rounds_of
from graflow_ckpt.core.state import SessionState

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.session")

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def notify(session: str, line: str, *, told: bool = False) -> None:
    """Write the line to stderr, as a warning of a logger; `told`: the command line does so in its own way."""
    log.log(logging.INFO if told else logging.WARNING, "%s", line, extra={"session": session})


def again_line(session: str, run: int) -> str:
    """Return what is said where the next run of a finished session begins."""
    return f"session {session} was finished and begins run {run}; the former run is kept"


def continuing_line(context: ExecutionContext, state: SessionState) -> str:
    """Return how much is done, how old it is, and why the former run ended if it failed."""
    total = len(set(context.graph.task_names()) | state.completed.keys())
    tasks = f"{len(state.completed)} of {counted(total)} completed"
    verb = f"continues from step {state.steps}"
    if state.dead:
        failed = sorted({state.specs[key].task_id for key in state.dead})
        why = " ".join(next(iter(state.dead.values())).split())
        verb = f"failed in {some(failed)} ({why[:120]}) and {verb}"
    return f"session {context.session_id} {verb}{_rounds(state)}: {tasks}{_saved(context)}"


def _rounds(state: SessionState) -> str:
    places = {state.specs[key].task_id: at_round(rounds_of(state, key)["rounds"]) for key in state.rounds}
    return "".join(f", {task} at {at}" for task, at in places.items() if at)


def _saved(context: ExecutionContext) -> str:
    if context.found is None:
        return ""
    count = context.replayed
    journal = f", and {count} journal record{'' if count == 1 else 's'}" if count else ""
    return f", saved {since(context.found.meta)} ({context.found.path}{journal})"


def finished_line(context: ExecutionContext, state: SessionState) -> str:
    """Return since when it is finished, that nothing is run, and how to run it again."""
    meta = context.found.meta if context.found is not None else {}
    when = f"{since(meta)} " if meta else ""
    line = (
        f"session {context.session_id} was finished {when}({counted(len(state.completed))} completed); "
        "nothing is run. To run it again: another session id"
    )
    if not meta or context.basis.named:
        return line if context.home.alone else f'{line}, or Settings(on_finished="again")'
    file = str(meta.get("file") or "")
    command = f", or: graflow-ckpt run {shlex.quote(file)} --session {context.session_id} --again"
    return f'{line}, or workflow(…, on_finished="again"){command if file.endswith(".py") else ""}'


def since(meta: Document) -> str:
    """Return how long ago a checkpoint was written, in one unit."""
    made = seconds(meta.get("created_at"))
    age = max(0.0, time.time() - made)
    if made == float("inf"):
        return "at an unknown time"
    unit, size = next(((u, n) for u, n in _UNITS if age >= n), ("s", 1))
    return f"{int(age // size)} {unit} ago"


def counted(number: int) -> str:
    return f"{number} task{'' if number == 1 else 's'}"


def some(names: Iterable[str]) -> str:
    """Return a few names, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
