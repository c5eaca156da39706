"""Where a session ends: limits, terminate, cancel, and joins that wait for nobody."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from graflow_ckpt import task
from graflow_ckpt.core.errors import MaxCyclesExceeded, Stalled, WorkflowCancelled
from tests.acceptance.live import LONG, idle
from tests.acceptance.places import Make


def test_max_cycles_fails_the_task_by_name(workflow: Make) -> None:
    runs = []

    with workflow("w") as flow:

        @task(inject_context=True, max_cycles=3)
        def loop(context) -> None:
            runs.append(context.cycle)
            context.next_iteration()

        with pytest.raises(MaxCyclesExceeded, match="'loop' was to run for the 4th time; max_cycles=3"):
            flow.execute()

    assert runs == [0, 1, 2]


def test_max_cycles_counts_beside_a_running_sibling_too(workflow: Make) -> None:
    done = threading.Event()

    with workflow("w", observers=[lambda e: e.facts.get("outcome") == "failed" and done.set()]) as flow:

        @task(inject_context=True, max_cycles=1)
        def loop(context) -> None:
            context.next_iteration()

        @task
        def sibling() -> None:
            assert done.wait(LONG)

        flow.add(loop, sibling)
        with pytest.raises(MaxCyclesExceeded):
            flow.execute()

    assert flow.execution_context.completed_tasks == {"loop", "sibling"}


def test_max_steps_stops_and_a_larger_one_goes_on_in_the_same_process(tmp_path: Path, workflow: Make) -> None:
    runs = []

    with workflow("w", store=tmp_path) as flow:

        @task(inject_context=True)
        def loop(context) -> int:
            runs.append(context.cycle)
            if context.cycle < 5:
                context.next_iteration()
            return context.cycle

        assert flow.execute(max_steps=2) == 1
        assert flow.execution_context.status == "stopped"
        assert flow.execute(max_steps=4) == 3
        assert flow.execution_context.status == "stopped"
        assert flow.execute(max_steps=100) == 5

    assert runs == [0, 1, 2, 3, 4, 5]
    assert flow.execution_context.status == "completed"
    assert flow.execution_context.steps == 6


def test_groups_do_not_count_as_steps(tmp_path: Path, workflow: Make) -> None:
    with workflow("w", store=tmp_path) as flow:
        a, b, c = idle("a", "b", "c")
        (a | b) >> c
        flow.execute(max_steps=3)

    assert flow.execution_context.status == "completed"
    assert flow.execution_context.steps == 3


def test_max_steps_holds_while_members_run_in_parallel(tmp_path: Path, workflow: Make) -> None:
    with workflow("w", store=tmp_path) as flow:
        for number in range(5):
            task(id=f"t{number}")(lambda: None)
        flow.execute(max_steps=3)

    assert flow.execution_context.steps == 3
    assert flow.execution_context.status == "stopped"


def test_terminate_finishes_what_runs_and_starts_nothing_more(workflow: Make) -> None:
    ran, ended = [], threading.Event()

    with workflow("w", observers=[lambda e: e.kind == "task_ended" and ended.set()]) as flow:

        @task(inject_context=True)
        def enough(context) -> str:
            context.terminate_workflow("enough")
            return "kept"

        @task
        def sibling() -> None:
            assert ended.wait(LONG)
            ran.append("sibling")

        @task
        def after() -> None:
            ran.append("after")

        enough >> after
        flow.add(sibling)
        flow.execute()

    assert ran == ["sibling"]
    assert flow.execution_context.get_result("enough") == "kept"
    assert flow.execution_context.status == "completed"


def test_cancel_commits_nothing_of_its_task_and_comes_out_as_workflow_cancelled(workflow: Make) -> None:
    with workflow("w") as flow:

        @task(inject_context=True)
        def stop(context) -> None:
            context.get_channel().set("x", 1)
            with suppress(BaseException):  # a body cannot swallow it
                context.cancel_workflow("no more")

        with pytest.raises(WorkflowCancelled, match="no more"):
            flow.execute()

    assert flow.get_channel().keys() == []
    assert flow.execution_context.status == "cancelled"
    assert flow.execution_context.completed_tasks == set()


def test_a_gate_that_nobody_will_fill_is_stalled_not_completed(workflow: Make) -> None:
    with workflow("w") as flow:

        @task(inject_context=True)
        def a(context) -> None:
            if context.cycle == 1:
                context.next_task("end", goto=True)

        b, join, end = idle("b", "join", "end")

        @task(inject_context=True)
        def c(context) -> None:
            context.next_task("a", goto=True)

        a >> b >> join
        a >> c >> join
        a >> end
        with pytest.raises(Stalled, match="join") as stalled:
            flow.execute()

    assert stalled.value.gates == ["join"]
    assert flow.execution_context.status == "stalled"
