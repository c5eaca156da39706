"""What the checkpoint/resume design names, phases 1 and 2 of its checklist: three files, and asking for them.

Then: continuing from one, lists of them, and what is refused. Under the names that it uses, through the
public package alone, with sessions in memory. The queue is in test_spec_002_queue.py; the examples that it
prints are run by test_examples.py. Nested workflows and Redis are not here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from datetime import UTC, datetime
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    ExecutionContext,
    TaskExecutionContext,
    TaskGraph,
    WorkflowEngine,
    task,
    workflow,
)
from tests.acceptance.places import LOG, WORLD, cuts, files_of, machine

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


# --- asking for a checkpoint ------------------------------------------------------------


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


def test_the_session_that_was_saved_last_is_listed_first() -> None:
    three("long")
    with workflow("lists", "short") as flow:
        flow.add(asks)
        flow.execute()

    listed = [m.session_id for m in CheckpointManager.list_checkpoints()]

    assert listed == sorted(listed, reverse=True)
    assert listed[0] == "short"


# --- what is refused --------------------------------------------------------------------


def test_a_url_of_a_local_file_is_its_path() -> None:
    context = ExecutionContext.create(TaskGraph(), "first")
    context.graph.add(first)

    context.checkpoint(f"file://{os.getcwd()}/mine.pkl")

    assert os.path.exists("mine.pkl")
    assert ExecutionContext.load(f"file://{os.getcwd()}/mine.pkl").session_id == context.session_id


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


def test_checkpoints_are_listed_newest_first_by_session_and_by_pattern() -> None:
    paths, others = three("one"), three("two")

    assert [m.path for m in CheckpointManager.list_checkpoints("one")][:3] == paths[::-1]
    assert {m.session_id for m in CheckpointManager.list_checkpoints()} == {"one", "two"}
    found = [m.path for m in CheckpointManager.list_checkpoints("checkpoints/session_two_*.pkl")]
    assert found[:3] == others[::-1]
    assert found == [
        m.path for m in CheckpointManager.list_checkpoints(path_pattern="checkpoints/session_two_*")
    ]


def test_a_checkpoint_that_is_not_there_is_said_to_be_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pkl"):
        CheckpointManager.resume_from_checkpoint("nowhere.pkl")
