"""What the checkpoint/resume design names: the queue as restored, groups, tasks made at run time, errors."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

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
from graflow_ckpt.core.errors import NotStorable

LOG: list[str] = []
WORLD = {"down": True}


@pytest.fixture(autouse=True)
def world() -> None:
    LOG.clear()
    WORLD["down"] = True


@task
def first() -> str:
    LOG.append("first")
    return "first"


@task
def second() -> str:
    LOG.append("second")
    return "second"


@task(priority=5)
def urgent() -> str:
    LOG.append("urgent")
    return "urgent"


@task(max_retries=2)
def flaky() -> str:
    LOG.append("flaky")
    if WORLD["down"]:
        raise ConnectionError("down")
    return "flaky"


@task(inject_context=True)
def asks(context: TaskExecutionContext) -> str:
    LOG.append("asks")
    context.checkpoint()
    return "asks"


@task
def both(first: str, asks: str) -> str:
    LOG.append("both")
    return f"{first} and {asks}"


@task
def made(item: int) -> int:
    LOG.append(f"made {item}")
    return item


@task(inject_context=True)
def spawns(context: TaskExecutionContext) -> None:
    LOG.append("spawns")
    for item in (1, 2):
        context.next_task(made.bind(id=f"made_{item}", item=item))
    context.checkpoint()


def stopped(flow: Workflow, steps: int) -> ExecutionContext:
    """The session after so many steps, loaded from its newest checkpoint and ready to go on."""
    flow.execute(max_steps=steps)
    context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest(flow.session_id))
    context.state.max_steps = None
    return context


# --- the queue --------------------------------------------------------------------------


def test_queue_order_is_restored() -> None:
    with workflow("order", checkpoint=EveryTask()) as flow:
        flow.add(first, second, urgent)
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
    LOG.clear()
    WorkflowEngine().execute(loaded)
    assert LOG == ["urgent", "second", "first"]


def test_a_retry_count_is_restored() -> None:
    @task(inject_context=True, id="watch")
    def watch(context: TaskExecutionContext) -> None:
        context.checkpoint()

    with workflow("retries", max_parallel=1) as flow:
        flow.add(flaky, watch)
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
    assert LOG.count("flaky") == 3


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


def test_a_limit_of_steps_counts_over_resumes() -> None:
    with workflow("steps", "steps", checkpoint=EveryTask()) as flow:
        first >> second >> urgent
        flow.execute(max_steps=2)

    context = ExecutionContext.resume(CheckpointManager.get_latest("steps"))

    assert (context.steps, context.max_steps, context.status) == (2, 2, "stopped")
    assert context.execute() == "second"  # the limit stands
    assert context.execute(max_steps=3) == "urgent"
    assert LOG == ["first", "second", "urgent"]


# --- groups and tasks made at run time ---------------------------------------------------


def test_completed_siblings_of_a_group_are_not_run_again() -> None:
    with workflow("group", max_parallel=1) as flow:
        (first | asks | second) >> urgent

    context = stopped(flow, 2)
    assert context.completed_tasks == {"first", "asks"}
    WorkflowEngine().execute(context)

    assert LOG == ["first", "asks", "second", "urgent"]
    assert context.status == "completed"


def test_a_checkpoint_of_one_member_leaves_its_running_sibling_pending() -> None:
    began, asked = threading.Event(), threading.Event()

    @task(id="slow")
    def slow() -> str:
        began.set()
        assert asked.wait(20)
        return "slow"

    @task(id="quick", inject_context=True)
    def quick(context: TaskExecutionContext) -> None:
        assert began.wait(20)
        context.checkpoint()

    def saved(event: object) -> None:
        if getattr(event, "kind", "") == "checkpoint_saved":
            asked.set()

    with workflow("siblings", observers=[saved]) as flow:
        (slow | quick) >> first
        flow.execute()

    cut = next(m for m in CheckpointManager.list_checkpoints(flow.session_id) if m.cause == "request")
    state = json.loads(Path(cut.path.removesuffix(".pkl") + ".state.json").read_text())
    assert state["completed_tasks"] == ["quick"]
    assert [spec["task_id"] for spec in state["pending_tasks"]] == ["slow"]


def test_a_join_waits_for_what_was_still_to_come_when_the_checkpoint_was_taken() -> None:
    with workflow("join", max_parallel=1, checkpoint=EveryTask()) as flow:
        (first | asks) >> both

    context = stopped(flow, 1)
    result = WorkflowEngine().execute(context)

    assert result == "first and asks"
    assert LOG == ["first", "asks", "both"]


def test_tasks_made_at_run_time_are_restored() -> None:
    with workflow("dynamic") as flow:
        flow.add(spawns)

    context = stopped(flow, 1)
    assert context.task_queue.get_pending_tasks() == ["made_1", "made_2"]
    WorkflowEngine().execute(context)

    assert sorted(LOG) == ["made 1", "made 2", "spawns"]
    assert (context.get_result("made_1"), context.get_result("made_2")) == (1, 2)


# --- errors -----------------------------------------------------------------------------


def test_a_failed_task_is_pending_in_the_checkpoint_of_its_failure() -> None:
    with workflow("errors", "errors") as flow:
        first >> flaky >> second
        with pytest.raises(ConnectionError):
            flow.execute()

    cut = CheckpointManager.list_checkpoints("errors")[0]
    state = json.loads(Path(cut.path.removesuffix(".pkl") + ".state.json").read_text())
    assert (cut.cause, cut.status) == ("failure", "failed")
    assert state["completed_tasks"] == ["first"]
    assert [(s["task_id"], s["status"]) for s in state["pending_tasks"]] == [("flaky", "failed")]
    assert state["errors"] == {"flaky": "ConnectionError: down"}


def test_the_same_command_goes_on_with_a_task_that_was_mended() -> None:
    def run() -> object:
        with workflow("mended", "mended") as flow:
            first >> flaky >> second
            return flow.execute()

    with pytest.raises(ConnectionError):
        run()
    WORLD["down"] = False

    assert run() == "second"
    assert run() == "second"  # finished: nothing runs
    assert LOG == ["first", "flaky", "flaky", "flaky", "flaky", "second"]


def test_code_that_no_checkpoint_can_hold_is_named_when_it_is_missed() -> None:
    lock = threading.Lock()

    @task(id="locked", inject_context=True)
    def locked(context: TaskExecutionContext) -> None:
        with lock:
            context.checkpoint()
        context.next_iteration()

    with workflow("locked") as flow:
        flow.execute(locked, max_steps=1)
    context = ExecutionContext.resume(CheckpointManager.get_latest(flow.session_id))

    with pytest.raises(Exception, match="The code of task 'locked' is not in the checkpoint") as refusal:
        context.execute(max_steps=2)
    assert "Resume from the program that defines it" in str(refusal.value)


def test_metadata_that_json_would_change_is_refused_where_it_is_given() -> None:
    context = ExecutionContext.create(TaskGraph(), "first")
    context.graph.add(first)

    for metadata in ({"when": {1, 2}}, {"key": {1: "a"}}, {"pair": (1, 2)}):
        with pytest.raises(NotStorable, match=r"metadata\['\w+'\]"):
            context.checkpoint(metadata=metadata)
    assert not os.path.exists("checkpoints") or CheckpointManager.list_checkpoints() == []
