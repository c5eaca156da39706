"""The other side of process.py: what runs in the process of one attempt."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from traceback import format_exception
from typing import Any

from graflow_ckpt import _restore
from graflow_ckpt.checkpoint.values.codec import check_storable
from graflow_ckpt.checkpoint.values.pickles import live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointError, WorkflowCancelled
from graflow_ckpt.core.facts import Cell, Effects, Left, Live, Request, Version
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.bind import is_coroutine
from graflow_ckpt.engine.body.live import Got, checking
from graflow_ckpt.engine.body.random_state import look
from graflow_ckpt.engine.body.rounds import Answer, LeaveRounds, RoundEnd
from graflow_ckpt.engine.body.task_context import PendingCheckpoint, TaskExecutionContext
from graflow_ckpt.engine.child.process import FromChannel, Pipe
from graflow_ckpt.sessions.protocol import Found

_PR_SET_PDEATHSIG = 1


class Asking:
    """Asks the parent over the pipe; one question at a time."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def __call__(self, *question: Any) -> Any:
        with self._lock:
            self._pipe.send(question)
            return self._pipe.receive()


class SentValues:
    """The values of the session: what is read is sent as a copy, so nothing is on loan."""

    shares = False

    def __init__(self, ask: Asking) -> None:
        self._ask = ask
        self._together: dict[str, dict[str, Found]] = {}  # what came in one message

    def read(self, name: str) -> Found | None:
        if name in self._together:
            return self._together[name][name]
        found: dict[str, Found] = self._ask("read", name)
        self.take(found)
        return found.get(name)

    def take(self, found: dict[str, Found]) -> None:
        """Keep values that share: each is read once, however it is asked for."""
        if len(found) > 1:
            for name in found:
                self._together.setdefault(name, found)

    def together(self, name: str) -> dict[str, Found]:
        return self._together.get(name, {})

    def committed(self, written: Mapping[str, Cell], appended: Sequence[str], version: Version) -> None:
        for name, cell in written.items():
            if name in self._together:
                self._together[name][name] = (cell, version, ())

    def prefetch(self, names: Sequence[str]) -> None:
        """Do nothing: the parent has filled the arguments."""

    def gave_nothing(self, task: str) -> bool:
        return False

    def names(self) -> list[str]:
        return list(self._ask("names"))

    def lend(self, name: str) -> None:
        """Do nothing: as above."""

    def give_back(self, names: Sequence[str]) -> None:
        """Do nothing: as above."""

    def on_loan(self) -> list[str]:
        return []


class Parent:
    """The run, as the body sees it."""

    def __init__(self, ask: Asking, session: str, execution: str, random: bool) -> None:
        self.session_id, self.execution, self.keeps_random = session, execution, random
        self._ask = ask

    def task_of(self, name: str) -> Task | None:
        found: Task | None = self._ask("task_of", name)
        return found

    def is_made(self, name: str) -> bool:
        return bool(self._ask("is_made", name))

    def is_join(self, name: str) -> bool:
        return bool(self._ask("is_join", name))

    def successors_of(self, name: str) -> Sequence[str]:
        return list(self._ask("successors_of", name))

    def progress(self, task: str, done: float, total: float | None) -> None:
        self._ask("progress", task, done, total)

    def reserve(self, task: str, metadata: dict[str, Any], storage: str | None = None) -> PendingCheckpoint:
        """Reserve a path; the parent keeps a handle of its own, and that one becomes done."""
        path, prepared = self._ask("reserve", task, metadata, storage)
        return PendingCheckpoint(path, prepared)

    def code_of(self, task: Task, spawner: str, before: tuple[str, ...]) -> Cell:
        cell: Cell = self._ask("code_of", task, spawner, before)
        return cell

    def commit_round(self, end: RoundEnd) -> None:
        version, error, leaves = self._ask("round", _crossing_effects(end.effects), end.where, end.names)
        end.answer(Answer(version, error, Left() if leaves else None))

    def look_again(self) -> None:
        """Do nothing: the body has nothing on loan."""

    @property
    def stopping(self) -> bool:
        return bool(self._ask("stopping"))


def main(read: int, write: int, parent: int) -> None:
    """Run one body and send its outcome."""
    _die_with(parent)
    pipe = Pipe(read, write)
    path, folder, session, execution, claim, check, random = pipe.receive()
    sys.path[:] = path
    os.chdir(folder)
    func, arguments, context, looked = pipe.receive()
    ask = Asking(pipe)
    host, values = Parent(ask, session, execution, random), SentValues(ask)
    attempt = Attempt(values, claim, check=check, watch=checking())
    for name, (value, version, found) in looked.items():
        values.take(found)
        attempt.live_values().looked[name] = Got(value, Live(value), version)
    os.register_at_fork(after_in_child=pipe.close)  # else our death would not be noticed before theirs
    if context is not None:
        name, number = context
        own = claim.spec.retry_count + claim.spec.crashes + 1
        arguments[name] = TaskExecutionContext(attempt, host, number - own, began=look() if random else None)
    outcome = _run(func, arguments, attempt)
    try:
        pipe.send(("outcome", outcome))
    except CheckpointError as error:  # a result or a change that does not cross
        pipe.send(("outcome", ("failed", error)))


def _run(func: Any, arguments: dict[str, Any], attempt: Attempt) -> tuple[Any, ...]:
    try:
        for name, value in arguments.items():
            if isinstance(value, FromChannel):
                arguments[name] = attempt.get(value.name, None, False)
        result = func(**arguments)
        if is_coroutine(func):
            import asyncio  # half of what this process would import before it is ready

            result = asyncio.run(result)
        if isinstance(attempt.over, LeaveRounds):
            return ("left",)
        if attempt.over is not None:
            return ("cancelled", attempt.over)
        changed = attempt.watch and attempt.watch.check()
        if changed:
            return ("failed", changed)
        cell = check_storable(f"{attempt.claim.spec.task_id}.__result__", result)
        return ("done", cell, _crossing_effects(attempt.effects(cell)))
    except LeaveRounds:
        return ("left",)
    except WorkflowCancelled as cancelled:
        return ("cancelled", cancelled)
    except Exception as error:  # noqa: BLE001  a body
        error.add_note("In its process:\n" + "".join(format_exception(error)))  # no traceback crosses
        return ("failed", _crossing(error))


def _crossing(error: Exception) -> Exception:
    """Return the exception, or a RuntimeError of its text if it cannot be made again on the other side."""
    try:
        load_live(live_bytes(error))
    except Exception as reason:  # noqa: BLE001  its own code
        words = RuntimeError(f"{error!r} ({reason})")
        for note in error.__notes__:
            words.add_note(note)
        return words
    return error


def _crossing_effects(effects: Effects) -> Effects:
    """Return the effects without a request's handle, which stays here."""
    return effects._replace(request=effects.request and Request(effects.request.metadata, None))


def _die_with(parent: int) -> None:
    """Let Linux end this process when the process that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    _restore.in_foreign_main()
    main(*map(int, sys.argv[1:]))
