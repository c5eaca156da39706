"""What the checkpoint/resume design names, phases 1 and 2 of its checklist: three files, and asking for them.

Under the names that it uses, through the public package alone, with sessions in memory. Going on is in
test_spec_002_resume.py, the queue in test_spec_002_queue.py, lists and refusals in test_spec_002_lists.py;
the examples that it prints are run by test_examples.py. Nested workflows and Redis are not here.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import stat
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from graflow_ckpt import CheckpointMetadata, ExecutionContext, TaskExecutionContext, task, workflow
from tests.acceptance.machine import LOG, WORLD, cuts, files_of, machine


@pytest.fixture(autouse=True)
def world() -> None:
    LOG.clear()
    WORLD["down"] = False


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
