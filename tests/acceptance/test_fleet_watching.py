"""Workers of a fleet have observers of their own: what they run and save is told, counted and traced."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from graflow_ckpt import CheckpointManager
from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import Fleet

# Spans and events go to files, which all processes of the pool extend.
WATCHING = """
import json
from graflow_ckpt.interfaces.observers.opentelemetry import Tracing
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class ToFile(SpanExporter):
    def export(self, spans):
        with open("spans", "a") as file:
            for span in spans:
                first = span.attributes.get("original_trace_id", "")
                print(json.dumps([span.name, f"{span.context.trace_id:032x}", first]), file=file)
        return SpanExportResult.SUCCESS

def traces():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    return Tracing(provider)

def events():
    def tell(event):
        with open("events", "a") as file:
            print(json.dumps([event.kind, event.task, event.facts.get("status")]), file=file)
        raise OSError("an observer that fails")
    return tell

def broken():
    raise OSError("no exporter here")
"""
PROGRAM = """
from graflow_ckpt import task, workflow

with workflow("two") as ctx:

    @task(inject_context=True)
    def one(context):
        context.checkpoint()
        return 1

    @task
    def two(one):
        return one + 1

    one >> two
    ctx.execute()
"""
PROMETHEUS = "graflow_ckpt.interfaces.observers.prometheus:PrometheusObserver"


def lines(name: str) -> list[Any]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_what_a_worker_runs_is_told_counted_and_traced(fleet: Fleet, own_folder: Path) -> None:
    program("watching.py", WATCHING)
    program("two.py", PROGRAM)
    metrics = own_folder / "metrics"
    metrics.mkdir()
    makers = f"watching:events,watching:traces,watching:broken,{PROMETHEUS}"
    counted = {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}

    with fleet.pool("--observers", makers, **counted) as pool:
        fleet("submit", "two.py", "--session", "s", "--wait")
        fleet("submit", "two.py", "--session", "t", "--max-steps", "1", "--wait")
        fleet("resume", "t", "--max-steps", "2", "--url", fleet.url)
        fleet("wait", "t")
    said = Counter((kind, task) for kind, task, _ in lines("events"))
    spans = lines("spans")
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(metrics))  # type: ignore[no-untyped-call]

    assert said[("task_ended", "one")] == said[("task_ended", "two")] == 2
    assert said[("checkpoint_saved", "")] == 2
    assert said[("session_started", "")] == said[("session_ended", "")] >= 2
    assert [status for kind, _, status in lines("events") if kind == "session_ended"].count("completed") == 2
    assert Counter(name for name, *_ in spans) >= Counter(
        {"task one": 2, "task two": 2, "checkpoint save": 2}
    )
    kept = CheckpointManager.list_checkpoints(store=fleet.url)
    began = {trace for name, trace, first in spans if name == "workflow two" and not first}
    assert len(began) == 2
    assert {found.original_trace_id for found in kept} == began
    assert {first for _, _, first in spans} - {""} <= began
    assert any(first for _, _, first in spans)  # of the slice that went on
    assert all(found.trace_context for found in kept)
    saves = (
        registry.get_sample_value(
            "checkpoint_save_duration_seconds_count", {"backend": "redis", "status": status}
        )
        for status in ("accepted", "synced")
    )
    assert sum(filter(None, saves)) == 2
    assert registry.get_sample_value("graflow_tasks_total", {"outcome": "done"}) == 4
    assert "the observer watching:broken could not be made" in pool.log
    assert "failed on task_ended" in pool.log


def test_an_observer_that_is_not_there_keeps_the_pool_from_starting(fleet: Fleet, own_folder: Path) -> None:
    program("watching.py", "NAME = 1\n")

    for maker in ("no_such_module:x", "watching:nothing"):
        said = fleet("worker", "--observers", maker, status=1).err
        assert f"The observer '{maker}' cannot be had" in said
    said = " ".join(fleet("worker", "--observers", "watching", status=2).err.split())
    assert "--observers cannot be used: 'watching' does not name what makes an observer" in said
