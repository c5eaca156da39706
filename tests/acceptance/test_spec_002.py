"""What the design of checkpoints names: three files, asking for them, continuing; queue, groups, errors."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    EveryTask,
    ExecutionContext,
    TaskExecutionContext,
    TaskGraph,
    TaskSpec,
    Workflow,
    WorkflowEngine,
    task,
    workflow,
)
from tests.acceptance.places import LOG, WORLD, cuts, files_of, machine
from tests.loops import chain

pytestmark = pytest.mark.usefixtures("world")


# --- the three files --------------------------------------------------------------------


def test_a_checkpoint_is_three_files_under_the_documented_name() -> None:
    flow = machine()

    flow.execute("step")

    (alone, *_) = cuts(flow.session_id)
    assert re.fullmatch(rf"checkpoints/session_{alone.session_id}_step_1_\d+-\d+\.pkl", alone.path)
    assert all(file.is_file() for file in files_of(alone.path).values())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files_of(alone.path).values()} == {0o600}
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

    alone = cuts(flow.session_id)[0]
    meta = json.loads(files_of(alone.path)["meta.json"].read_text())

    fields = ("checkpoint_id", "session_id", "created_at", "steps", "start_node", "backend", "user_metadata")
    assert {name: meta[name] for name in fields} == {name: getattr(alone, name) for name in fields}
    assert datetime.fromisoformat(alone.created_at).tzinfo == UTC
    assert meta["user_metadata"]["was"] == "A"


# --- asking for a checkpoint ------------------------------------------------------------


def test_metadata_is_enriched_and_the_users_dict_is_not_changed() -> None:
    own = {"epoch": 3}

    def asking(context: TaskExecutionContext) -> None:
        context.checkpoint(metadata=own)

    flow = chain(asking)
    flow.execute()

    found = cuts(flow.session_id)[0].user_metadata
    assert own == {"epoch": 3}
    assert found.keys() == {"epoch", "task_id", "cycle_count", "elapsed_time"}
    assert (found["epoch"], found["task_id"], found["cycle_count"]) == (3, "asking", 0)
    assert 0 <= found["elapsed_time"] < 60


def test_task_facts_stand_beside_the_users_in_the_sessions_metadata() -> None:
    seen: list[dict[str, Any]] = []

    def asking(context: TaskExecutionContext) -> None:
        if context.cycle == 0:
            context.checkpoint(metadata={"epoch": 1})
            context.next_iteration()
        else:
            seen.append(context.execution_context.checkpoint_metadata)

    chain(asking).execute()

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
def alone() -> str:
    return "first"


@task(inject_context=True)
def asks_once(context: TaskExecutionContext) -> str:
    context.checkpoint()
    return "asks"


# --- lists ------------------------------------------------------------------------------


def three(session: str) -> list[str]:
    flow = chain(asks_once, session_id=session)
    flow.execute(max_steps=1)
    return [flow.execution_context.checkpoint()[0] for _ in range(3)]


def test_the_session_that_was_saved_last_is_listed_first() -> None:
    three("long")
    chain(asks_once, session_id="short").execute()

    listed = [m.session_id for m in CheckpointManager.list_checkpoints()]

    assert listed == sorted(listed, reverse=True)
    assert listed[0] == "short"


# --- what is refused --------------------------------------------------------------------


def test_a_url_of_a_local_file_is_its_path() -> None:
    context = ExecutionContext.create(TaskGraph(), "alone")
    context.graph.add(alone)

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


# --- what the checkpoint/resume design names --------------------------------------------


RAN: list[str] = []
OUTSIDE = {"down": True}


@pytest.fixture(autouse=True)
def clean() -> None:
    RAN.clear()
    OUTSIDE["down"] = True


@task
def first() -> str:
    RAN.append("first")
    return "first"


@task
def second() -> str:
    RAN.append("second")
    return "second"


@task(priority=5)
def urgent() -> str:
    RAN.append("urgent")
    return "urgent"


@task(max_retries=2)
def flaky() -> str:
    RAN.append("flaky")
    if OUTSIDE["down"]:
        raise ConnectionError("down")
    return "flaky"


@task(inject_context=True)
def asks(context: TaskExecutionContext) -> str:
    RAN.append("asks")
    context.checkpoint()
    return "asks"


@task
def both(first: str, asks: str) -> str:
    RAN.append("both")
    return f"{first} and {asks}"


def stopped(flow: Workflow, steps: int) -> ExecutionContext:
    """The session after so many steps, loaded from its newest checkpoint and ready to go on."""
    flow.execute(max_steps=steps)
    context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest(flow.session_id))
    context.state.max_steps = None
    return context


# --- the queue --------------------------------------------------------------------------


def test_queue_order_is_restored() -> None:
    flow = workflow("order", checkpoint=EveryTask()).add(first, second, urgent)
    flow.execute(first, max_steps=1)
    context = flow.execution_context
    for spec in (TaskSpec("second"), TaskSpec("first"), TaskSpec("urgent", priority=5)):
        context.add_to_queue(spec)
    path, _ = context.checkpoint()

    loaded = ExecutionContext.resume(path)
    loaded.state.max_steps = None
    loaded.settings = replace(loaded.settings, max_parallel=1)

    assert loaded.task_queue.get_pending_tasks() == ["urgent", "second", "first"]
    assert [s.priority for s in loaded.task_queue.get_pending_task_specs()] == [5, 0, 0]
    RAN.clear()
    WorkflowEngine().execute(loaded)
    assert RAN == ["urgent", "second", "first"]


def test_a_retry_count_is_restored() -> None:
    flow = workflow("retries", max_parallel=1).add(flaky, asks)
    with pytest.raises(ConnectionError):
        flow.execute()

    kept = [
        json.loads(Path(m.path.removesuffix(".pkl") + ".state.json").read_text())["pending_tasks"]
        for m in CheckpointManager.list_checkpoints(flow.session_id)
        if m.cause == "request"
    ]
    assert [(spec["task_id"], spec["retry_count"], spec["max_retries"]) for spec in kept[0]] == [
        ("flaky", 1, 2)
    ]
    assert RAN.count("flaky") == 3


def test_specs_keep_their_data_status_and_strategy() -> None:
    context = ExecutionContext.create(TaskGraph(), "first", session_id="specs")
    context.graph.add(first)
    context.task_queue.enqueue(TaskSpec("first", task_data={"k": (1, 2)}, priority=2, max_retries=7))
    path, _ = context.checkpoint()

    (spec,) = ExecutionContext.resume(path).task_queue.get_pending_task_specs()

    assert (spec.task_id, spec.task_data, spec.status) == ("first", {"k": (1, 2)}, "pending")
    assert (spec.priority, spec.retry_count, spec.max_retries) == (2, 0, 7)
    assert spec.execution_strategy == "direct"
    assert TaskSpec("x")[1:7] == (None, "pending", 0, 0, 3, "direct")


# --- groups and tasks made at run time ---------------------------------------------------


def test_completed_siblings_of_a_group_are_not_run_again() -> None:
    context = stopped(chain((first, asks, second), urgent, max_parallel=1), 2)
    assert context.completed_tasks == {"first", "asks"}
    WorkflowEngine().execute(context)

    assert RAN == ["first", "asks", "second", "urgent"]
    assert context.status == "completed"


def test_a_join_waits_for_what_was_still_to_come_when_the_checkpoint_was_taken() -> None:
    context = stopped(chain((first, asks), both, max_parallel=1, checkpoint=EveryTask()), 1)
    result = WorkflowEngine().execute(context)

    assert result == "first and asks"
    assert RAN == ["first", "asks", "both"]
