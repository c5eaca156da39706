"""Where a session's trace stands, and what of it goes from one checkpoint to the next.

A run that has no tracer hands on what it found, so that one link of a chain may do without.
Not here: spans; they are an observer's (interfaces/observers).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.core.events import Observer, Tracer

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\Z")


class Trace:
    """Of one session in one process."""

    def __init__(self, session: str) -> None:
        self.former: dict[str, str] | None = None  # of the run that has saved what this one goes on from
        self.original: str | None = None  # the trace of the session's first run
        self._session = session
        self._tracers: tuple[Tracer, ...] = ()

    @property
    def traces(self) -> bool:
        return bool(self._tracers)

    def follow(self, observers: Iterable[Observer]) -> None:
        """From here on ask those of them that trace."""
        self._tracers = tuple(observer for observer in observers if isinstance(observer, Tracer))

    def goes_on(self, meta: Document) -> None:
        """A checkpoint was loaded."""
        found = meta.get("trace_context")
        self.former = dict(found) if isinstance(found, dict) else None
        self.original = meta.get("original_trace_id")

    def goes_on_from_text(self, text: str) -> None:
        """What a session in Redis keeps of it: whoever takes part goes on from who did so last."""
        self.goes_on(json.loads(text) if text else {})

    def text(self) -> str:
        """The same, of this run; "" if nothing is recorded."""
        context, original = self.now()
        if context is None:
            return ""
        return json.dumps({"trace_context": context, "original_trace_id": original})

    def now(self) -> tuple[dict[str, str] | None, str | None]:
        """What the next checkpoint keeps: the context, and the id of the first trace."""
        for tracer in self._tracers:
            context = dict(tracer.trace_context(self._session))
            if context:
                self.original = self.original or trace_id(context)
                return context, self.original
        return self.former, self.original


def trace_id(context: Mapping[str, str]) -> str | None:
    """The trace that W3C headers name; None if they are no such headers."""
    found = _TRACEPARENT.match(context.get("traceparent", ""))
    return found["trace"] if found else None
