"""Traces: which spans a session leaves, and how those of the next process find them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_trace_id

from graflow_ckpt import CheckpointManager, EveryTask, ExecutionContext
from graflow_ckpt.core.events import Observer
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Options, Task
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.observers.opentelemetry import Tracing
from graflow_ckpt.stores.around.keys import new_key
from tests.loops import chain, pair


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def count(context: Any) -> None:
    context.next_iteration()


class Recorded:
    """A tracer of its own, and the spans that it has ended."""

    def __init__(self, **options: str) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.observer = Tracing(provider, **options)  # type: ignore[arg-type]

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found


def run(*observers: Observer, fails: bool) -> None:
    flow = pair(fails=fails, durability="checkpoint", checkpoint=EveryTask(), observers=observers)
    with pytest.raises(OSError, match="not yet") if fails else nullcontext():
        flow.execute()


def trace_of(span: ReadableSpan) -> str:
    return format_trace_id(span.context.trace_id)


def metas() -> list[dict[str, Any]]:
    found = [json.loads(path.read_bytes()) for path in Path("checkpoints").glob("*.meta.json")]
    return sorted(found, key=lambda meta: meta["sequence"])


def test_an_execution_is_one_trace_with_its_tasks_and_saves() -> None:
    recorded = Recorded()

    run(recorded.observer, fails=False)

    whole = recorded.one("workflow w")
    assert whole.attributes["graflow.session"] == "s"
    assert whole.attributes["graflow.status"] == "completed"
    assert "resumed_from" not in whole.attributes
    inside = [recorded.one("task a"), recorded.one("task b"), *recorded.spans("checkpoint save")]
    assert len(inside) == 5
    assert {span.parent.span_id if span.parent else None for span in inside} == {whole.context.span_id}
    saves = [span.attributes or {} for span in recorded.spans("checkpoint save")]
    assert all(save["checkpoint.bytes"] and save["checkpoint.backend"] == "file" for save in saves)


def test_what_failed_is_an_error_in_its_span() -> None:
    recorded = Recorded()

    run(recorded.observer, fails=True)

    assert recorded.one("task a").status.status_code is StatusCode.UNSET
    assert recorded.one("task b").status.status_code is StatusCode.ERROR
    assert recorded.one("workflow w").status.status_code is StatusCode.ERROR


def test_a_resume_is_a_trace_of_its_own_linked_to_the_one_before() -> None:
    first, second, third = Recorded(), Recorded(), Recorded()
    run(first.observer, fails=True)
    path = CheckpointManager.get_latest("s")
    run(second.observer, fails=True)

    run(third.observer, fails=False)

    former, middle, last = (recorded.one("workflow w") for recorded in (first, second, third))
    assert middle.attributes["resumed_from"] == path
    assert middle.attributes["resumed_from_trace"] == trace_of(former) != trace_of(middle)
    (link,) = middle.links
    assert link.context.span_id == former.context.span_id
    assert last.attributes["resumed_from_trace"] == trace_of(middle)
    assert last.attributes["original_trace_id"] == trace_of(former)
    restore = third.one("checkpoint restore")
    assert trace_of(restore) == trace_of(last)


def test_a_resume_goes_on_in_the_same_trace_if_it_is_told_to() -> None:
    first, second = Recorded(), Recorded(on_resume="continue")
    run(first.observer, fails=True)

    run(second.observer, fails=False)

    former, later = first.one("workflow w"), second.one("workflow w")
    assert trace_of(former) == trace_of(later)
    assert later.parent.span_id == former.context.span_id
    assert not later.links


def test_a_checkpoint_keeps_the_context_of_its_run_and_the_first_trace() -> None:
    first, second = Recorded(), Recorded()
    run(first.observer, fails=True)
    run(second.observer, fails=False)

    former, later = first.one("workflow w"), second.one("workflow w")
    kept = [meta["trace_context"] for meta in metas()]
    headers = [f"00-{trace_of(span)}-{span.context.span_id:016x}-" for span in (former, later)]
    assert [found["traceparent"][:-2] for found in (kept[0], kept[-1])] == headers
    assert {meta["original_trace_id"] for meta in metas()} == {trace_of(former)}
    assert CheckpointManager.list_checkpoints("s")[0].original_trace_id == trace_of(former)


def test_a_run_without_a_tracer_hands_on_what_it_found() -> None:
    first, third = Recorded(), Recorded()
    run(first.observer, fails=True)
    run(fails=True)

    run(third.observer, fails=False)

    last = third.one("workflow w")
    assert last.attributes["resumed_from_trace"] == trace_of(first.one("workflow w"))


def test_without_a_tracer_a_checkpoint_says_nothing_of_traces() -> None:
    run(fails=False)

    assert not any({"trace_context", "original_trace_id"} & set(meta) for meta in metas())


def test_without_an_sdk_that_records_nothing_is_kept() -> None:
    run(Tracing(), fails=False)

    assert not any("trace_context" in meta for meta in metas())


def test_no_span_and_no_checkpoint_is_left_open_by_a_session_that_is_fenced() -> None:
    from graflow_ckpt.core.errors import Fenced
    from graflow_ckpt.stores import open_store

    recorded = Recorded()

    def a() -> None:
        open_store("sqlite:///s.db").acquire("s", take_over=True).release()

    flow = chain(
        a, session_id="s", store="sqlite:///s.db", checkpoint=EveryTask(), observers=[recorded.observer]
    )
    with pytest.raises(Fenced):
        flow.execute()

    whole = recorded.one("workflow w")
    assert whole.attributes["graflow.status"] == "broken"


def test_a_session_in_redis_is_linked_to_who_took_part_before(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", redis_url)
    first, third = Recorded(), Recorded()

    for observers, steps in (((first.observer,), 1), ((), 2), ((third.observer,), 3)):
        graph = TaskGraph()
        graph.add(Task("count", count, Options(inject_context=True)))
        context = ExecutionContext.create(
            graph, "count", session_id="s", queue_backend="redis", channel_backend="redis",
            settings=Settings(workflow="w", policy=EveryTask(), observers=observers), store="checkpoints",
        )  # fmt: skip
        context.execute(max_steps=steps)

    former, later = first.one("workflow w"), third.one("workflow w")
    assert later.attributes["resumed_from_trace"] == trace_of(former)
    assert later.attributes["original_trace_id"] == trace_of(former)
    kept = [meta["trace_context"]["traceparent"].split("-")[1] for meta in metas()]
    assert kept == [trace_of(former)] * (len(kept) - 1) + [trace_of(later)]
    assert len(kept) >= 3
