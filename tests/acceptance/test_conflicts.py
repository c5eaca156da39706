"""Conflicts: two tasks change one value, and nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from graflow_ckpt import EveryN, EveryTask, task
from graflow_ckpt.core.errors import WriteConflict
from graflow_ckpt.engine.run import FAIR
from tests.acceptance.live import LONG, Box, Seen
from tests.acceptance.places import Make


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
