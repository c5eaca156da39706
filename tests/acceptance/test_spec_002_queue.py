"""What the checkpoint/resume design names: the queue as restored, groups, tasks made at run time, errors."""

from __future__ import annotations

import json
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


# --- groups and tasks made at run time ---------------------------------------------------


def test_completed_siblings_of_a_group_are_not_run_again() -> None:
    with workflow("group", max_parallel=1) as flow:
        (first | asks | second) >> urgent

    context = stopped(flow, 2)
    assert context.completed_tasks == {"first", "asks"}
    WorkflowEngine().execute(context)

    assert LOG == ["first", "asks", "second", "urgent"]
    assert context.status == "completed"


def test_a_join_waits_for_what_was_still_to_come_when_the_checkpoint_was_taken() -> None:
    with workflow("join", max_parallel=1, checkpoint=EveryTask()) as flow:
        (first | asks) >> both

    context = stopped(flow, 1)
    result = WorkflowEngine().execute(context)

    assert result == "first and asks"
    assert LOG == ["first", "asks", "both"]


# --- errors -----------------------------------------------------------------------------
