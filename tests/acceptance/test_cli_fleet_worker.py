"""graflow-ckpt worker: a pool is started as flags, the environment and a file say, probed, and observed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from graflow_ckpt import CheckpointManager
from graflow_ckpt.fleet.health import PoolFacts, pools
from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import SECRET, Fleet
from tests.stretch import comes


def only(fleet: Fleet) -> PoolFacts:
    (found,) = pools(fleet.client.link)
    return found


def test_a_pool_serves_what_the_file_says_unless_a_flag_says_otherwise(
    fleet: Fleet, own_folder: Path
) -> None:
    (own_folder / "key").write_text(fleet.key)
    (own_folder / "key").chmod(0o600)
    (own_folder / "graflow-ckpt.toml").write_text(
        f'[fleet]\nredis_url = "{fleet.url}"\nkey_file = "key"\nqueues = ["gpu", "default"]\n'
        "workers = 7\nlog = 'json'\n"
    )
    nothing = {"GRAFLOW_CKPT_REDIS_URL": "", "GRAFLOW_CKPT_KEY": ""}
    with fleet.pool(**nothing) as pool:  # which says -n 1
        found = only(fleet)
        assert (found.queues, len(found.workers)) == (("gpu", "default"), 1)
        assert "completed after 4 steps" in fleet("submit", "etl.py", "--wait", **nothing).err
        assert fleet("worker", "--health", **nothing).out.startswith(f"pool {found.pool}: 1 workers")
        facts = [json.loads(line) for line in pool.said.splitlines() if line.startswith("{")]

    assert {fact["worker"] for fact in facts} == {"pool"}
    assert fleet.shown in facts[-1]["message"]


def test_a_pool_that_is_told_to_stop_drains_and_its_probe_sees_it(fleet: Fleet) -> None:
    with fleet.pool(workers=2) as pool:
        assert fleet("worker", "--health", "--json").document["healthy"]
        assert not fleet("worker", "--health", "--queues", "gpu", "--json", status=1).document["healthy"]

        pool.signal(signal.SIGTERM)

        assert pool.wait() == 0
        assert "draining: SIGTERM" in pool.said
    assert "No pool of workers runs here" in fleet("worker", "--health", status=1).out


def test_what_a_task_prints_is_in_the_log_while_its_worker_lives(fleet: Fleet) -> None:
    program(
        "said.py",
        "from graflow_ckpt import task, workflow\n\n@task\ndef says():\n    print('here it is')\n\n"
        "with workflow('said', session_id='said') as flow:\n    flow.add(says)\n    flow.execute()\n",
    )

    with fleet.pool(PYTHONUNBUFFERED="") as pool:
        fleet("submit", "said.py", "--wait")
        assert comes(lambda: "here it is" in pool.said, within=10)


def test_modules_are_found_in_the_working_folder_and_can_be_loaded_before(
    fleet: Fleet, own_folder: Path
) -> None:
    program("models.py", 'open("loaded", "a").write("once\\n")\nNAME = "big"\n')
    program(
        "flows.py",
        "import models\nfrom graflow_ckpt import task, workflow\n\n"
        "@task\ndef name():\n    return models.NAME\n\nwf = workflow('named').add(name)\n",
    )

    with fleet.pool("--preload", "models", workers=2):
        (own_folder / "loaded").write_text("")
        assert "completed after 1 step" in fleet("submit", "flows:wf", "--session", "s", "--wait").err

    assert fleet.client.session("s").result() == "big"
    assert (own_folder / "loaded").read_text() == "once\n"  # by submit; the worker had it


def test_a_machine_that_lacks_a_module_is_named_by_status_and_doctor(
    fleet: Fleet, own_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program("helper.py", "def help(): return 1\n")
    program(
        "uses.py",
        "import helper\nfrom graflow_ckpt import task, workflow\n\n"
        "@task\ndef used():\n    return helper.help()\n\nwf = workflow('uses').add(used)\n",
    )
    with fleet.pool("--code-patience", "0s", folder=tmp_path_factory.mktemp("elsewhere")):
        done = fleet("submit", "uses:wf", "--session", "s", "--wait", status=3)

        assert "paused after 0 steps" in done.err
        assert "module 'uses'" in done.err
        assert "'uses'" in fleet("status", "s").out
        found = fleet("doctor", "--url", fleet.url, "--json").document
        (code,) = [finding for finding in found if finding["what"] == "code"]
        assert code["verdict"] == "warning"
        assert "session s" in code["found"]


# --- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--queues", "a/b"], "--queues cannot be used: 'a/b' is not a queue name"),
        (["-n", "0"], "--workers is '0'. Allowed: a whole number from 1 to 1024"),
        (["--grace", "soon"], "--grace is 'soon'"),
        (["--mode", "fork"], "No such option"),
        (["--url", "http://host"], "--url cannot be used: 'http://host' is not the address"),
        (["--url", f"redis://:{SECRET}@host"], "--url cannot be used: The address"),
        (["--config", "nothing.toml"], "nothing.toml cannot be read"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_flag_is_status_2_and_says_what_is_allowed(
    fleet: Fleet, arguments: list[str], told: str
) -> None:
    said = " ".join(fleet("worker", *arguments, status=2).err.split())

    assert told in said


def test_a_file_with_a_mistyped_key_stops_the_worker_by_name(fleet: Fleet, own_folder: Path) -> None:
    path = own_folder / "graflow-ckpt.toml"
    path.write_text('[fleet]\nqueue = "gpu"\n')

    said = fleet("worker", status=2).err

    assert f"{path} has 'queue' in [fleet], which is not a setting" in said
    assert "Is queues meant?" in said


def test_without_a_key_a_server_or_a_module_no_pool_is_started(fleet: Fleet) -> None:
    assert "GRAFLOW_CKPT_KEY" in fleet("worker", status=2, GRAFLOW_CKPT_KEY="").err
    assert "No server is named" in fleet("worker", status=2, GRAFLOW_CKPT_REDIS_URL="").err
    mistyped = fleet("worker", "--preload", "no_such_module", status=1, GRAFLOW_CKPT_WORKRS="3").err
    assert "GRAFLOW_CKPT_WORKRS is set, and nothing reads it" in mistyped
    said = fleet("worker", "--preload", "no_such_module", status=1).err
    assert "The module 'no_such_module' cannot be imported" in said
    wrong = fleet.url.replace("hu%2Fsh%40sh", "mistaken")
    refused = fleet("worker", status=1, GRAFLOW_CKPT_REDIS_URL=wrong)
    assert "refuses" in refused.err
    assert "mistaken" not in refused.out + refused.err


# --- observers of workers ---------------------------------------------------------------


# Spans and events go to files, which all processes of the pool extend.
WATCHING = """
import json
from graflow_ckpt.observers.opentelemetry import Tracing
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
TWO = """
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
PROMETHEUS = "graflow_ckpt.observers.prometheus:PrometheusObserver"


def lines(name: str) -> list[Any]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_what_a_worker_runs_is_told_counted_and_traced(fleet: Fleet, own_folder: Path) -> None:
    program("watching.py", WATCHING)
    program("two.py", TWO)
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
    assert "the observer watching:broken could not be made" in pool.said
    assert "failed on task_ended" in pool.said


def test_an_observer_that_is_not_there_keeps_the_pool_from_starting(fleet: Fleet, own_folder: Path) -> None:
    program("watching.py", "NAME = 1\n")

    for maker in ("no_such_module:x", "watching:nothing"):
        said = fleet("worker", "--observers", maker, status=1).err
        assert f"The observer '{maker}' cannot be had" in said
    said = " ".join(fleet("worker", "--observers", "watching", status=2).err.split())
    assert "--observers cannot be used: 'watching' does not name what makes an observer" in said
