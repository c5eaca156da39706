"""Failures: what a failed task does to its group, its siblings and its session."""

from __future__ import annotations

import threading

import pytest

from graflow_ckpt import AtLeast, BestEffort, group, task, workflow
from graflow_ckpt.core.errors import GroupFailed, ValueTorn
from tests.acceptance.places import Make

LONG = 20.0  # seconds: only a hang takes so long


def test_a_failed_member_of_a_best_effort_group_does_not_stop_it(workflow: Make) -> None:
    with workflow("w") as flow:

        @task
        def good() -> int:
            return 1

        @task
        def bad() -> int:
            raise OSError

        @task
        def after(parts: dict[str, int]) -> dict[str, int]:
            return parts

        group(good | bad, policy=BestEffort(), name="parts") >> after
        assert flow.execute() == {"good": 1}

    assert flow.execution_context.completed_tasks == {"good", "after"}


def test_a_member_that_only_read_a_live_value_does_not_stop_a_best_effort_group(workflow: Make) -> None:
    with workflow("w") as flow:
        flow.get_channel().set("model", Box(1))

        @task(inject_context=True)
        def bad(context) -> int:
            context.get_channel().get("model")
            raise OSError

        @task(inject_context=True)
        def good(context) -> int:
            return context.get_channel().get("model").value

        @task
        def after(parts: dict[str, int]) -> dict[str, int]:
            return parts

        group(good | bad, policy=BestEffort(), name="parts") >> after
        assert flow.execute() == {"good": 1}


def test_a_member_that_left_a_live_value_changed_stops_a_best_effort_group_by_name() -> None:
    with workflow("w") as flow:
        flow.get_channel().set("model", Box(1))

        @task(inject_context=True)
        def bad(context) -> int:
            context.get_channel().get("model").value = 2
            raise OSError("disk")

        @task
        def good() -> int:
            return 1

        group(good | bad, policy=BestEffort())
        with pytest.raises(ValueTorn, match=r"'bad' failed.*'model'") as torn:
            flow.execute()

    assert isinstance(torn.value.__cause__, OSError)


class Box:
    """A live value."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_a_group_of_which_too_few_succeed_fails_by_name(workflow: Make) -> None:
    with workflow("w") as flow:

        @task
        def good() -> int:
            return 1

        @task
        def bad() -> int:
            raise OSError

        @task
        def worse() -> int:
            raise OSError

        @task
        def after() -> None: ...

        group(good | bad | worse, policy=AtLeast(2), name="parts") >> after
        with pytest.raises(GroupFailed, match="parts"):
            flow.execute()

    assert "after" not in flow.execution_context.completed_tasks


def test_on_failure_continue_runs_what_does_not_depend_on_the_failed_task(workflow: Make) -> None:
    with workflow("w", on_failure="continue") as flow:

        @task
        def bad() -> int:
            raise OSError

        @task
        def after() -> None: ...

        @task
        def other() -> int:
            return 2

        bad >> after
        flow.add(other)
        flow.execute()

    context = flow.execution_context
    assert context.completed_tasks == {"other"}
    assert set(context.state.skipped) == {"after"}
    assert context.status == "completed"


def test_on_failure_pause_lets_siblings_finish_and_starts_nothing_more(workflow: Make) -> None:
    failed, ran = threading.Event(), []

    with workflow("w", observers=[lambda e: e.kind == "task_ended" and failed.set()]) as flow:

        @task
        def bad() -> int:
            raise OSError("x")

        @task
        def slow() -> int:
            assert failed.wait(LONG)
            return 1

        @task
        def after(slow: int) -> None:
            ran.append("after")

        flow.add(bad)
        slow >> after
        with pytest.raises(OSError, match="x"):
            flow.execute()

    assert flow.execution_context.completed_tasks == {"slow"}
    assert ran == []


def test_the_first_failure_is_the_one_that_comes_out(workflow: Make) -> None:
    failed = threading.Event()

    with workflow("w", observers=[lambda e: e.kind == "task_ended" and failed.set()]) as flow:

        @task
        def first() -> None:
            raise OSError("first")

        @task
        def second() -> None:
            assert failed.wait(LONG)
            raise LookupError("second")

        flow.add(first, second)
        with pytest.raises(OSError, match="first"):
            flow.execute()
