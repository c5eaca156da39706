"""Errors: what happened, to which ids, and what to do.

Every error carries the ids that it speaks of as attributes, and a `hint` that says what to
do next. A class is named for what the caller does about it, not for where it was raised.
"""

from __future__ import annotations

from typing import Any

# What a terminal would obey: messages name things that others have written, hosts and keys among them.
_OBEYED = dict.fromkeys(
    [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "?"
)


class GraflowError(Exception):
    """The root of all errors of this package."""

    # What is kept in `ids` is whatever the message speaks of: session, task, path, step …
    def __init__(self, message: str, *, hint: str = "", **ids: Any) -> None:
        self.message = message.translate(_OBEYED)
        self.hint = hint.translate(_OBEYED)
        super().__init__(self.message)
        self.ids = ids

    def __getattr__(self, name: str) -> Any:
        ids = self.__dict__.get("ids", {})
        if name in ids:
            return ids[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.ids)


def _rebuild(kind: type[GraflowError], message: str, hint: str, ids: dict[str, Any]) -> GraflowError:
    return kind(message, hint=hint, **ids)


# --- the graph -------------------------------------------------------------------------


class GraphError(GraflowError, ValueError):
    """The workflow as written cannot be run: fix the program."""


class UnknownTask(GraphError, KeyError):
    """A task was named that the graph does not have."""


class GraphChanged(GraphError):
    """The program differs from the checkpoint where results already exist. `.table` says where."""


class AttachmentChanged(GraphError):
    """A file that was attached is another one now, where results were made of it. `.files` says which."""


# --- checkpoints -----------------------------------------------------------------------


class CheckpointError(GraflowError, ValueError):
    """A checkpoint could not be written or read."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """There is no checkpoint at that place."""


class CheckpointExpired(CheckpointNotFound):
    """It was there, and is older than what is kept."""


class MetadataChanged(CheckpointError):
    """Another process changed the metadata since they were read. Read them again, then decide again."""


class CheckpointCorrupt(CheckpointError):
    """The bytes are not the ones that were written."""


class SchemaUnsupported(CheckpointError):
    """Written by a schema that this version cannot read."""


class UnsafeCheckpoint(CheckpointError):
    """Not opened: no seal that is known here proves its writer."""


NOT_OPENED = "Use another checkpoint of the session; this one is not opened."


class UnknownKey(UnsafeCheckpoint):
    """Sealed with a key that this machine does not have."""


class NoKey(CheckpointError):
    """A shared store needs a key that is set, and none is."""


class NoGoodCheckpoint(CheckpointError):
    """The session has checkpoints, and none of them verifies."""


class SaveOutcomeUnknown(CheckpointError):
    """The sync after the commit failed: old or new, but which one is not known."""


class NotStorable(CheckpointError, TypeError):
    """A value that cannot be kept. `.path` leads to it."""


class TooLarge(NotStorable):
    """A value takes more room than its session allows. `.size` and `.limit` are in bytes."""

    def of(self, task: str) -> TooLarge:
        """Return the same error, of a task whose outcome cannot be committed for that."""
        return TooLarge(f"Task {task!r}: {self.message}", hint=self.hint, **{**self.ids, "task": task})


class JournalDamaged(CheckpointError):
    """A bad record with good ones after it: damage, not a torn tail."""


class NoJournal(CheckpointError):
    """The store can keep no journal: it confirms what is not on its disk."""


class JournalFailed(CheckpointError):
    """An append or its sync failed; the session stops here."""


# --- sessions --------------------------------------------------------------------------


class SessionError(GraflowError):
    """The session cannot be used like this."""


class BadSessionId(SessionError, ValueError):
    """Not a session id: letters, digits, `_` and `-`, at most 64."""


class SessionBusy(SessionError):
    """A living process owns the session. `.owner` names it."""


class SessionExists(SessionError):
    """`resume="never"`, and the id has state."""


class SessionFinished(SessionError):
    """`on_finished="error"`, and the session is finished."""


class OtherWorkflow(SessionError):
    """The session belongs to another workflow. `.workflow` and `.other` name both."""


class SessionElsewhere(SessionError):
    """The program has begun the session in another place. `.places` lists where it is."""


class NoSession(SessionError):
    """`resume="must"`, and the id has none."""


class SessionDamaged(SessionError):
    """A session's tables hold something that no version has written."""


class SessionCancelled(SessionError):
    """The session was cancelled for good."""


class InputsChanged(SessionError):
    """Resumed with other inputs than it was started with."""


class Fenced(SessionError):
    """Another process owns the session now; nothing that this one does counts any more."""


class InDoubt(SessionError):
    """A task was running when its process died, and `on_interrupted="ask"`. `.tasks` names them."""


class Interrupted(SystemExit):
    """Stopped by a signal; the same command continues. Exit status 75: try again."""

    def __init__(self, message: str, session: str) -> None:
        super().__init__(75)
        self.message = message
        self.session = session

    def __str__(self) -> str:
        return self.message


# --- servers ---------------------------------------------------------------------------


class PackageMissing(GraflowError, ImportError):
    """An optional package is not installed. `.extra` names what to install."""


def not_installed(missing: ImportError, cannot: str, extra: str) -> PackageMissing:
    """Return what to raise where an optional package is imported and is not there, or lacks a part."""
    lacks = isinstance(missing, ModuleNotFoundError)
    why = f"the package {missing.name} is not installed" if lacks else str(missing).splitlines()[0]
    return PackageMissing(
        f"{cannot}: {why}.", hint=f"Install it with: pip install 'graflow-ckpt[{extra}]'.", extra=extra
    )


class ServerError(GraflowError):
    """A server did not do what it was asked to. `.address` says which, without a password."""


class BadAddress(ServerError, ValueError):
    """Not the address of a server."""


class ServerGone(ServerError, ConnectionError):
    """Not reachable, not ready, or lost: what was asked last may have been done. Try again."""


class ServerRefuses(ServerError):
    """Wrong password, or no permission: an operator has to give one."""


class ServerReadOnly(ServerError):
    """A replica: an operator has to name its master."""


class ServerFull(ServerError):
    """No room in its memory, or it cannot write to its disk. Nothing was changed."""


class ServerTooOld(ServerError):
    """Its version lacks what is needed."""


class KeyTaken(ServerError):
    """Something else keeps its data under a key of ours. `.keys` says which, and what is there."""


class BadSetting(GraflowError, ValueError):
    """A setting that is not valid: fix it where `.where` says, and start again."""


# --- tasks -----------------------------------------------------------------------------


class TaskError(GraflowError):
    """A task failed, and not by an exception of its own."""


class RemoteError(TaskError):
    """A task failed on a worker. `.type`, `.text` and `.traceback` are what is known of its exception."""


class TaskTimeout(TaskError, TimeoutError):
    """An attempt passed its deadline."""


class MaxCyclesExceeded(TaskError):
    """A task was to run once more than its `max_cycles` allows."""


class WriteConflict(TaskError):
    """A value that was got has been committed by another task meanwhile."""


class ValueTorn(TaskError):
    """A failed attempt changed a live value in place, and there is no cut to go back to."""


class ReadOnlyChanged(TaskError):
    """GRAFLOW_CKPT_CHECK=1 has found that a task changed a value that it was to look at only."""


class ResultForgotten(TaskError):
    """A result is asked for that `context.forget` has deleted from the session. `.name` is its name."""


class RoundsChanged(TaskError):
    """A loop of `context.rounds` continues, and its items are not those that it was begun with."""


class GroupFailed(TaskError):
    """Fewer members of a group succeeded than its policy needs."""


class WorkerDied(TaskError):
    """The process of an attempt ended without an outcome."""


class WorkflowCancelled(TaskError):
    """`cancel_workflow` was called."""


class Stalled(TaskError):
    """Nothing is left to run, and a join still waits. `.gates` names what for."""
