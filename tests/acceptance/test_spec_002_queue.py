"""The rest of the checkpoint/resume design's checklist, with sessions in memory: what is restored to the
queue, groups, tasks made at run time, errors, lists of checkpoints, and what is refused."""

from __future__ import annotations

import json
import os
import threading
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
from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    NotStorable,
    SchemaUnsupported,
    SessionError,
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

    for backend in ({"queue_backend": "redis"}, {"channel_backend": "redis"}):
        with pytest.raises(SessionError, match="redis"):
            ExecutionContext.create(graph, "first", **backend)
    context = ExecutionContext.create(graph, "first")
    for path in ("redis://session_1", "s3://bucket/session_1.pkl"):
        with pytest.raises(ValueError, match=path.partition(":")[0]):
            CheckpointManager.resume_from_checkpoint(path)
        with pytest.raises(ValueError, match=path.partition(":")[0]):
            context.checkpoint(path)
    assert os.listdir() == []


def test_a_url_of_a_local_file_is_its_path() -> None:
    context = ExecutionContext.create(TaskGraph(), "first")
    context.graph.add(first)

    context.checkpoint(f"file://{os.getcwd()}/mine.pkl")

    assert os.path.exists("mine.pkl")
    assert ExecutionContext.load(f"file://{os.getcwd()}/mine.pkl").session_id == context.session_id
