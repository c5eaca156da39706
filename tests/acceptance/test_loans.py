"""Loans and conflicts: values that tasks share, and the cuts that wait for them."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import pytest

from graflow_ckpt import CheckpointManager, EveryN, EveryTask, task, workflow
from graflow_ckpt.core.errors import WriteConflict
from tests.acceptance.live import LONG, Box, Seen

# --- cuts ------------------------------------------------------------------------------


def test_a_cut_waits_while_a_live_value_is_on_loan_and_nothing_starts_meanwhile() -> None:
    seen = Seen()
    lent = threading.Event()

    with workflow("w", session_id="s", observers=[seen]) as flow:
        flow.get_channel().set("box", Box(1))

        @task(inject_context=True)
        def holder(context) -> None:
            box = context.get_channel().get("box")
            lent.set()
            assert seen.first("task_ended asker").wait(LONG)
            box.items.append(2)

        @task(inject_context=True)
        def asker(context) -> None:
            assert lent.wait(LONG)
            context.checkpoint()

        @task
        def after() -> None: ...

        flow.add(holder)
        asker >> after
        flow.execute()

    assert seen.kinds("task_started", "task_ended", "checkpoint_saved")[2:-1] == [
        "task_ended asker",
        "task_ended holder",
        "checkpoint_saved",
        "task_started after",
        "task_ended after",
    ]
    requested = CheckpointManager.list_checkpoints("s")[-1]
    restored, _ = CheckpointManager.resume_from_checkpoint(requested.path)
    assert restored.get_channel().get("box").items == [1, 2]
    assert restored.task_queue.get_pending_tasks() == ["after"]


def test_what_was_not_claimed_for_a_cut_starts_while_plain_siblings_still_run() -> None:
    seen = Seen()
    lent = threading.Event()

    with workflow("w", session_id="s", observers=[seen]) as flow:
        flow.get_channel().set("box", Box(1))

        @task(inject_context=True)
        def holder(context) -> None:
            context.get_channel().get("box")
            lent.set()
            assert seen.first("task_ended asker").wait(LONG)

        @task(inject_context=True)
        def asker(context) -> None:
            assert lent.wait(LONG)
            context.checkpoint()

        @task
        def after() -> None: ...

        @task
        def plain() -> None:
            assert seen.first("task_ended after").wait(LONG)

        flow.add(holder, plain)
        asker >> after
        flow.execute()

    assert flow.execution_context.completed_tasks == {"holder", "asker", "after", "plain"}


def test_plain_values_are_cut_at_once_and_a_running_sibling_is_pending_in_it() -> None:
    seen = Seen()

    with workflow("w", session_id="s", observers=[seen]) as flow:

        @task(inject_context=True)
        def slow(context) -> str:
            context.get_channel().get("list", default=[]).append(1)
            assert seen.first("checkpoint_saved").wait(LONG)
            return "done"

        @task(inject_context=True)
        def asker(context) -> None:
            context.get_channel().set("list", [0])
            context.checkpoint()

        flow.add(slow, asker)
        flow.execute()

    restored, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.list_checkpoints("s")[-1].path)
    assert restored.task_queue.get_pending_tasks() == ["slow"]
    assert restored.completed_tasks == {"asker"}
    assert restored.get_channel().get("list") == [0]


def test_a_readonly_get_is_no_loan_and_gives_arrays_that_cannot_be_written() -> None:
    seen = Seen()

    with workflow("w", session_id="s", observers=[seen]) as flow:
        flow.get_channel().set("array", numpy.zeros(3))

        @task(inject_context=True)
        def reader(context) -> bool:
            array = context.get_channel().get("array", readonly=True)
            assert seen.first("checkpoint_saved").wait(LONG)
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
            return bool(array.flags.writeable)

        @task(inject_context=True)
        def asker(context) -> None:
            assert seen.first("task_started reader").wait(LONG)
            context.checkpoint()

        flow.add(reader, asker)
        flow.execute()

    assert flow.execution_context.get_result("reader") is False


def test_a_result_that_is_an_array_is_handed_on_read_only() -> None:
    with workflow("w") as flow:

        @task
        def make() -> numpy.ndarray:
            return numpy.zeros(3)

        @task
        def use(make: numpy.ndarray) -> None:
            make[0] = 1

        make >> use
        with pytest.raises(ValueError, match="read-only"):
            flow.execute()


def test_siblings_work_on_one_live_array_and_nothing_is_lost() -> None:
    meeting = threading.Barrier(4, timeout=LONG)

    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:
        flow.get_channel().set("array", numpy.zeros(4))

        def part(number: int) -> Any:
            def fill(context) -> None:
                array = context.get_channel().get("array")
                meeting.wait()
                array[number] = number + 1

            return fill

        for number in range(4):
            task(id=f"part{number}", inject_context=True)(part(number))
        flow.execute()

    assert flow.get_channel().get("array").tolist() == [1, 2, 3, 4]
    newest = CheckpointManager.get_latest("s")
    restored, _ = CheckpointManager.resume_from_checkpoint(newest)
    assert restored.get_channel().get("array").tolist() == [1, 2, 3, 4]


# --- conflicts -------------------------------------------------------------------------


def test_eight_threads_and_two_hundred_increments_lose_none() -> None:
    with workflow("w", max_parallel=8, checkpoint=EveryN(20), session_id="s") as flow:
        flow.get_channel().set("count", 0)

        def increment(context) -> None:
            channel = context.get_channel()
            channel.set("count", channel.get("count") + 1)
            if context.cycle < 24:
                context.next_iteration()

        for number in range(8):
            task(id=f"t{number}", inject_context=True)(increment)
        flow.execute()

    assert flow.get_channel().get("count") == 200
    assert flow.execution_context.steps == 200


def test_a_value_got_at_an_older_version_is_retried_and_not_lost() -> None:
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


def test_a_conflict_does_not_keep_a_change_in_place_of_a_live_value() -> None:
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


def test_a_task_that_always_loses_fails_by_name_in_the_end() -> None:
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


def test_a_blind_set_wins_if_it_is_the_last() -> None:
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


def test_appends_never_conflict() -> None:
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
