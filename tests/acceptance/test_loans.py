"""Loans: live values that tasks share, and the cuts that wait for them."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from tests.acceptance.places import LONG, Box, Seen

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

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


def test_a_cut_is_taken_when_its_last_borrower_loses_a_race() -> None:
    seen = Seen()
    lent = threading.Event()
    attempts: list[int] = []

    with workflow("w", session_id="s", observers=[seen]) as flow:
        flow.get_channel().set("box", Box(1))
        flow.get_channel().set("count", 0)

        @task(inject_context=True, max_retries=1)
        def borrower(context) -> None:
            channel = context.get_channel()
            channel.get("box")
            count = channel.get("count")
            attempts.append(count)
            lent.set()
            assert seen.first("task_ended asker").wait(LONG)
            channel.set("count", count + 1)

        @task(inject_context=True)
        def asker(context) -> None:
            assert lent.wait(LONG)
            context.get_channel().set("count", 10)
            context.checkpoint()

        @task
        def plain() -> bool:
            return seen.first("task_ended borrower").wait(LONG)

        flow.add(borrower, asker, plain)
        flow.execute()

    assert attempts == [0, 10]
    assert seen.kinds("task_started", "task_ended", "checkpoint_saved")[3:-1] == [
        "task_ended asker",
        "checkpoint_saved",
        "task_started borrower",
        "task_ended borrower",
        "task_ended plain",
    ]
