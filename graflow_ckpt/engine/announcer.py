"""The announcer: reports what has happened to a session to observers and the log, after the commit.

An account is what is kept of an exception as text, for readers that never get the exception itself:

    Type: message           what lists show is its first line
    \\x1e traceback          where a waiting process is elsewhere

Promise: making one never fails, whatever the exception does when it is asked for its message, and it
has an end: what is left out of the middle is counted. Nothing of it is ever pickled.

Not here: spans; they are an observer's (observers/).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from traceback import TracebackException
from typing import Any, NamedTuple, Self

from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.core.events import Event, Kind, Observer, Tracer
from graflow_ckpt.core.facts import Claim, Failed, Outcome
from graflow_ckpt.sessions.protocol import Session

log = logging.getLogger("graflow_ckpt.engine")


class Announcer:
    """One per run; keeps the exception that failed the session."""

    def __init__(self, session: Session, observers: Sequence[Observer]) -> None:
        self.failure: BaseException | None = None
        self.open = False  # observers know that an execution has begun, and not yet that it has ended
        self._session = session
        self._observers = observers

    def emit(self, kind: Kind, task: str = "", **facts: Any) -> None:
        """Notify the observers; one that fails is logged and called again next time."""
        session = self._session
        if kind in ("session_started", "session_ended"):
            self.open = kind == "session_started"
        if self._observers:
            event = Event(kind, session.id, session.clock(), session.steps, task, facts)
            session.afterwards(partial(self._notify, event))

    def _notify(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                log.exception("observer %r failed on %s", observer, event.kind)

    def ended(self, claim: Claim, outcome: Outcome) -> None:
        """Report an attempt that was committed or has failed."""
        task = claim.spec.task_id
        if isinstance(outcome, Failed):
            self._failed(claim, outcome)
        pending = self._session.pending
        self.emit("task_ended", task, outcome=type(outcome).__name__.lower(), pending=pending)

    def late(self, task: str) -> None:
        """Report a body that returned after its attempt was over: nothing of it counts."""
        log.warning(
            "task %s came back after its attempt was over; its result is not taken",
            task,
            extra={"session": self._session.id, "task": task},
        )
        self.emit("task_late", task)

    def _failed(self, claim: Claim, outcome: Failed) -> None:
        session, spec = self._session, claim.spec
        if session.status in ("failing", "failed") and self.failure is None:
            self.failure = outcome.exception
        again = outcome.is_tried_again(spec)
        log.warning(
            "task %s failed%s: %s",
            spec.task_id,
            ", it runs again" if again else "",
            outcome.error.partition("\n")[0],  # the rest is a traceback
            extra={
                "session": session.id,
                "task": spec.task_id,
                "attempt": spec.retry_count + 1,
            },
        )


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\Z")


class Trace:
    """The state of a session's trace in one process, and what of it goes from one checkpoint to the next.

    A run that has no tracer hands on what it found, so that one link of a chain may do without.
    """

    def __init__(self, session: str) -> None:
        self.former: dict[str, str] | None = None  # of the run that has saved what this one continues
        self.original: str | None = None  # the trace of the session's first run
        self._session = session
        self._tracers: tuple[Tracer, ...] = ()

    @property
    def traces(self) -> bool:
        return bool(self._tracers)

    def follow(self, observers: Iterable[Observer]) -> None:
        """Ask those of the observers that trace for their context from now on."""
        self._tracers = tuple(observer for observer in observers if isinstance(observer, Tracer))

    def goes_on(self, meta: Document) -> None:
        """Continue the trace of a checkpoint that was loaded."""
        found = meta.get("trace_context")
        self.former = dict(found) if isinstance(found, dict) else None
        self.original = meta.get("original_trace_id")

    def text(self) -> str:
        """Return the text of the trace that a session in Redis keeps; "" if nothing is recorded."""
        context, original = self.now()
        if context is None:
            return ""
        return json.dumps({"trace_context": context, "original_trace_id": original})

    def now(self) -> tuple[dict[str, str] | None, str | None]:
        """Return what the next checkpoint keeps: the context, and the id of the first trace."""
        for tracer in self._tracers:
            context = dict(tracer.trace_context(self._session))
            if context:
                self.original = self.original or trace_id(context)
                return context, self.original
        return self.former, self.original


def trace_id(context: Mapping[str, str]) -> str | None:
    """Return the trace that W3C headers name; None if they are no such headers."""
    found = _TRACEPARENT.match(context.get("traceparent", ""))
    return found["trace"] if found else None


# --- accounts ------------------------------------------------------------------------------

MESSAGE = 4_000
"""Characters of a message that are kept."""

TRACEBACK = 16_000
"""Characters of a traceback that are kept."""

_DIVIDED = "\n\x1e"
_TYPE = re.compile(r"[^\W\d][\w.]*\Z")


class Account(NamedTuple):
    """An exception in words."""

    type: str  # "" of what is no exception's
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException, *, traced: bool) -> Self:
        return cls(type(error).__name__, _message(error), _traceback(error) if traced else "")

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse an account from its text, or from any other text that is a reason."""
        said, _, traceback = text.partition(_DIVIDED)
        kind, colon, message = said.partition(": ")
        if not colon or not _TYPE.match(kind):
            kind, message = "", said
        return cls(kind, message, traceback)

    @property
    def line(self) -> str:
        """For a list."""
        first = self.message.partition("\n")[0]
        return f"{self.type}: {first}" if self.type else first

    @property
    def text(self) -> str:
        """As it is stored."""
        said = f"{self.type}: {self.message}"
        return f"{said}{_DIVIDED}{self.traceback}" if self.traceback else said


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001  a body's own code
        text = f"(its message cannot be made: {type(broken).__name__})"
    return _clean(_shortened(text, MESSAGE))


def _traceback(error: BaseException) -> str:
    try:
        parts = TracebackException(type(error), error, error.__traceback__, compact=True).format()
        text = "".join(_shortened(part, MESSAGE) for part in parts)
    except Exception as broken:  # noqa: BLE001  a body's own code: notes, causes, sources that are no text
        text = f"(its traceback cannot be made: {type(broken).__name__})\n"
    return _clean(_shortened(text, TRACEBACK))


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit // 2, limit - limit // 2
    return f"{text[:head]} … ({len(text) - limit} characters are left out) … {text[-tail:]}"


def _clean(text: str) -> str:
    """Remove what cannot be sent, or would be read as the mark between message and traceback."""
    return text.encode(errors="backslashreplace").decode().replace("\x1e", " ")
