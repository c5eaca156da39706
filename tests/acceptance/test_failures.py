"""Failures: what a failed task does to its group, its siblings and its session, and how a group goes on."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from graflow_ckpt import AtLeast, BestEffort, group, task, workflow
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.core.errors import GroupFailed, ValueTorn
from graflow_ckpt.engine.settings import Durability
from tests.acceptance.live import LONG, Box, idle
from tests.acceptance.places import Make


@task
def good() -> int:
    return 1


@task
def bad() -> int:
    raise OSError


@task
def after(parts: dict[str, int]) -> dict[str, int]:
    return parts


def test_a_failed_member_of_a_best_effort_group_does_not_stop_it(workflow: Make) -> None:
    with workflow("w") as flow:
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
            return context.get_channel().get("model").items[0]

        group(good | bad, policy=BestEffort(), name="parts") >> after
        assert flow.execute() == {"good": 1}


def test_a_member_that_left_a_live_value_changed_stops_a_best_effort_group_by_name() -> None:
    with workflow("w") as flow:
        flow.get_channel().set("model", Box(1))

        @task(inject_context=True)
        def bad(context) -> int:
            context.get_channel().get("model").items = [2]
            raise OSError("disk")

        group(good | bad, policy=BestEffort())
        with pytest.raises(ValueTorn, match=r"'bad' failed.*'model'") as torn:
            flow.execute()

    assert isinstance(torn.value.__cause__, OSError)


def test_a_group_of_which_too_few_succeed_fails_by_name(workflow: Make) -> None:
    with workflow("w") as flow:
        worse = task(id="worse")(lambda: 1 / 0)
        group(good | bad | worse, policy=AtLeast(2), name="parts") >> after
        with pytest.raises(GroupFailed, match="parts"):
            flow.execute()

    assert "after" not in flow.execution_context.completed_tasks


def test_on_failure_continue_runs_what_does_not_depend_on_the_failed_task(workflow: Make) -> None:
    with workflow("w", on_failure="continue") as flow:
        _, never = idle("other", "never")
        bad >> never
        flow.execute()

    context = flow.execution_context
    assert context.completed_tasks == {"other"}
    assert set(context.state.skipped) == {"never"}
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


# --- a group that failed its session ----------------------------------------------------


MEMBERS = ("start", "plain", "head", "tail", "left", "right")
RAN: list[str] = []
BROKEN: set[str] = set()


def noted(name: str) -> str:
    RAN.append(name)
    if name in BROKEN:
        raise RuntimeError(name)
    return name


def run_group(workflow: Make, broken: set[str], durability: Durability = "checkpoint") -> object:
    """Two of three members have to succeed; one of them is a chain, one a group of its own."""
    RAN.clear()
    BROKEN.clear()
    BROKEN.update(broken)

    with workflow("w", session_id="s", durability=durability, max_parallel=1) as flow:
        start, plain, head, tail, left, right, after = (
            task(id=name)(partial(noted, name)) for name in (*MEMBERS, "after")
        )
        inner = group(left, right, policy=AtLeast(2))
        start >> group(plain, head >> tail, inner, policy=AtLeast(2)) >> after
        return flow.execute("start")


@pytest.mark.parametrize(
    ("broken", "again"),
    [
        ({"head", "left"}, ["head", "left", "tail", "after"]),
        ({"plain", "tail"}, ["plain", "tail", "after"]),
        ({"plain", "head", "left", "right"}, ["plain", "head", "left", "right", "tail", "after"]),
    ],
)
def test_its_lost_members_run_again_and_no_other(workflow: Make, broken: set[str], again: list[str]) -> None:
    with pytest.raises(GroupFailed):
        run_group(workflow, broken)

    assert run_group(workflow, set()) == "after"

    assert sorted(RAN) == sorted(again)
    assert RAN[-1] == "after"


def test_it_fails_again_as_long_as_too_few_are_mended(workflow: Make) -> None:
    with pytest.raises(GroupFailed):
        run_group(workflow, {"plain", "head", "left"})
    with pytest.raises(GroupFailed):
        run_group(workflow, {"plain", "head"})

    assert run_group(workflow, {"head"}) == "after"


def test_a_journal_has_it_too() -> None:
    with pytest.raises(GroupFailed):
        run_group(in_memory, {"head", "left"}, "journal")

    assert run_group(in_memory, set(), "journal") == "after"

    assert sorted(RAN) == ["after", "head", "left", "tail"]
