"""Facts: the frozen values that pass between a body, the decision and the state.

A `TaskSpec` is one scheduled execution. An `Outcome` is how a body ended, with everything
it asks for. A `Transition` is a list of ops: flat tuples of strings, numbers and cells, which
`apply` carries out and the journal stores as they are.

    op                                                         what it does
    ("end", key, claim, "completed", result)                   a body succeeded: a step
    ("end", key, claim, "passed" | "skipped" | "dropped")      no body, not taken, cancelled
    ("end", key, claim, "failed", error)                       kept aside for a resume
    ("end", key, claim, "lost", error)                         failed, and the session continues
    ("end", key, claim, "retry", due, error)                   the same spec once more
    ("round", key, claim, where, names…)                       a round of its loops is over, which is no step;
                                                               these values, too, end with it
    ("put", name, cell, base)                                  base < 0: whatever was there
    ("append", name, cell)                                     never conflicts
    ("enqueue", task, data, priority, retries, queue, how)     a new spec
    ("later", task, data, priority, retries, queue, how, due)  the same, not before `due`
    ("arrive", task, ok, size, need, priority, retries,        one in-edge of a join
               queue, how)
    ("expect", gate, more, size, need)                         the join waits for more
    ("toward", gate, target, size, need)                       a branch jumps past the join to `target`
    ("skipped", task)                                          cut off: it will not run
    ("claim", limit)                                           claim the best specs
    ("cap", limit)                                             never more claims than this
    ("status", status, reason)                                 what the session is now
    ("task", name, record)                                     a task made at run time
    ("rng", cell)                                              random state after this commit
    ("reopen", epoch, limit)                                   a new owner continues
    ("release", key, crashes)                                  a claim of a dead owner is void
    ("doubt", key, crashes)                                    so, and its task says what then
    ("quarantine", key, error)                                 it has killed too many: set aside, pause
    ("answer", key, how)                                       what was in doubt or set aside is that now
    ("again", tasks…)                                          completed tasks that run again
    ("absorb", task, count)                                    arrivals that come too late
    ("clear",)                                                 drop all that is scheduled
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from graflow_ckpt.core.errors import BadSessionId

Op = tuple[Any, ...]
"""One flat tuple; the first item names it. Its fields are of several types, hence Any."""

RESULT = ".__result__"
"""The suffix under which a task's result stands among the values."""

JUMP = "\x1e"
"""Stands before the name of each task that is jumped to; no task id has it in it."""

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class Live:
    """A box around an object that only pickle can keep, so that it is not mistaken for bytes."""

    __slots__ = ("bundle", "value")

    # Whatever the user put into the channel.
    def __init__(self, value: Any, bundle: int = 0) -> None:
        self.value = value
        self.bundle = bundle  # in one transition: equal numbers share objects, and are pickled together

    def join(self, bundle: int) -> None:
        self.bundle = bundle

    def __repr__(self) -> str:
        return f"Live({type(self.value).__name__})"


Cell = bytes | Live
"""What a session holds for a value: the codec bytes of a plain one; everything else is live."""

Version = int | bytes
"""What tells one write of a value from every other: compared, and nothing else. 0: there is no value."""


def check_session_id(session: object) -> str:
    """Give the id back, or say what an id may be."""
    if not isinstance(session, str) or not _SESSION_ID.match(session):
        raise BadSessionId(
            f"{session!r} is not a session id.",
            hint="Use 1 to 64 letters, digits, '_' or '-'.",
            session=session,
        )
    return session


def execution_of(session: str, run: int) -> str:
    """Return the name of one run of a session, of which idempotency keys are made."""
    return session if run == 1 else f"{session}#{run}"


new = tuple.__new__
"""Makes a named tuple of all its fields, in order; calling its class takes two to three times as long."""


class TaskSpec(NamedTuple):
    """One scheduled execution of a task."""

    task_id: str
    task_data: Cell | None = None
    status: str = "pending"
    priority: int = 0
    retry_count: int = 0
    max_retries: int = 3
    execution_strategy: str = "direct"  # without a body: see engine/invoke.py
    cycle: int = 0
    not_before: float = 0.0
    queue: str = "default"
    key: int = 0  # its number in the session
    crashes: int = 0


class Claim(NamedTuple):
    """The right to commit one attempt of a spec; void once the attempt is over."""

    spec: TaskSpec
    number: int
    rounds: str = ""  # where its loops are, as the last committed round says: see engine/body/rounds.py


class Request(NamedTuple):
    """A checkpoint that a body asked for."""

    metadata: dict[str, Any] | None  # the user's own keys
    handle: Any  # the PendingCheckpoint that the body was given


class Next(NamedTuple):
    """A task that a body wants to run."""

    task: str
    data: Cell | None
    goto: bool


@dataclass(frozen=True, slots=True)
class Spawned:
    """A task made at run time: it is part of the session from this commit on."""

    task: Any  # core.task.Task; Any because task.py imports this module
    before: tuple[str, ...]
    record: Cell


NO_DATA = b""
"""No value has this cell: `next_iteration()` was called without data."""


class Effects(NamedTuple):
    """The changes and requests of a body, beside its result."""

    ops: tuple[Op, ...] = ()  # puts and appends
    nexts: tuple[Next, ...] = ()
    spawned: tuple[Spawned, ...] = ()
    again: Cell | None = None  # next_iteration's data, NO_DATA if it was given none
    terminate: str | None = None
    request: Request | None = None


NO_EFFECTS = Effects()


class Done(NamedTuple):
    """The body returned."""

    result: Cell
    effects: Effects = NO_EFFECTS


class Failed(NamedTuple):
    """The body raised, was too late, or died. The exception itself stays in the process."""

    error: str
    exception: BaseException
    due: float = 0.0  # when a retry may start
    retry: bool = True

    def is_tried_again(self, spec: TaskSpec) -> bool:
        """Return True if another attempt of the spec follows this one."""
        return self.retry and spec.retry_count < spec.max_retries


class Cancelled(NamedTuple):
    """The body called cancel_workflow: nothing of it is committed."""

    reason: str


class Left(NamedTuple):
    """The body has left its loop between two rounds: what it has committed stays, and it runs again."""

    error: BaseException | None = None  # of the commit; None: it was told to stop


Outcome = Done | Failed | Cancelled | Left
