"""When checkpoints are taken, wherever a session lives: by policy, by request, and what is kept of them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest

from graflow_ckpt import (
    CheckpointManager,
    EveryN,
    EverySeconds,
    EveryTask,
    KeepLast,
    OnRequest,
    PendingCheckpoint,
    WhenIdle,
    Workflow,
    task,
)
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.core.policy import Policy
from tests.acceptance.places import Box, Make, Seen, idle
from tests.loops import LONG, chain, cuts, loop, of

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (OnRequest(), []),
        (EveryN(3), [3, 6]),
        (EveryTask(), [1, 2, 3, 4, 5, 6, 7]),
        (EveryN(3) | EveryN(7), [3, 6]),
        (EveryN(2) | EveryN(5), [2, 4, 6]),
        (EverySeconds(60), []),
    ],
    ids=str,
)
def test_a_policy_cuts_when_it_is_due(workflow: Make, policy: Policy, expected: list[int]) -> None:
    loop(7, make=workflow, checkpoint=policy).execute()

    assert cuts() == expected


def test_cuts_made_by_a_policy_say_so(workflow: Make) -> None:
    loop(2, make=workflow, checkpoint=EveryTask()).execute()

    made = [m for m in CheckpointManager.list_checkpoints("s") if m.cause == "policy"]
    assert [m.user_metadata for m in made] == [{"auto": True}] * 2


def test_a_request_counts_as_the_cut_of_its_step(workflow: Make) -> None:
    flow = loop(
        5, lambda context: context.cycle == 1 and context.checkpoint(), make=workflow, checkpoint=EveryN(3)
    )
    flow.execute()

    assert (cuts("request"), cuts()) == ([2], [5])


def test_every_seconds_cuts_while_a_task_runs(workflow: Make) -> None:
    seen = Seen()
    (quick,) = idle("quick")

    def slow(quick: None) -> bool:
        return seen.first("checkpoint_saved").wait(LONG)

    policy = EverySeconds(0.05)
    flow = chain(
        quick, slow, make=workflow, session_id="s", checkpoint=policy, observers=[seen], timeout=LONG
    )

    assert flow.execute() is True
    assert cuts()[:1] == [1]


def test_when_idle_cuts_when_a_wave_is_through(workflow: Make) -> None:
    meeting = threading.Barrier(2, timeout=LONG)
    a, d = idle("a", "d")

    def b() -> int:
        return meeting.wait()

    def c() -> int:
        return meeting.wait()

    chain(a, (b, c), d, make=workflow, session_id="s", checkpoint=WhenIdle()).execute()

    assert cuts() == [1, 3, 4]


def test_durability_none_writes_what_is_asked_for_and_nothing_else_also_not_of_a_failure(
    workflow: Make,
) -> None:
    def ask_and_fail(context: Any) -> None:
        if context.cycle == 1:
            context.checkpoint()
        if context.cycle == 2:
            raise OSError("x")

    with pytest.raises(OSError, match="x"):
        loop(3, ask_and_fail, make=workflow, checkpoint=EveryTask(), durability="none").execute()

    assert [m.cause for m in CheckpointManager.list_checkpoints("s")] == ["request"]


def test_the_newest_ten_cuts_are_kept_and_all_that_were_asked_for(workflow: Make) -> None:
    def ask(context: Any) -> None:
        if context.cycle < 3:
            context.checkpoint()

    loop(20, ask, make=workflow, checkpoint=EveryTask()).execute()

    assert cuts("request") == [1, 2, 3]
    assert cuts()[-9:] == list(range(12, 21))
    assert len(cuts() + cuts("end")) == 10


def test_keep_last_says_how_many(workflow: Make) -> None:
    loop(6, make=workflow, checkpoint=EveryTask(), keep=KeepLast(2)).execute()

    assert cuts()[-1] == 6
    assert len(cuts() + cuts("end")) == 2


# --- requests ---------------------------------------------------------------------------


def test_a_pending_checkpoint_is_done_when_its_task_has_completed(workflow: Make) -> None:
    handles: list[PendingCheckpoint] = []
    before: list[Any] = []

    def a(context: Any) -> None:
        handle = context.checkpoint({"epoch": 1})
        handles.append(handle)
        before.append((handle.done(), handle.error, Path(handle.path).exists(), repr(handle)))

    def b() -> bool:
        return handles[0].done()

    assert chain(a, b, make=workflow, session_id="s").execute() is True

    path, metadata = handles[0]
    assert before == [(False, None, False, f"PendingCheckpoint({path!r}, pending)")]
    assert (path, metadata) == (handles[0].path, handles[0].metadata)
    assert "saved" in repr(handles[0])
    found = CheckpointManager.verify(path)
    assert (found.user_metadata["epoch"], found.user_metadata["task_id"], found.steps) == (1, "a", 1)
    assert found.checkpoint_id == metadata.checkpoint_id


def test_requests_are_numbered_in_the_order_of_their_commits(workflow: Make) -> None:
    """Not in that in which they were asked for: the first that asks is the last to complete."""
    asked, seen = threading.Event(), Seen()

    def slow(context: Any) -> None:
        context.checkpoint()
        asked.set()
        assert seen.first("checkpoint_saved").wait(LONG)

    def quick(context: Any) -> None:
        assert asked.wait(LONG)
        context.checkpoint()

    workflow("w", session_id="s", observers=[seen]).add(of(slow), of(quick)).execute()

    found = [m for m in reversed(CheckpointManager.list_checkpoints("s")) if m.cause == "request"]
    assert [(m.user_metadata["task_id"], m.steps) for m in found] == [("quick", 1), ("slow", 2)]
    assert found[0].sequence < found[1].sequence
    assert found[1].parent == found[0].checkpoint_id


def test_a_second_request_of_one_attempt_replaces_the_metadata_of_the_first(
    workflow: Make, caplog: pytest.LogCaptureFixture
) -> None:
    handles = []

    def ask(context: Any) -> None:
        handles.append(context.checkpoint({"part": 1}))
        handles.append(context.checkpoint({"part": 2}))

    loop(1, ask, make=workflow).execute()

    assert handles[0].path == handles[1].path
    assert cuts("request") == [1]
    assert CheckpointManager.verify(handles[0].path).user_metadata["part"] == 2
    assert handles[0].metadata.user_metadata["part"] == 2
    assert sum("asked for a checkpoint twice" in record.message for record in caplog.records) == 1


def test_a_request_from_a_child_process_is_honoured(workflow: Make) -> None:
    def apart(context: Any) -> str:
        path, _ = context.checkpoint({"where": "apart"})
        return str(path)

    path = chain(apart, make=workflow, session_id="s", isolation="process").execute()

    assert CheckpointManager.verify(path).user_metadata["where"] == "apart"


def test_a_failed_task_gets_no_checkpoint(workflow: Make) -> None:
    handles = []

    def a(context: Any) -> None:
        handles.append(context.checkpoint())
        raise OSError("x")

    flow = chain(a, make=workflow, session_id="s")
    with pytest.raises(OSError, match="x"):
        flow.execute()

    assert not handles[0].done()
    assert cuts("request") == []
    assert flow.execution_context.completed_tasks == set()


def test_a_session_knows_its_last_checkpoint(workflow: Make) -> None:
    flow = loop(2, lambda context: context.checkpoint({"stage": "x"}), make=workflow)
    flow.execute()
    context = flow.execution_context

    known = context.checkpoint_metadata
    asked = next(m for m in CheckpointManager.list_checkpoints("s") if (m.cause, m.steps) == ("request", 2))
    assert {
        "session_id": "s",
        "start_node": "turn",
        "steps": 2,
        "completed_tasks": 1,
    }.items() <= known.items()
    assert known["backend"] == asked.backend
    assert {"stage": "x", "task_id": "turn", "cycle_count": 1}.items() <= asked.user_metadata.items()
    assert 0 <= time.time() - known["created_at"] < 60
    assert context.last_checkpoint_path == CheckpointManager.get_latest("s")
    assert 0 <= asked.user_metadata["elapsed_time"] < 60


def test_a_store_that_cannot_be_written_is_told_of_before_the_first_task(workflow: Make) -> None:
    Path("blocked").touch()
    ran: list[int] = []

    with pytest.raises(Exception, match="blocked"):
        loop(
            1, lambda context: ran.append(1), make=workflow, checkpoint=EveryTask(), store="blocked"
        ).execute()

    assert ran == []


# --- cuts ------------------------------------------------------------------------------


class Lending:
    """A live value on loan to `holder`, which ends after `asker`, which asks for a checkpoint meanwhile."""

    def __init__(self) -> None:
        self.seen, self.lent = Seen(), threading.Event()

    def run(self, *beside: Any) -> Workflow:
        def holder(context) -> None:
            box = context.get_channel().get("box")
            self.lent.set()
            assert self.seen.first("task_ended asker").wait(LONG)
            box.items.append(2)

        def asker(context) -> None:
            assert self.lent.wait(LONG)
            context.checkpoint()

        flow = in_memory("w", session_id="s", observers=[self.seen]).add(of(holder), *map(of, beside))
        flow.add(of(asker) >> idle("after")[0])
        flow.get_channel().set("box", Box(1))
        flow.execute()
        return flow


def test_a_cut_waits_while_a_live_value_is_on_loan_and_nothing_starts_meanwhile() -> None:
    lending = Lending()

    lending.run()

    assert lending.seen.kinds("task_started", "task_ended", "checkpoint_saved")[2:-1] == [
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
    lending = Lending()

    def plain() -> None:
        assert lending.seen.first("task_ended after").wait(LONG)

    assert lending.run(plain).execution_context.completed_tasks == {"holder", "asker", "after", "plain"}


def test_plain_values_are_cut_at_once_and_a_running_sibling_is_pending_in_it() -> None:
    seen = Seen()

    def slow(context) -> str:
        context.get_channel().get("list", default=[]).append(1)
        assert seen.first("checkpoint_saved").wait(LONG)
        return "done"

    def asker(context) -> None:
        context.get_channel().set("list", [0])
        context.checkpoint()

    in_memory("w", session_id="s", observers=[seen]).add(of(slow), of(asker)).execute()

    restored, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.list_checkpoints("s")[-1].path)
    assert restored.task_queue.get_pending_tasks() == ["slow"]
    assert restored.completed_tasks == {"asker"}
    assert restored.get_channel().get("list") == [0]


def test_a_readonly_get_is_no_loan_and_gives_arrays_that_cannot_be_written() -> None:
    seen = Seen()

    def reader(context) -> bool:
        array = context.get_channel().get("array", readonly=True)
        assert seen.first("checkpoint_saved").wait(LONG)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        return bool(array.flags.writeable)

    def asker(context) -> None:
        assert seen.first("task_started reader").wait(LONG)
        context.checkpoint()

    flow = in_memory("w", session_id="s", observers=[seen]).add(of(reader), of(asker))
    flow.get_channel().set("array", numpy.zeros(3))
    flow.execute()

    assert flow.execution_context.get_result("reader") is False


def test_a_result_that_is_an_array_is_handed_on_read_only() -> None:
    def use(make: numpy.ndarray) -> None:
        make[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        chain(task(id="make")(lambda: numpy.zeros(3)), use).execute()


def test_siblings_work_on_one_live_array_and_nothing_is_lost() -> None:
    meeting = threading.Barrier(4, timeout=LONG)

    def part(context) -> None:
        array, number = context.get_channel().get("array"), int(context.task_id)
        meeting.wait()
        array[number] = number + 1

    flow = in_memory("w", session_id="s", checkpoint=EveryTask()).add(*(of(part, name) for name in "0123"))
    flow.get_channel().set("array", numpy.zeros(4))
    flow.execute()

    assert flow.get_channel().get("array").tolist() == [1, 2, 3, 4]
    newest = CheckpointManager.get_latest("s")
    restored, _ = CheckpointManager.resume_from_checkpoint(newest)
    assert restored.get_channel().get("array").tolist() == [1, 2, 3, 4]


def test_a_cut_is_taken_when_its_last_borrower_loses_a_race() -> None:
    seen = Seen()
    lent = threading.Event()
    attempts: list[int] = []

    def borrower(context) -> None:
        channel = context.get_channel()
        channel.get("box")
        count = channel.get("count")
        attempts.append(count)
        lent.set()
        assert seen.first("task_ended asker").wait(LONG)
        channel.set("count", count + 1)

    def asker(context) -> None:
        assert lent.wait(LONG)
        context.get_channel().set("count", 10)
        context.checkpoint()

    def plain() -> bool:
        return seen.first("task_ended borrower").wait(LONG)

    flow = in_memory("w", session_id="s", observers=[seen])
    flow.add(of(borrower, max_retries=1), of(asker), of(plain))
    flow.get_channel().set("box", Box(1))
    flow.get_channel().set("count", 0)
    flow.execute()

    assert attempts == [0, 10]
    assert seen.kinds("task_started", "task_ended", "checkpoint_saved")[3:-1] == [
        "task_ended asker",
        "checkpoint_saved",
        "task_started borrower",
        "task_ended borrower",
        "task_ended plain",
    ]
