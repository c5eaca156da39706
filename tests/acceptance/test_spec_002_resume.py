"""What the checkpoint/resume design names: going on from a checkpoint, also by code that only it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, WorkflowEngine
from tests.acceptance.machine import LOG, WORLD, cuts, machine


@pytest.fixture(autouse=True)
def world() -> None:
    LOG.clear()
    WORLD["down"] = False


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
