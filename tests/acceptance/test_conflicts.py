"""Conflicts, and what generated programs have found: nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from graflow_ckpt import (
    AtLeast,
    EveryN,
    EveryTask,
    TaskExecutionContext,
    Workflow,
    group,
    task,
    workflow,
)
from graflow_ckpt.core.errors import GraphError, WriteConflict
from graflow_ckpt.engine.run import FAIR
from tests.acceptance.places import LONG, Box, Make, Seen, idle


def test_eight_threads_and_two_hundred_increments_lose_none(workflow: Make) -> None:
    tries: Counter[tuple[str, int]] = Counter()
    with workflow("w", max_parallel=8, checkpoint=EveryN(20), session_id="s") as flow:
        flow.get_channel().set("count", 0)

        def increment(context) -> None:
            tries[context.task_id, context.cycle] += 1
            channel = context.get_channel()
            channel.set("count", channel.get("count") + 1)
            if context.cycle < 24:
                context.next_iteration()

        for number in range(8):
            task(id=f"t{number}", inject_context=True)(increment)
        flow.execute()

    assert flow.get_channel().get("count") == 200
    assert flow.execution_context.steps == 200
    assert max(tries.values()) <= FAIR + 1  # who has lost that often runs with nothing beside it


def test_a_value_got_at_an_older_version_is_retried_and_not_lost(workflow: Make) -> None:
    seen = Seen()
    runs: list[int] = []

    with workflow("w", observers=[seen]) as flow:
        flow.get_channel().set("list", [0])

        @task(inject_context=True)
        def slow(context) -> None:
            mine = context.get_channel().get("list")
            runs.append(len(mine))
            assert seen.first("task_ended quick").wait(LONG)
            mine.append("slow")

        @task(inject_context=True)
        def quick(context) -> None:
            assert seen.first("task_started slow").wait(LONG)
            while not runs:
                threading.Event().wait(0.001)
            context.get_channel().get("list").append("quick")

        flow.add(slow, quick)
        flow.execute()

    assert runs == [1, 2]
    assert flow.get_channel().get("list") == [0, "quick", "slow"]


def test_a_conflict_does_not_keep_a_change_in_place_of_a_live_value(workflow: Make) -> None:
    seen = Seen()
    attempts: list[int] = []

    with workflow("w", session_id="s", checkpoint=EveryTask(), observers=[seen]) as flow:
        flow.get_channel().set("count", 0)
        flow.get_channel().set("box", Box())

        @task
        def begin() -> None: ...

        @task(inject_context=True)
        def slow(context) -> None:
            channel = context.get_channel()
            box, count = channel.get("box"), channel.get("count")
            attempts.append(count)
            assert seen.first("task_ended quick").wait(LONG)
            box.items.append("slow")
            channel.set("count", count + 1)

        @task(inject_context=True)
        def quick(context) -> None:
            while not attempts:
                threading.Event().wait(0.001)
            channel = context.get_channel()
            channel.set("count", channel.get("count") + 1)

        begin >> (slow | quick)
        flow.execute()

    assert attempts == [0, 0, 1][: len(attempts)] or attempts[0] == 0
    assert flow.get_channel().get("box").items == ["slow"]
    assert flow.get_channel().get("count") == 2


def test_a_task_that_always_loses_fails_by_name_in_the_end(workflow: Make) -> None:
    attempts = []

    with workflow("w") as flow:
        flow.get_channel().set("count", 0)

        @task(inject_context=True)
        def loser(context) -> None:
            channel = context.get_channel()
            channel.get("count")
            attempts.append(1)
            context.execution_context.get_channel().set("count", len(attempts))  # from beside the attempt
            channel.set("count", -1)

        with pytest.raises(WriteConflict, match="'count' was changed by another task") as lost:
            flow.execute()

    assert lost.value.task == "loser"
    assert len(attempts) == 21


def test_a_blind_set_wins_if_it_is_the_last(workflow: Make) -> None:
    seen = Seen()

    with workflow("w", observers=[seen]) as flow:

        @task(inject_context=True)
        def last(context) -> None:
            context.get_channel().set("x", "last")
            assert seen.first("task_ended first").wait(LONG)

        @task(inject_context=True)
        def first(context) -> None:
            context.get_channel().set("x", "first")

        flow.add(last, first)
        flow.execute()

    assert flow.get_channel().get("x") == "last"


def test_appends_never_conflict(workflow: Make) -> None:
    with workflow("w", max_parallel=8) as flow:

        def add(context) -> None:
            context.get_channel().append("log", (context.task_id, context.cycle))
            if context.cycle < 24:
                context.next_iteration()

        for number in range(8):
            task(id=f"t{number}", inject_context=True)(add)
        flow.execute()

    log = flow.get_channel().get("log")
    assert len(log) == len(set(log)) == 200


# --- what generated programs have found, each as the small workflow that shows it -------


def test_a_branch_that_is_skipped_at_a_join_is_no_visit() -> None:
    with workflow("visits", max_parallel=1) as flow:

        @task
        def start() -> None: ...

        @task(inject_context=True)
        def left(context: Any) -> None:
            if context.cycle == 0:
                context.next_task("away", goto=True)

        @task(inject_context=True)
        def right(context: Any) -> None:
            if context.cycle == 0:
                context.next_task("away", goto=True)

        @task(max_cycles=1)
        def join() -> str:
            return "joined"

        @task(inject_context=True)
        def away(context: Any) -> None:
            if context.cycle == 1:  # both branches have come here
                context.next_task("start")

        start >> left >> join
        start >> right >> join

    flow.execute("start")

    assert flow.execution_context.get_result("join") == "joined"
    assert "join" not in flow.execution_context.cycle_counts


def test_a_predecessor_that_is_skipped_gives_no_result_of_an_earlier_round() -> None:
    seen: list[Any] = []
    with workflow("rounds", max_parallel=1) as flow:

        @task
        def start() -> None: ...

        @task(inject_context=True)
        def chooses(context: Any) -> None:
            if context.cycle == 1:
                context.next_task("end", goto=True)

        @task
        def gives() -> str:
            return "given"

        @task(inject_context=True)
        def end(context: Any, gives: str = "nothing") -> None:
            seen.append(gives)
            if context.cycle == 0:
                context.next_task("start", goto=True)

        start >> chooses >> gives >> end

    flow.execute("start")

    assert seen == ["given", "nothing"]


def test_a_task_that_is_retried_still_reads_what_it_gave_in_an_earlier_round() -> None:
    seen: list[Any] = []
    with workflow("retried", max_parallel=1) as flow:

        @task(inject_context=True, max_retries=1)
        def loop(context: Any, loop: str = "nothing") -> str:
            seen.append(loop)
            if context.attempt == 1:
                raise ValueError("once")
            if context.cycle == 1:
                context.next_task("end", goto=True)
            return "given"

        @task
        def end() -> None: ...

        loop >> end
        loop >> loop

    flow.execute("loop")

    assert seen == ["nothing", "nothing", "given", "given"]


def test_a_group_that_fails_inside_a_group_that_can_do_without_it_is_a_lost_member() -> None:
    with workflow("nested", max_parallel=1) as flow:
        start, after = idle("start", "after")

        @task
        def bad() -> None:
            raise ValueError("no")

        @task
        def good() -> str:
            return "good"

        @task
        def end(good: str) -> str:
            return good

        inner = group(bad, policy=AtLeast(1))
        start >> group(inner >> after, good, policy=AtLeast(1)) >> end

    assert flow.execute("start") == "good"
    assert "after" in flow.execution_context.state.skipped


class Death(BaseException):
    """The process is gone: no task and no engine catches it."""


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_session_that_was_terminated_stays_so_when_its_process_dies(
    tmp_path: Path, durability: Any
) -> None:
    started, terminated = Event(), Event()
    ran: list[str] = []

    def observe(event: Any) -> None:
        if event.kind == "checkpoint_saved" and "ends" in ran:  # its commit is durable either way
            terminated.set()

    def run() -> Workflow:
        with workflow(
            "ends", session_id="s", store=tmp_path, durability=durability, checkpoint=EveryTask(),
            max_parallel=2, observers=(observe,),
        ) as flow:  # fmt: skip

            @task
            def start() -> None: ...

            @task(inject_context=True)
            def ends(context: Any) -> None:
                assert started.wait(20)
                ran.append("ends")
                context.terminate_workflow("enough")

            @task
            def slow() -> None:
                ran.append("slow")
                started.set()
                assert terminated.wait(20)
                raise Death

            @task
            def after() -> None:
                ran.append("after")

            start >> slow >> after
            start >> ends >> after
        flow.execute("start")
        return flow

    with pytest.raises(Death):
        run()
    flow = run()

    assert flow.execution_context.status == "completed"
    assert sorted(ran) == ["ends", "slow"]


# --- going back above a fork ------------------------------------------------------------


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("grouped", [False, True], ids=["edges", "a group"])
@pytest.mark.parametrize(
    "early", [False, True], ids=["the other branch is late", "the other branch is early"]
)
def test_a_join_runs_once_after_a_branch_went_back_above_the_fork(
    rounds: int, grouped: bool, early: bool, workflow: Make
) -> None:
    ran: list[str] = []

    def noting(name: str) -> Any:
        return task(id=name)(lambda: ran.append(name))

    with workflow("back", max_parallel=1) as flow:
        start, beside, join = (noting(name) for name in ("start", "beside", "join"))

        @task(inject_context=True)
        def back(context: TaskExecutionContext) -> None:
            ran.append("back")
            if context.cycle < rounds:
                context.next_task("start", goto=True)

        first, second = (beside, back) if early else (back, beside)
        if grouped:
            start >> (first | second) >> join
        else:
            start >> first >> join
            start >> second >> join
        flow.execute("start")

    assert flow.execution_context.status == "completed"
    assert [ran.count(name) for name in ("start", "back", "beside", "join")] == [rounds + 1] * 3 + [1]
    assert ran[-1] == "join"


def test_data_for_a_join_is_refused_where_it_is_given(workflow: Make) -> None:
    with workflow("data") as flow:

        @task(inject_context=True)
        def start(context: TaskExecutionContext) -> None:
            context.next_task("join", goto=True, data=1)

        left, right = idle("left", "right")

        @task
        def join(number: int = 0) -> int:
            return number

        start >> (left | right)
        left >> join
        right >> join

        with pytest.raises(GraphError, match="takes no data"):
            flow.execute("start")
