"""TaskExecutionContext: what a running task sees of its session.

Everything that it changes or asks for is buffered in its `Attempt` and becomes visible when the
task has completed, all at once, or never.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from time import monotonic
from typing import Any, Protocol, TypeVar

from graflow_ckpt.checkpoint.model import CheckpointMetadata, check_metadata
from graflow_ckpt.checkpoint.values.attachments import Attachment, attach, record
from graflow_ckpt.checkpoint.values.codec import FORGOTTEN, check_storable
from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import GraflowError, GraphError, UnknownTask, WorkflowCancelled
from graflow_ckpt.core.facts import NO_DATA, RESULT, Cell, Live, Next, Request, Spawned
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.body.attempt import Attempt, mark
from graflow_ckpt.engine.body.bind import MISSING, Binding
from graflow_ckpt.engine.body.random_state import States
from graflow_ckpt.engine.body.rounds import WITHIN, LoopHost, Loops, Rounds

T = TypeVar("T")

_log = logging.getLogger("graflow_ckpt.task")


def same_task(record: Cell, other: Cell) -> bool:
    """Return True if two records of a task made at run time run the same body with the same arguments."""
    if isinstance(record, Live) and isinstance(other, Live):
        mine, theirs = record.value[0], other.value[0]
        return mine is theirs or (mine.func is theirs.func and _same(mine.arguments, theirs.arguments))
    return record == other


def _same(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Return True if arguments are the same objects, or are stored alike: `==` of an array is no answer."""
    return mine.keys() == theirs.keys() and all(
        theirs[name] is value or mark(theirs[name]) == mark(value) != b"" for name, value in mine.items()
    )


def made_differently(name: str) -> GraphError:
    return GraphError(
        f"next_task: {name!r} was made before with other code or arguments, and has still to run.",
        hint="Give this one an id of its own (task.bind(id=...)), or pass what differs as data=.",
        task=name,
    )


class PendingCheckpoint:
    """A checkpoint that was asked for; it is written when the task has completed."""

    def __init__(self, path: str, metadata: CheckpointMetadata) -> None:
        self.path = path
        self.metadata = metadata
        self.error: GraflowError | None = None
        self.saved = False

    def annotate(self, user: dict[str, Any]) -> None:
        """Replace its metadata: it is asked for again."""
        self.metadata = replace(self.metadata, user_metadata=user)

    def written(self, metadata: CheckpointMetadata) -> None:
        self.metadata, self.saved = metadata, True

    def failed(self, error: GraflowError) -> None:
        self.error = error

    def done(self) -> bool:
        """Return True if it has been written, or has failed."""
        return self.saved or self.error is not None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.path, self.metadata))

    def __repr__(self) -> str:
        what = "saved" if self.saved else "failed" if self.error else "pending"
        return f"PendingCheckpoint({self.path!r}, {what})"


class Host(LoopHost, Protocol):
    """The run that a task context belongs to, as it uses it."""

    session_id: str
    execution: str  # the session, and the number of its run from the second on

    def successors_of(self, name: str) -> Sequence[str]: ...

    def is_join(self, name: str) -> bool: ...

    def reserve(
        self, task: str, metadata: dict[str, Any], storage: str | None = None
    ) -> PendingCheckpoint: ...

    def is_made(self, name: str) -> bool: ...

    def code_of(self, task: Task, spawner: str, before: tuple[str, ...]) -> Cell: ...


class TaskChannel:
    """The session's named values, as one attempt sees them."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def get(self, key: str, default: Any = None, *, readonly: bool = False) -> Any:
        """Return the value; what is changed in it counts as set, unless it was got readonly."""
        return self._attempt.get(key, default, readonly)

    def set(self, key: str, value: Any) -> None:
        """Set a value, committed when the task has completed; refused at once if it cannot be kept."""
        self._attempt.set(key, value)

    def append(self, key: str, item: Any) -> None:
        """Extend a list; never conflicts with other tasks that extend it."""
        self._attempt.append(key, item)

    def keys(self) -> list[str]:
        return self._attempt.names()

    def __contains__(self, key: str) -> bool:
        return self._attempt.has(key)


class TaskExecutionContext:
    """Given to tasks with `inject_context=True`."""

    def __init__(
        self, attempt: Attempt, host: Host, extra_attempts: int = 0, *, began: States | None = None
    ) -> None:
        spec = attempt.claim.spec
        self.task_id = spec.task_id
        self.cycle = spec.cycle
        self.attempt = spec.retry_count + spec.crashes + extra_attempts + 1
        self.session_id = host.session_id
        self.start_time = monotonic()
        self.channel = TaskChannel(attempt)
        self._attempt = attempt
        self._host = host
        self._began, self._thread = began, get_ident()
        if attempt.claim.rounds:
            self._loops().restore_began()

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of one execution, and of no other; in a loop: of one round of it."""
        key = f"{self._host.execution}/{self.task_id}/{self.cycle}"
        loops = self._attempt.loops
        if loops is None or not loops.open:
            return key
        return "/".join([key, *(f"{loop.path.rpartition(WITHIN)[2]}:{loop.index}" for loop in loops.open)])

    def get_channel(self) -> TaskChannel:
        return self.channel

    def get_result(self, task: str, default: Any = None) -> Any:
        """Return the result of any task that has completed; not to be changed."""
        return self._attempt.get(f"{task}.__result__", default, True)

    def forget(self, *tasks: str | Task) -> None:
        """Forget the results of these tasks: from this commit on the session, and each checkpoint of it, is
        without them. A later request for one is refused by its name."""
        for task in tasks:
            name = task.name if isinstance(task, Task) else task
            if self._host.task_of(name) is None:
                raise UnknownTask(f"forget({name!r}): the graph has no such task.", task=name)
            self._attempt.set(name + RESULT, FORGOTTEN)

    # --- loops -------------------------------------------------------------------------

    def rounds(
        self, items: Iterable[T], *, name: str | None = None, state: Mapping[str, Any] | None = None,
        every: int = 1,
    ) -> Rounds[T]:  # fmt: skip
        """Loop over items, and commit each round: `for epoch in context.rounds(range(100)):`.

        After a crash the body runs again, and the loop continues at the first round that is not committed.
        `state`: objects that change from round to round, loaded in place before the first round: those with
        `state_dict` and `load_state_dict`, dicts, lists and numpy arrays. `every`: commit each n-th round,
        and the last. `name`: for a second loop, one within another, or an iterable that is no sequence.
        """
        self._attempt.still_running()
        return self._loops().enter(items, name, state, every)

    def _loops(self) -> Loops:
        return self._attempt.loops_of(self._host, self._began, self._thread)

    # --- checkpoints -------------------------------------------------------------------

    def checkpoint(
        self, metadata: dict[str, Any] | None = None, *, storage: str | None = None
    ) -> PendingCheckpoint:
        """Ask for a checkpoint; it is taken when this task has completed. `storage`: `local`, `s3`, `gcs`,
        `azure` and so on, if it is to be elsewhere than the others."""
        asks = self._attempt.asking()
        enriched = check_metadata(metadata) | {
            "task_id": self.task_id,
            "cycle_count": self.cycle,
            "elapsed_time": monotonic() - self.start_time,
        }
        loops = self._attempt.loops
        if loops is not None and loops.open:
            enriched["round"] = loops.open[-1].index
        if asks.request is not None:
            _log.warning(
                "task %s asked for a checkpoint twice; there is one, when it has completed, with the later "
                "metadata (next_iteration() makes a step of each part)",
                self.task_id,
                extra={"session": self.session_id, "task": self.task_id},
            )
            handle: PendingCheckpoint = asks.request.handle
            handle.annotate(enriched)
        else:
            handle = self._host.reserve(self.task_id, enriched, storage)
        asks.checkpoint(Request(enriched, handle))
        return handle

    def attach(self, path: str | os.PathLike[str]) -> Attachment:
        """Refer to a file: it is not copied; when the session resumes it has to be what it is now."""
        self._attempt.still_running()
        attachment = attach(path)
        self._attempt.set(*record(attachment))
        return attachment

    # --- where to go -------------------------------------------------------------------

    def next_iteration(self, data: Any = MISSING) -> None:
        """Run this task once more after this one, with `data` as its argument if it is given."""
        asks = self._attempt.asking()
        asks.one_more(NO_DATA if data is MISSING else check_storable("next_iteration(data)", data))

    def next_task(
        self, task: str | Task, *, goto: bool = False, data: Any = MISSING, before: str | Sequence[str] = ()
    ) -> None:
        """Run `task` too, or with `goto=True` instead of my successors.

        A task that the graph does not have yet joins it; `before` names those of my successors
        that wait for it.
        """
        asks = self._attempt.asking()
        before = (before,) if isinstance(before, str) else tuple(before)
        if isinstance(task, str):
            if self._host.task_of(task) is None and task not in asks.spawned:
                raise UnknownTask(
                    f"next_task({task!r}): the graph has no such task.",
                    hint="Give the task itself.",
                    task=task,
                )
            name = task
        elif isinstance(task, Task):
            name = task.name
            self._spawn(task, before)
        else:
            raise GraphError(
                f"next_task takes a task or a name, not a {type(task).__name__}.",
                hint="Decorate the function with @task; of a chain give the first task.",
            )
        cell = None if data is MISSING else check_storable("next_task(data)", data)
        if goto and cell is not None and self._host.is_join(name):
            raise GraphError(
                f"next_task({name!r}, goto=True): a join of several branches takes no data.",
                hint="Put the value into the channel.",
                task=name,
            )
        asks.nexts.append(Next(name, cell, goto))

    def _spawn(self, task: Task, before: tuple[str, ...]) -> None:
        known = self._host.task_of(task.name)
        if known is not None and not self._host.is_made(task.name):
            bound = task.arguments  # none: as it is in the graph
            if known.func is task.func and not before and (not bound or _same(bound, known.arguments)):
                return  # the graph has it already
            raise GraphError(
                f"next_task: the graph already has another task {task.name!r}.",
                hint="Give the new one an id of its own: task.bind(id=...).",
                task=task.name,
            )
        if known is not None and set(self._host.successors_of(task.name)) != set(before):
            raise GraphError(
                f"next_task: {task.name!r} was made before with other successors.",
                hint="Give this one an id of its own: task.bind(id=...).",
                task=task.name,
            )
        Binding(task, {}, {})  # refuses a signature that no arguments fit
        successors = self._host.successors_of(self.task_id)
        for name in before:
            if name not in successors:
                raise GraphError(
                    f"{task.name!r} cannot stand before {name!r}: {self.task_id!r} does not lead there.",
                    hint=f"before= takes successors of {self.task_id!r}: {', '.join(successors) or 'none'}.",
                    task=task.name,
                )
        record = self._host.code_of(task, self.task_id, before)
        made = self._attempt.asking().spawned.setdefault(task.name, [])
        if made and not same_task(made[0].record, record):
            raise made_differently(task.name)
        made.append(Spawned(task, before, record))

    def terminate_workflow(self, message: str = "") -> None:
        """Commit this task, start nothing more: the session is completed."""
        arguments.kind("message", message, str, "a text")
        self._attempt.asking().end(message)

    def cancel_workflow(self, message: str = "") -> None:
        """Do not commit this task; the session is cancelled. Leaves the body at once."""
        self._attempt.still_running()
        arguments.kind("message", message, str, "a text")
        cancelled = WorkflowCancelled(
            message or "The workflow was cancelled.", session=self.session_id, task=self.task_id
        )
        self._attempt.end(cancelled)
        raise cancelled

    # --- the rest ----------------------------------------------------------------------

    def progress(self, done: float, total: float | None = None) -> None:
        """Report to observers how far this task is."""
        self._attempt.still_running()
        self._host.progress(self.task_id, done, total)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs with session, task and attempt as stable keys."""
        extra = {"session": self.session_id, "task": self.task_id, "attempt": self.attempt}
        return logging.LoggerAdapter(_log, extra)

    @property
    def cancelled(self) -> bool:
        """True if this attempt is over, or the session wants to stop: a long body may look."""
        return self._attempt.over is not None or self._host.stopping

    @property
    def execution_context(self) -> Any:
        """The session's ExecutionContext, where the task runs in its process."""
        return getattr(self._host, "execution_context", None)
