"""Traces for OpenTelemetry: a span per execution, and in it one per task, save and restore.

    workflow(..., observers=[Tracing()])

    execution  ── task a ── task b ── save                     first process, trace 1
        ╰┄ link ┄ execution ── restore ── task c ── save       the next one, trace 2

Each checkpoint keeps the W3C context of its execution (`trace_context`) and the id of the first trace
(`original_trace_id`). A process that resumes from it begins a trace of its own, linked to that one,
with `resumed_from` and `resumed_from_trace` as attributes; with `on_resume="continue"` its spans are in the
same trace instead.

Promise: spans hold ids, counts and durations, never a value. Without an SDK that records, nothing is kept.
Not here: exporters, sampling; they are the program's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from graflow_ckpt.core.errors import not_installed
from graflow_ckpt.core.events import Event, Tracer

try:
    from opentelemetry import trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as missing:
    raise not_installed(missing, "There can be no traces", "otel") from missing

_W3C = TraceContextTextMapPropagator()
_BAD = frozenset({"failed", "stalled"})


@dataclass(slots=True)
class _Execution:
    """The spans of one session that are open."""

    span: Span
    tasks: dict[str, list[Span]] = field(default_factory=dict)


class Tracing(Tracer):
    """Makes spans of events. One may serve any number of sessions.

    `provider`: the provider of the spans; if not given, the one that the program has set up.
    """

    def __init__(
        self, provider: TracerProvider | None = None, *, on_resume: Literal["link", "continue"] = "link"
    ) -> None:
        if on_resume not in ("link", "continue"):
            raise ValueError(f"on_resume={on_resume!r} is neither 'link' nor 'continue'")
        self._tracer = trace.get_tracer("graflow_ckpt", tracer_provider=provider)
        self._continues = on_resume == "continue"
        self._running: dict[str, _Execution] = {}
        self._restored: dict[str, Event] = {}  # before the execution that continues it has begun

    def trace_context(self, session: str, /) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        if session in self._running:
            _W3C.inject(carrier, context=trace.set_span_in_context(self._running[session].span))
        return carrier

    def __call__(self, event: Event, /) -> None:
        match event.kind:
            case "session_started":
                self._start(event)
            case "session_ended":
                self._end(event)
            case "task_started":
                self._task_started(event)
            case "task_ended":
                self._task_ended(event)
            case "checkpoint_saved" | "checkpoint_failed":
                self._past("save", event)
            case "checkpoint_restored":
                self._restored[event.session] = event
            case "session_finished":  # it had ended before: there is nothing to make a span of
                self._restored.pop(event.session, None)
            case "session_went_back" | "task_late" | "restore_failed" | "journal_damaged":
                self._note(event)
            case _:
                pass

    # --- executions --------------------------------------------------------------------

    def _start(self, event: Event) -> None:
        if event.session in self._running:  # it went back to a cut, and continues
            self._note(event)
            return
        facts = event.facts
        headers = facts.get("trace_context")  # of W3C
        former = _W3C.extract(headers) if isinstance(headers, dict) else None
        before = trace.get_current_span(former).get_span_context() if former is not None else None
        attributes: dict[str, Any] = {
            "graflow.session": event.session,
            "graflow.workflow": facts["workflow"],
            "graflow.step": event.step,
        }
        if facts["resumed"] and facts["path"]:
            attributes["resumed_from"] = facts["path"]
        if before is not None and before.is_valid:
            attributes["resumed_from_trace"] = trace.format_trace_id(before.trace_id)
        if facts.get("original_trace_id"):
            attributes["original_trace_id"] = facts["original_trace_id"]
        span = self._tracer.start_span(
            f"workflow {facts['workflow']}",
            context=former if self._continues else None,
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            links=[Link(before)] if before is not None and before.is_valid and not self._continues else [],
        )
        self._running[event.session] = _Execution(span)
        if (restored := self._restored.pop(event.session, None)) is not None:
            self._past("restore", restored)

    def _end(self, event: Event) -> None:
        found = self._running.pop(event.session, None)
        if found is None:
            return
        for spans in found.tasks.values():  # what a signal or a timeout has left behind
            for span in spans:
                span.end()
        found.span.set_attributes({"graflow.status": event.facts["status"], "graflow.steps": event.step})
        if event.facts["status"] in _BAD:
            found.span.set_status(Status(StatusCode.ERROR, event.facts["status"]))
        found.span.end()

    # --- within ------------------------------------------------------------------------

    def _task_started(self, event: Event) -> None:
        if (found := self._running.get(event.session)) is None:
            return
        attempt = event.facts.get("attempt", 1)
        attributes = {"graflow.task": event.task, "graflow.attempt": attempt, "graflow.step": event.step}
        span = self._tracer.start_span(
            f"task {event.task}", context=trace.set_span_in_context(found.span), attributes=attributes
        )
        found.tasks.setdefault(event.task, []).append(span)

    def _task_ended(self, event: Event) -> None:
        found = self._running.get(event.session)
        if found is None or not found.tasks.get(event.task):
            return
        span = found.tasks[event.task].pop(0)
        span.set_attribute("graflow.outcome", event.facts["outcome"])
        if event.facts["outcome"] == "failed":
            span.set_status(Status(StatusCode.ERROR, "failed"))
        span.end()

    def _past(self, what: str, event: Event) -> None:
        """End a span of something that is over by now."""
        if (found := self._running.get(event.session)) is None:
            return
        facts, now = event.facts, time.time_ns()
        span = self._tracer.start_span(
            f"checkpoint {what}",
            context=trace.set_span_in_context(found.span),
            start_time=now - int(facts["seconds"] * 1e9),
            attributes={
                f"checkpoint.{name}": facts[name]
                for name in ("path", "cause", "bytes", "backend", "synced", "error_type")
                if name in facts
            },
        )
        if event.kind == "checkpoint_failed":
            span.set_status(Status(StatusCode.ERROR, facts["error_type"]))
        span.end(now)

    def _note(self, event: Event) -> None:
        found = self._running.get(event.session)
        if found is not None:
            found.span.add_event(event.kind, {"graflow.task": event.task, "graflow.step": event.step})
