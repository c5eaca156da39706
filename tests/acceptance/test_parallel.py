"""Workflows side by side and inside each other."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, Workflow, task, workflow
from graflow_ckpt.testing.drivers import at_once
from tests.acceptance.live import LONG
from tests.acceptance.places import Make


def test_two_workflows_in_two_threads_do_not_see_each_other(workflow: Make) -> None:
    meeting = threading.Barrier(2, timeout=LONG)
    results: dict[str, Any] = {}

    def program(name: str) -> None:
        with workflow(name, session_id=name, checkpoint=EveryTask()) as flow:
            meeting.wait()

            @task(inject_context=True)
            def first(context) -> str:
                context.get_channel().set("who", name)
                meeting.wait()
                return name

            meeting.wait()

            @task(inject_context=True)
            def second(context, first: str) -> list[str]:
                meeting.wait()
                return [first, context.get_channel().get("who"), context.session_id]

            first >> second
            meeting.wait()
            results[name] = flow.execute()

    at_once([partial(program, name) for name in ("one", "two")])

    assert results == {"one": ["one"] * 3, "two": ["two"] * 3}
    for name in results:
        assert {m.session_id for m in CheckpointManager.list_checkpoints(name)} == {name}
        assert CheckpointManager.list_checkpoints(name)[0].steps == 2


def test_one_workflow_object_serves_one_session_after_the_other(workflow: Make) -> None:
    with workflow("w") as flow:

        @task
        def a() -> object:
            return "done"

    first = flow.execution_context.session_id
    assert flow.execute() == "done"
    assert flow.execute() == "done"
    assert flow.execution_context.session_id != first


def build(name: str, inner: Workflow | None = None, fails: bool = False) -> Workflow:
    with workflow(name, session_id=name) as flow:

        @task(id=f"{name}-task")
        def body() -> Any:
            if fails:
                raise OSError("inner")
            return inner.execute() if inner is not None else "inner result"

        flow.add(body)
    return flow


def test_a_workflow_inside_a_task_of_another_is_a_session_of_its_own() -> None:
    inner = build("inner")

    assert build("outer", inner).execute() == "inner result"

    assert CheckpointManager.list_checkpoints("inner")[0].status == "completed"
    assert CheckpointManager.list_checkpoints("outer")[0].status == "completed"


def test_the_failure_of_an_inner_workflow_fails_the_task_that_ran_it() -> None:
    with pytest.raises(OSError, match="inner"):
        build("outer", build("inner", fails=True)).execute()

    assert CheckpointManager.list_checkpoints("outer")[0].status == "failed"


def test_many_members_run_on_few_threads_and_all_of_them_run(workflow: Make) -> None:
    threads = set()

    with workflow("w", max_parallel=3) as flow:
        for number in range(40):
            task(id=f"t{number}")(lambda: threads.add(threading.get_ident()))

        flow.execute()

    assert len(flow.execution_context.completed_tasks) == 40
    assert len(threads) <= 4  # the last one may run in the caller's


def test_priority_decides_who_comes_first(workflow: Make) -> None:
    order: list[str] = []

    with workflow("w", max_parallel=1) as flow:
        for name, priority in (("low", -1), ("plain", 0), ("high", 5)):
            task(id=name, priority=priority)(lambda name=name: order.append(name))

        flow.execute()

    assert order == ["high", "plain", "low"]


def test_threads_of_a_run_end_with_it(workflow: Make) -> None:
    with workflow("w", session_id="ends") as flow:
        for name in "abc":
            task(id=name)(lambda: None)
        flow.execute()

    for thread in threading.enumerate():
        if thread.name.startswith("graflow-ends"):
            thread.join(LONG)
    assert not [t for t in threading.enumerate() if t.name.startswith("graflow-ends")]
