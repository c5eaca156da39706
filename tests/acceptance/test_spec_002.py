"""What the checkpoint/resume design names, phases 1 and 2 of its checklist: three files, and asking for them.

Then: continuing from one, lists of them, and what is refused. Under the names that it uses, through the
public package alone, with sessions in memory. The queue is in test_spec_002_queue.py; the examples that it
prints are run by test_examples.py. Nested workflows and Redis are not here.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    CheckpointMetadata,
    ExecutionContext,
    TaskExecutionContext,
    TaskGraph,
    WorkflowEngine,
    task,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound, SchemaUnsupported, SessionError
from tests.acceptance.machine import LOG, WORLD, cuts, files_of, machine

pytestmark = pytest.mark.usefixtures("world")


# --- the three files --------------------------------------------------------------------


def test_a_checkpoint_is_three_files_under_the_documented_name() -> None:
    flow = machine()

    flow.execute("step")

    (first, *_) = cuts(flow.session_id)
    assert re.fullmatch(rf"checkpoints/session_{first.session_id}_step_1_\d+-\d+\.pkl", first.path)
    assert all(file.is_file() for file in files_of(first.path).values())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files_of(first.path).values()} == {0o600}
    assert stat.S_IMODE(os.stat("checkpoints").st_mode) == 0o700


def test_control_facts_have_the_documented_fields() -> None:
    flow = machine()
    flow.execute("step", max_steps=2)

    second = cuts(flow.session_id)[1]
    state = json.loads(files_of(second.path)["state.json"].read_text())

    assert state["schema_version"] == "1.0"
    assert state["session_id"] == flow.session_id
    assert (state["start_node"], state["steps"]) == ("step", 2)
    assert state["completed_tasks"] == ["step"]
    assert state["cycle_counts"] == {"step": 2}
    assert state["backend"] == {"queue": "memory", "channel": "memory"}
    (spec,) = state["pending_tasks"]
    documented = {"task_id": "step", "priority": 0, "retry_count": 0, "max_retries": 0}
    assert documented.items() <= spec.items()
    assert {"task_data", "status", "execution_strategy"} <= spec.keys()
    assert "current_task_spec" not in state


def test_metadata_has_the_documented_fields() -> None:
    flow = machine()
    flow.execute("step")

    first = cuts(flow.session_id)[0]
    meta = json.loads(files_of(first.path)["meta.json"].read_text())

    fields = ("checkpoint_id", "session_id", "created_at", "steps", "start_node", "backend", "user_metadata")
    assert {name: meta[name] for name in fields} == {name: getattr(first, name) for name in fields}
    assert datetime.fromisoformat(first.created_at).tzinfo == UTC
    assert meta["user_metadata"]["was"] == "A"


def test_metadata_is_made_with_the_time_of_now() -> None:
    backend = {"queue": "memory", "channel": "memory"}

    made = CheckpointMetadata.create("chk_1", "s", 3, "a", backend)

    assert abs(datetime.fromisoformat(made.created_at) - datetime.now(UTC)).total_seconds() < 60
    assert (made.checkpoint_id, made.session_id, made.steps, made.start_node) == ("chk_1", "s", 3, "a")
    assert (made.backend, made.user_metadata) == (backend, {})


def test_a_pkl_is_a_plain_pickle_with_the_values_of_the_session() -> None:
    flow = machine()
    flow.execute("step")

    with open(cuts(flow.session_id)[1].path, "rb") as file:
        context = pickle.load(file)

    assert isinstance(context, ExecutionContext)
    assert context.session_id == flow.session_id
    assert context.get_channel().get("state") == "C"
    assert context.get_result("step") == "B"


def test_paths_never_collide_within_one_second() -> None:
    flow = machine()
    flow.execute("step", max_steps=1)
    context = flow.execution_context

    paths = {context.checkpoint()[0] for _ in range(5)}

    assert len(paths) == 5


# --- asking for a checkpoint ------------------------------------------------------------


def test_a_checkpoint_is_deferred_until_its_task_has_completed() -> None:
    seen: list[Any] = []

    @task(id="asking", inject_context=True)
    def asking(context: TaskExecutionContext) -> None:
        pending = context.checkpoint(metadata={"stage": "now"})
        path, _ = pending
        seen.extend([pending, os.path.exists(path), pending.done()])

    with workflow("deferred") as ctx:
        ctx.execute(asking)

    pending, existed, was_done = seen
    assert (existed, was_done) == (False, False)
    assert (os.path.exists(pending.path), pending.done(), pending.error) == (True, True, None)
    assert cuts(ctx.session_id)[0].path == pending.path
    state = json.loads(files_of(pending.path)["state.json"].read_text())
    assert state["completed_tasks"] == ["asking"]


def test_a_task_that_fails_after_asking_leaves_no_requested_checkpoint() -> None:
    @task(id="failing", inject_context=True)
    def failing(context: TaskExecutionContext) -> None:
        context.checkpoint(metadata={"stage": "never"})
        raise ConnectionError("down")

    with workflow("failing") as ctx, pytest.raises(ConnectionError):
        ctx.execute(failing)

    assert cuts(ctx.session_id) == []
    assert ctx.execution_context.completed_tasks == set()


def test_metadata_is_enriched_and_the_users_dict_is_not_changed() -> None:
    own = {"epoch": 3}

    @task(id="asking", inject_context=True)
    def asking(context: TaskExecutionContext) -> None:
        context.checkpoint(metadata=own)

    with workflow("enriched") as ctx:
        ctx.execute(asking)

    found = cuts(ctx.session_id)[0].user_metadata
    assert own == {"epoch": 3}
    assert found.keys() == {"epoch", "task_id", "cycle_count", "elapsed_time"}
    assert (found["epoch"], found["task_id"], found["cycle_count"]) == (3, "asking", 0)
    assert 0 <= found["elapsed_time"] < 60


def test_a_session_knows_its_last_checkpoint() -> None:
    flow = machine()
    flow.execute("step", max_steps=2)
    context = flow.execution_context

    path, _ = context.checkpoint(metadata={"stage": "by hand"})

    known = context.checkpoint_metadata
    assert context.last_checkpoint_path == path
    assert abs(known["created_at"] - time.time()) < 60
    assert known["session_id"] == context.session_id
    assert (known["start_node"], known["steps"], known["completed_tasks"]) == ("step", 2, 1)
    assert known["backend"] == {"queue": "memory", "channel": "memory"}
    assert known["stage"] == "by hand"


def test_task_facts_stand_beside_the_users_in_the_sessions_metadata() -> None:
    seen: list[dict[str, Any]] = []

    @task(id="asking", inject_context=True)
    def asking(context: TaskExecutionContext) -> None:
        if context.cycle == 0:
            context.checkpoint(metadata={"epoch": 1})
            context.next_iteration()
        else:
            seen.append(context.execution_context.checkpoint_metadata)

    with workflow("known") as ctx:
        ctx.execute(asking)

    assert {"task_id": "asking", "cycle_count": 0, "epoch": 1, "steps": 1}.items() <= seen[0].items()


def test_a_checkpoint_may_be_requested_before_the_first_task() -> None:
    flow = machine("asked")
    context = flow.execution_context

    context.request_checkpoint({"why": "before"})
    assert (context.checkpoint_requested, context.checkpoint_request_metadata) == (True, {"why": "before"})
    flow.execute("step", max_steps=1)

    assert next((m.steps, m.user_metadata.get("why")) for m in cuts("asked")) == (0, "before")
    assert not context.checkpoint_requested


def test_where_checkpoints_are_created_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    flow = machine()
    with caplog.at_level(logging.INFO, "graflow_ckpt"):
        flow.execute("step", max_steps=1)

    path = cuts(flow.session_id)[0].path
    assert f"Checkpoint created: {path}" in caplog.messages


def test_a_session_tells_its_state_as_a_checkpoint_would_hold_it() -> None:
    flow = machine()
    flow.execute("step", max_steps=2)

    state = flow.execution_context.get_checkpoint_state()

    assert (state["schema_version"], state["steps"]) == ("1.0", 2)
    assert [spec["task_id"] for spec in state["pending_tasks"]] == ["step"]


def test_marking_a_task_completed_counts_it_without_running_it() -> None:
    flow = machine()
    context = flow.execution_context

    context.mark_task_completed("last")

    assert context.completed_tasks == {"last"}
    assert LOG == []


# --- continuing, also by code that only the checkpoint has ------------------------------


def test_a_state_machine_goes_on_where_it_was_also_in_the_values() -> None:
    flow = machine()
    flow.execute("step", max_steps=2)
    path = CheckpointManager.get_latest(flow.session_id)

    context, metadata = CheckpointManager.resume_from_checkpoint(path)
    assert (context.steps, metadata.steps, context.completed_tasks) == (2, 2, {"step"})
    assert (context.cycle_controller.get_count("step"), context.get_channel().get("state")) == (2, "C")
    result = context.execute(max_steps=10)

    assert (result, context.get_channel().get("state"), context.steps) == ("C", "D", 3)


def test_a_failed_step_runs_again_and_those_before_it_do_not() -> None:
    flow = machine()
    WORLD["down"] = True
    with pytest.raises(ConnectionError) as failure:
        flow.execute("step", max_steps=10)
    assert f"graflow-ckpt resume {flow.session_id}" in failure.value.__notes__[0]

    WORLD["down"] = False
    context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest(flow.session_id))
    WorkflowEngine().execute(context)

    assert LOG == ["A", "B", "C", "C"]
    assert context.status == "completed"


def test_each_of_several_checkpoints_can_be_resumed_on_its_own() -> None:
    flow = machine()
    flow.execute("step")

    ends = []
    for metadata in cuts(flow.session_id):
        context, _ = CheckpointManager.resume_from_checkpoint(metadata.path)
        before = context.get_channel().get("state")
        WorkflowEngine().execute(context)
        ends.append((before, context.get_channel().get("state"), context.steps))

    assert ends == [("B", "D", 3), ("C", "D", 3), ("D", "D", 3)]


def test_a_start_that_is_given_overrides_the_queue() -> None:
    flow = machine()
    flow.execute("step", max_steps=2)
    context = ExecutionContext.resume(CheckpointManager.get_latest(flow.session_id))
    context.state.max_steps = None

    result = WorkflowEngine().execute(context, start_task_id="last")

    assert result == "last"
    assert context.get_channel().get("state") == "C"


def test_a_context_is_saved_and_loaded_under_a_path_of_ones_own() -> None:
    flow = machine()
    flow.execute("step", max_steps=1)

    flow.execution_context.save("kept/mine.pkl")
    loaded = ExecutionContext.load("kept/mine.pkl")

    assert sorted(os.listdir("kept"))[-3:] == ["mine.meta.json", "mine.pkl", "mine.state.json"]
    assert (loaded.steps, loaded.get_channel().get("state")) == (1, "B")
    assert ExecutionContext.load("kept/mine").steps == 1  # the suffix may be left out


def test_a_checkpoint_is_created_for_a_context_now() -> None:
    flow = machine()
    flow.execute("step", max_steps=1)

    path, metadata = CheckpointManager.create_checkpoint(flow.execution_context, "mine.pkl", {"stage": "x"})

    assert (path, metadata.user_metadata, metadata.steps) == ("mine.pkl", {"stage": "x"}, 1)
    assert CheckpointManager.verify(path).checkpoint_id == metadata.checkpoint_id


def test_another_process_goes_on_with_the_code_of_the_checkpoint(tmp_path: Path) -> None:
    first = """
from graflow_ckpt import task, workflow
offset = 40
with workflow("code", session_id="code") as ctx:
    @task(inject_context=True)
    def half(context):
        context.checkpoint()
        return 1
    @task
    def whole(half):
        return half + 1 + offset
    half >> whole
    ctx.execute(max_steps=1)
"""
    then = """
from graflow_ckpt import CheckpointManager, WorkflowEngine
context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("code"))
context.state.max_steps = None
print(WorkflowEngine().execute(context))
"""
    done = [
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
        for program in (first, then)
    ]

    assert [(one.returncode, one.stdout) for one in done] == [(0, ""), (0, "42\n")], done[1].stderr


@task
def first() -> str:
    return "first"


@task(inject_context=True)
def asks(context: TaskExecutionContext) -> str:
    context.checkpoint()
    return "asks"


# --- lists ------------------------------------------------------------------------------


def three(session: str) -> list[str]:
    with workflow("lists", session) as flow:
        flow.add(asks)
        flow.execute(max_steps=1)
        return [flow.execution_context.checkpoint()[0] for _ in range(3)]


def test_checkpoints_are_listed_newest_first_by_session_and_by_pattern() -> None:
    paths, others = three("one"), three("two")

    assert [m.path for m in CheckpointManager.list_checkpoints("one")][:3] == paths[::-1]
    assert {m.session_id for m in CheckpointManager.list_checkpoints()} == {"one", "two"}
    found = [m.path for m in CheckpointManager.list_checkpoints("checkpoints/session_two_*.pkl")]
    assert found[:3] == others[::-1]
    assert found == [
        m.path for m in CheckpointManager.list_checkpoints(path_pattern="checkpoints/session_two_*")
    ]


def test_the_session_that_was_saved_last_is_listed_first() -> None:
    three("long")
    with workflow("lists", "short") as flow:
        flow.add(asks)
        flow.execute()

    listed = [m.session_id for m in CheckpointManager.list_checkpoints()]

    assert listed == sorted(listed, reverse=True)
    assert listed[0] == "short"


def test_the_newest_checkpoint_of_a_session_is_found() -> None:
    paths = three("one")

    assert CheckpointManager.get_latest("one") == paths[-1]
    with pytest.raises(CheckpointNotFound, match="Session other has no checkpoint"):
        CheckpointManager.get_latest("other")


def test_old_checkpoints_are_cleaned_up_when_asked_for() -> None:
    paths = three("one")
    before = len(CheckpointManager.list_checkpoints("one"))

    gone = CheckpointManager.cleanup_old_checkpoints(keep_last_n=2)

    assert gone == before - 2
    assert [m.path for m in CheckpointManager.list_checkpoints("one")] == paths[:0:-1]
    assert not os.path.exists(paths[0])


# --- what is refused --------------------------------------------------------------------


def edited(path: str, part: str, change: dict[str, object]) -> None:
    file = Path(path.removesuffix(".pkl") + part)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def test_a_schema_of_the_future_is_refused_with_the_documented_text() -> None:
    path = three("one")[-1]
    edited(path, ".meta.json", {"schema_version": "7.0"})

    with pytest.raises(
        SchemaUnsupported, match=r"Unsupported checkpoint schema version: 7\.0\. Supported: \['1\.0'\]"
    ):
        CheckpointManager.resume_from_checkpoint(path)
    with pytest.raises(ValueError, match="Migration required"):
        ExecutionContext.load(path)


@pytest.mark.parametrize("part", [".pkl", ".state.json"])
def test_a_missing_companion_is_named(part: str) -> None:
    path = three("one")[-1]
    os.unlink(path.removesuffix(".pkl") + part)

    with pytest.raises(CheckpointCorrupt, match=f"lacks its companion .*{part}"):
        CheckpointManager.resume_from_checkpoint(path)


def test_a_checkpoint_that_is_not_there_is_said_to_be_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pkl"):
        CheckpointManager.resume_from_checkpoint("nowhere.pkl")


def test_backends_that_this_version_lacks_are_refused_by_name() -> None:
    graph = TaskGraph()
    graph.add(first)

    for backend in ({"queue_backend": "redis"}, {"channel_backend": "redis"}, {"queue_backend": "kafka"}):
        with pytest.raises(SessionError, match=r"redis|kafka"):
            ExecutionContext.create(graph, "first", **backend)
    context = ExecutionContext.create(graph, "first")
    with pytest.raises(ValueError, match="ftp"):
        CheckpointManager.resume_from_checkpoint("ftp://bucket/session_1.pkl")
    with pytest.raises(ValueError, match="ftp"):
        context.checkpoint("ftp://bucket/session_1.pkl")
    assert os.listdir() == []


def test_a_url_of_a_local_file_is_its_path() -> None:
    context = ExecutionContext.create(TaskGraph(), "first")
    context.graph.add(first)

    context.checkpoint(f"file://{os.getcwd()}/mine.pkl")

    assert os.path.exists("mine.pkl")
    assert ExecutionContext.load(f"file://{os.getcwd()}/mine.pkl").session_id == context.session_id
