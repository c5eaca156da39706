"""Conflicts, and what generated programs have found: nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryN, EveryTask, TaskExecutionContext, Workflow
from graflow_ckpt.core.errors import GraphError, WriteConflict
from graflow_ckpt.engine.run import FAIR
from tests.acceptance.places import LONG, Box, Make, Seen, idle
from tests.loops import chain, of


def counting(body: Any, make: Make, **settings: Any) -> Workflow:
    """Eight tasks side by side, which come round 25 times each."""

    def turn(context) -> None:
        body(context)
        if context.cycle < 24:
            context.next_iteration()

    return make("w", max_parallel=8, **settings).add(*(of(turn, f"t{number}") for number in range(8)))


def test_eight_threads_and_two_hundred_increments_lose_none(workflow: Make) -> None:
    tries: Counter[tuple[str, int]] = Counter()

    def increment(context) -> None:
        tries[context.task_id, context.cycle] += 1
        channel = context.get_channel()
        channel.set("count", channel.get("count", 0) + 1)

    flow = counting(increment, workflow, checkpoint=EveryN(20), session_id="s")
    flow.execute()

    assert flow.get_channel().get("count") == 200
    assert flow.execution_context.steps == 200
    assert max(tries.values()) <= FAIR + 1  # who has lost that often runs with nothing beside it


def test_appends_never_conflict(workflow: Make) -> None:
    flow = counting(lambda c: c.get_channel().append("log", (c.task_id, c.cycle)), workflow)
    flow.execute()

    log = flow.get_channel().get("log")
    assert len(log) == len(set(log)) == 200


def test_a_value_got_at_an_older_version_is_retried_and_not_lost(workflow: Make) -> None:
    seen = Seen()
    runs: list[int] = []

    def slow(context) -> None:
        mine = context.get_channel().get("list")
        runs.append(len(mine))
        assert seen.first("task_ended quick").wait(LONG)
        mine.append("slow")

    def quick(context) -> None:
        assert seen.first("task_started slow").wait(LONG)
        while not runs:
            threading.Event().wait(0.001)
        context.get_channel().get("list").append("quick")

    flow = workflow("w", observers=[seen]).add(of(slow), of(quick))
    flow.get_channel().set("list", [0])
    flow.execute()

    assert runs == [1, 2]
    assert flow.get_channel().get("list") == [0, "quick", "slow"]


def test_a_conflict_does_not_keep_a_change_in_place_of_a_live_value(workflow: Make) -> None:
    seen = Seen()
    attempts: list[int] = []

    def slow(context) -> None:
        channel = context.get_channel()
        box, count = channel.get("box"), channel.get("count")
        attempts.append(count)
        assert seen.first("task_ended quick").wait(LONG)
        box.items.append("slow")
        channel.set("count", count + 1)

    def quick(context) -> None:
        while not attempts:
            threading.Event().wait(0.001)
        channel = context.get_channel()
        channel.set("count", channel.get("count") + 1)

    (begin,) = idle("begin")
    flow = chain(
        begin, (slow, quick), make=workflow, session_id="s", checkpoint=EveryTask(), observers=[seen]
    )
    flow.get_channel().set("count", 0)
    flow.get_channel().set("box", Box())
    flow.execute()

    assert attempts == [0, 0, 1][: len(attempts)] or attempts[0] == 0
    assert flow.get_channel().get("box").items == ["slow"]
    assert flow.get_channel().get("count") == 2


def test_a_task_that_always_loses_fails_by_name_in_the_end(workflow: Make) -> None:
    attempts = []

    def loser(context) -> None:
        channel = context.get_channel()
        channel.get("count")
        attempts.append(1)
        context.execution_context.get_channel().set("count", len(attempts))  # from beside the attempt
        channel.set("count", -1)

    flow = chain(loser, make=workflow)
    flow.get_channel().set("count", 0)
    with pytest.raises(WriteConflict, match="'count' was changed by another task") as lost:
        flow.execute()

    assert lost.value.task == "loser"
    assert len(attempts) == 21


def losing(body: Any = lambda attempts: None, *, wins: int = 0, **options: Any) -> tuple[list[int], Workflow]:
    """Attempts, and a workflow whose second task changes a live value, and loses a race until it `wins`."""
    attempts: list[int] = []

    def make(context) -> None:
        context.get_channel().set("box", Box())
        context.get_channel().set("count", 0)

    def loser(context) -> list[int]:
        channel = context.get_channel()
        box = channel.get("box")
        channel.get("count")
        attempts.append(context.attempt)
        box.items.append(len(attempts))
        body(attempts)
        context.execution_context.get_channel().set("count", len(attempts))  # from beside the attempt
        if len(attempts) != wins:
            channel.set("count", -1)
        return box.items

    flow = chain(make, loser, session_id="s", checkpoint=EveryTask(), **options)
    return attempts, flow


def test_one_that_goes_back_each_time_fails_by_name_too_and_the_failure_is_the_sessions() -> None:
    attempts, flow = losing(on_failure="rollback")

    with pytest.raises(WriteConflict, match="'count' was changed by another task") as lost:
        flow.execute()

    assert lost.value.task == "loser"
    assert attempts == [1] * 21
    assert flow.execution_context.status == "failed"
    assert CheckpointManager.list_checkpoints("s") == []


def test_a_lost_race_is_no_attempt_and_takes_no_retry() -> None:
    def fails_in_the_third(attempts: list[int]) -> None:
        if len(attempts) == 3:
            raise OSError("flaky")

    attempts, flow = losing(fails_in_the_third, wins=4, max_retries=1)

    assert flow.execute() == [4]
    assert attempts == [1, 1, 1, 2]


def test_a_blind_set_wins_if_it_is_the_last(workflow: Make) -> None:
    seen = Seen()

    def last(context) -> None:
        context.get_channel().set("x", "last")
        assert seen.first("task_ended first").wait(LONG)

    def first(context) -> None:
        context.get_channel().set("x", "first")

    flow = workflow("w", observers=[seen]).add(of(last), of(first))
    flow.execute()

    assert flow.get_channel().get("x") == "last"


# --- what generated programs have found; more of it is in generated.py ---------------------


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

    def ends(context: Any) -> None:
        assert started.wait(20)
        ran.append("ends")
        context.terminate_workflow("enough")

    def slow() -> None:
        ran.append("slow")
        started.set()
        assert terminated.wait(20)
        raise Death

    def after() -> None:
        ran.append("after")

    def flow() -> Workflow:
        return chain(
            *idle("start"), (slow, ends), after, session_id="s", store=tmp_path, durability=durability,
            checkpoint=EveryTask(), max_parallel=2, observers=(observe,),
        )  # fmt: skip

    with pytest.raises(Death):
        flow().execute()
    again = flow()
    again.execute()

    assert again.execution_context.status == "completed"
    assert sorted(ran) == ["ends", "slow"]


def test_data_for_a_join_is_refused_where_it_is_given(workflow: Make) -> None:
    def start(context: TaskExecutionContext) -> None:
        context.next_task("join", goto=True, data=1)

    def join(number: int = 0) -> int:
        return number

    left, right, end = *idle("left", "right"), of(join)
    flow = chain(start, (left, right), make=workflow).add(left >> end, right >> end)
    with pytest.raises(GraphError, match="takes no data"):
        flow.execute("start")
