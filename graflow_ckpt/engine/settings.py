"""The settings of a session: one frozen value, checked where it is made."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from graflow_ckpt.checkpoint import retention
from graflow_ckpt.checkpoint.retention import DEFAULT, Retention
from graflow_ckpt.core import arguments, policy
from graflow_ckpt.core.errors import CheckpointError, GraphError
from graflow_ckpt.core.events import Observer
from graflow_ckpt.core.facts import Claim, Outcome
from graflow_ckpt.core.policy import Budget, EveryN, EverySeconds, EveryTask, OnRequest, Policy, WhenIdle

log = logging.getLogger("graflow_ckpt.checkpoint")

Durability = Literal["auto", "checkpoint", "journal", "none"]
Resume = Literal["auto", "never", "must"]
OnFailure = Literal["pause", "continue", "rollback"]
OnSaveFailure = Literal["event", "fail"]
Changed = Literal["reuse", "rerun"]
OnFinished = Literal["return", "again", "error"]
Invoke = Callable[[Claim], Outcome]
Middleware = Callable[[Claim, Invoke], Outcome]

_CHOICES = {
    "durability": ("auto", "checkpoint", "journal", "none"),
    "resume": ("auto", "never", "must"),
    "on_failure": ("pause", "continue", "rollback"),
    "on_save_failure": ("event", "fail"),
    "changed": (None, "reuse", "rerun"),
    "on_finished": ("return", "again", "error"),
}

_SLOW_VARIABLE = "GRAFLOW_CKPT_SLOW_SAVE"
_SLOW = 0.1  # seconds from which on a save is slow, unless that says otherwise

_STORED = (
    "durability", "policy", "keep", "on_failure", "on_save_failure", "max_checkpoint_size_mb", "max_parallel",
    "rng", "grace",
)  # fmt: skip
"""What a session is continued with where no program says otherwise."""

_POLICIES: tuple[type[Policy], ...] = (OnRequest, EveryN, EveryTask, EverySeconds, Budget, WhenIdle)
_RETENTIONS: tuple[type[Retention], ...] = (
    retention.KeepLast, retention.KeepFor, retention.KeepEvery, retention.BestOf, retention.KeepWithin,
    retention.LastSuccessful, retention.DeleteOnSuccess, retention.OfAll, retention.Automatic, retention.Both,
    retention.Either,
)  # fmt: skip
_VALUES: dict[str, Callable[..., Any]] = {f"policy.{kind.__name__}": kind for kind in _POLICIES} | {
    f"retention.{kind.__name__}": kind for kind in _RETENTIONS
}
_VALUES["policy.Either"] = policy.EitherPolicy  # checkpoints hold the name that it had
_NAMES = {kind: name for name, kind in _VALUES.items()}
"""Policies and retentions that a checkpoint names: the file and the class."""


def slow_after() -> float:
    """Return the seconds of the environment. A value that is no number is logged, and the default counts."""
    text = os.environ.get(_SLOW_VARIABLE, "").strip()
    try:
        return float(text) if text else _SLOW
    except ValueError:
        log.warning("%s=%r is no number of seconds; %s counts", _SLOW_VARIABLE, text, _SLOW)
        return _SLOW


def tell_slow(doing: str, seconds: float, path: str, session: str, limit: float) -> bool:
    """Log a save or load if it was slow; return whether it was.

    Once per session, for a slow store is slow each time.
    """
    if seconds <= limit:
        return False
    log.warning(
        "SLOW CHECKPOINT %s: %.2fms for %s (more than %.0fms; said once per session)",
        doing,
        seconds * 1000,
        path,
        limit * 1000,
        extra={"session": session},
    )
    return True


COROUTINES = 1000
"""How many coroutines run at once by default: each is an attempt of a few kilobytes, and no thread."""


class Slots(NamedTuple):
    """The number of bodies of a run that may run at once."""

    threads: int  # and child processes, which a thread waits for each
    coroutines: int
    together: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about a run that is neither the graph nor the session's state."""

    workflow: str = "workflow"
    durability: Durability = "auto"  # without a session id the same as "checkpoint"
    resume: Resume = "auto"
    policy: Policy = field(default_factory=OnRequest)
    keep: Retention = DEFAULT
    on_failure: OnFailure = "pause"
    on_save_failure: OnSaveFailure = "event"
    max_checkpoint_size_mb: float | None = None  # of a million bytes each; None: no limit
    changed: Changed | None = None
    max_parallel: int | None = None
    rng: bool = True
    grace: float = 30.0
    unsafe_pickle: bool = False
    take_over: bool = False
    in_doubt: tuple[tuple[str, str], ...] = ()  # answers for on_interrupted="ask"
    slow_save: float = field(default_factory=slow_after)  # seconds from which on a save is said to be slow
    options: tuple[tuple[str, str], ...] = ()  # as the user typed them; checkpoints keep them for `resume`
    observers: tuple[Observer, ...] = ()
    middleware: tuple[Middleware, ...] = ()
    # New fields come last: a stored workflow has its settings in this order, and may lack the newest.
    until_damage: bool = False  # of a damaged journal the records before the damage count
    program: str = ""  # the file that defines the workflow
    on_finished: OnFinished = "return"
    told: bool = False  # the command line says how a run begins

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str | None) or value not in choices:
                words = ", ".join(repr(c) for c in choices if c is not None)
                raise GraphError(f"{name}={value!r} is none of {words}.", setting=name)
        if not isinstance(self.workflow, str):
            raise arguments.refused("workflow", self.workflow, "a name")
        arguments.kind("checkpoint", self.policy, Policy, "a policy such as EveryN(10)")
        arguments.kind("keep", self.keep, Retention, "a retention such as KeepLast(10)")
        if self.max_parallel is not None:
            arguments.counted("max_parallel", self.max_parallel)
        if self.max_checkpoint_size_mb is not None:
            arguments.real("max_checkpoint_size_mb", self.max_checkpoint_size_mb, above=0)
        arguments.real("grace", self.grace, least=0)
        for name in ("rng", "unsafe_pickle", "take_over", "until_damage"):
            arguments.flag(name, getattr(self, name))
        for name in ("observers", "middleware"):
            for one in getattr(self, name):
                if not callable(one):
                    raise arguments.refused(name, one, "a list of callables")
        arguments.settle(self, "max_parallel", "max_checkpoint_size_mb", "grace")

    # --- as part of a session ----------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of them; `lost` names what it cannot keep."""
        kept: dict[str, Any] = {}
        own = "graflow_ckpt.cli."  # the command line brings its observers along
        foreign = [one for one in self.observers if not type(one).__module__.startswith(own)]
        lost = [f"observer {_name_of(one)}" for one in foreign]
        lost += [f"middleware {_name_of(one)}" for one in self.middleware]
        for name in _STORED:
            try:
                kept[name] = _written(getattr(self, name))
            except TypeError as error:
                lost.append(f"{name} {error}")
        return {**kept, "lost": lost} if lost else kept

    def with_stored(self, document: Mapping[str, Any] | None) -> Settings:
        """Return these settings with what a checkpoint keeps in their place."""
        known = {name: value for name, value in (document or {}).items() if name in _STORED}
        return replace(self, **{name: _read(value) for name, value in known.items()})

    def differences(self, document: Mapping[str, Any] | None) -> list[str]:
        """Say how these settings differ from those that a checkpoint keeps."""
        if document is None:  # an older checkpoint
            return []
        own = self.document()
        return [
            f"{name} was {_shown(document[name])} and is {_shown(own[name])}"
            for name in _STORED
            if name in document and name in own and document[name] != own[name]
        ]

    @property
    def recorded(self) -> bool:
        """True if commits and claims are written to a journal."""
        return self.durability in ("auto", "journal")

    @property
    def size_limit(self) -> int | None:
        """In bytes."""
        return None if self.max_checkpoint_size_mb is None else int(self.max_checkpoint_size_mb * 1_000_000)

    @property
    def slots(self) -> Slots:
        if self.max_parallel is not None:
            return Slots(self.max_parallel, self.max_parallel, self.max_parallel)
        threads = min(32, (os.cpu_count() or 1) + 4)
        return Slots(threads, COROUTINES, threads + COROUTINES)


def _name_of(value: object) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)


def _written(value: Any) -> Any:
    """Return a setting as JSON; raise TypeError with the name of a class that no checkpoint can hold."""
    if isinstance(value, (Policy, Retention)):
        name = _NAMES.get(type(value))
        if name is None:
            raise TypeError(type(value).__qualname__)
        own: Any = value  # each of the table is a dataclass
        return {"is": name, **{f.name: _written(getattr(own, f.name)) for f in fields(own)}}
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return arguments.own(value)


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_read(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = _VALUES.get(value["is"])
    if kind is None:
        raise CheckpointError(
            f"The session was run with {value['is']!r}, which this version of graflow-ckpt does not know.",
            hint="Upgrade it, or continue from the program, whose settings win.",
        )
    return kind(**{name: _read(item) for name, item in value.items() if name != "is"})


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        if value == _written(DEFAULT):
            return "the default"
        inner = ", ".join(f"{n}={_shown(v)}" for n, v in value.items() if n != "is")
        return f"{value['is'].rpartition('.')[2]}({inner})"
    if isinstance(value, list):
        return " and ".join(map(_shown, value))
    return repr(value)


def _restore(settings: Settings, state: list[object]) -> None:
    """Give settings what a pickle holds; fields that are newer than the pickle get their defaults."""
    for known, value in zip(fields(settings), state, strict=False):
        object.__setattr__(settings, known.name, value)
    for known in fields(settings)[len(state) :]:
        object.__setattr__(settings, known.name, known.default)


# Not a method: on Python 3.11 the decorator would write its own over it.
Settings.__setstate__ = _restore  # type: ignore[attr-defined]
