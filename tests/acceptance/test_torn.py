"""Torn values: a failed attempt has changed a live object in place."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from graflow_ckpt.core.errors import GraphError, ValueTorn, WorkflowCancelled
from tests.acceptance.live import LONG, Box, Seen, idle
from tests.stretch import stretched


def training(fails: bool, **options: Any) -> tuple[list[Any], Any, list[int]]:
    """Three epochs on a live model; in the second one, after its change, the first attempt fails."""
    attempts = []

    with workflow("w", **options) as flow:
        flow.get_channel().set("model", Box(0))

        @task(inject_context=True, max_retries=2)
        def epoch(context) -> None:
            model = context.get_channel().get("model")
            attempts.append(context.attempt)
            model.items.append(context.cycle)
            if fails and context.cycle == 1 and context.attempt < 3:
                model.items.append("half")
                raise OSError("flaky")
            if context.cycle < 2:
                context.next_iteration()

        flow.execute()
    return flow.get_channel().get("model").items, flow.execution_context, attempts


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_torn_value_takes_the_session_back_to_its_cut_and_the_end_is_the_same(durability: str) -> None:
    seen = Seen()

    quiet, _, _ = training(False, session_id="quiet", checkpoint=EveryTask(), durability=durability)
    torn, context, attempts = training(
        True, session_id="torn", checkpoint=EveryTask(), durability=durability, observers=[seen]
    )

    assert torn == quiet == [0, 0, 1, 2]
    assert attempts == [1, 1, 2, 3, 1]
    assert context.steps == 3
    assert seen.kinds("session_went_back") == ["session_went_back epoch"] * 2


def test_going_back_gives_fresh_objects_and_takes_siblings_back_too() -> None:
    meeting = threading.Barrier(2, timeout=LONG)
    boxes: list[Any] = []

    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:

        @task(inject_context=True)
        def make(context) -> None:
            context.get_channel().set("box", Box())

        @task(inject_context=True, max_retries=1)
        def tears(context) -> None:
            box = context.get_channel().get("box")
            boxes.append(box)
            if context.attempt == 1:
                meeting.wait()
                box.items.append("half")
                raise OSError
            box.items.append("whole")

        @task(inject_context=True)
        def sibling(context) -> None:
            if not boxes or len(boxes) < 2:
                meeting.wait()
            context.get_channel().append("log", "sibling")

        make >> (tears | sibling)
        flow.execute()

    assert boxes[0] is not boxes[1]
    assert flow.get_channel().get("box").items == ["whole"]
    assert flow.get_channel().get("log") == ["sibling"]


def test_a_torn_value_without_a_cut_stops_the_session_by_name() -> None:
    with workflow("w") as flow:
        flow.get_channel().set("box", Box())

        @task(inject_context=True, max_retries=1)
        def tears(context) -> None:
            context.get_channel().get("box").items.append("half")
            raise OSError("flaky")

        with pytest.raises(
            ValueTorn, match=r"'tears' failed .* 'box' in place, and there is no checkpoint"
        ) as torn:
            flow.execute()

    assert isinstance(torn.value.__cause__, OSError)
    assert torn.value.name == "box"


def test_a_failed_attempt_that_changed_nothing_is_retried_without_going_back() -> None:
    seen = Seen()
    boxes = []

    with workflow("w", session_id="s", checkpoint=EveryTask(), observers=[seen]) as flow:
        flow.get_channel().set("box", Box(1))

        @task(inject_context=True, max_retries=1)
        def flaky(context) -> None:
            boxes.append(context.get_channel().get("box"))
            if context.attempt == 1:
                raise OSError

        flow.execute()

    assert boxes[0] is boxes[1]
    assert seen.kinds("session_went_back") == []


LAST = [("fails", OSError), ("cancels", WorkflowCancelled), ("is refused", GraphError)]


def test_after_the_last_retry_the_cut_before_stands(tmp_path: Path) -> None:
    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:

        @task(inject_context=True)
        def make(context) -> None:
            context.get_channel().set("box", Box(1))

        @task(inject_context=True, max_retries=1)
        def tears(context) -> None:
            context.get_channel().get("box").items.append(context.attempt)
            raise OSError(context.attempt)

        make >> tears
        with pytest.raises(OSError, match="2") as failed:
            flow.execute()

    assert "graflow-ckpt resume s" in failed.value.__notes__[0]
    restored, metadata = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s"))
    assert metadata.steps == 1
    assert restored.get_channel().get("box").items == [1]


@pytest.mark.parametrize(("how", "error"), LAST)
def test_no_cut_photographs_what_a_last_attempt_may_have_changed(
    how: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    with workflow("w", session_id="s", checkpoint=EveryTask(), max_parallel=1) as flow:

        @task(inject_context=True)
        def make(context) -> None:
            context.get_channel().set("box", Box(1))

        @task(inject_context=True)
        def tears(context) -> None:
            context.get_channel().get("box").items.append("half")
            if how == "cancels":
                context.cancel_workflow("no more")
            if how == "fails":
                raise OSError("no more")
            context.next_task("left", goto=True)  # refused: `join` does not wait for this task

        left, right, join = idle("left", "right", "join")
        make >> tears
        make >> (left | right) >> join
        with pytest.raises(error):
            flow.execute()

    restored, metadata = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s"))
    assert metadata.steps == 1
    assert restored.get_channel().get("box").items == [1]
    assert "box may have been changed" in caplog.text


def test_a_thread_past_its_deadline_keeps_only_what_the_session_has_let_go_of() -> None:
    release, done = threading.Event(), threading.Event()
    boxes = []

    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:
        flow.get_channel().set("box", Box(1))

        @task(inject_context=True, timeout=stretched(0.1), max_retries=1)
        def slow(context) -> None:
            box = context.get_channel().get("box")
            boxes.append(box)
            if context.attempt == 1:
                release.wait(LONG)
                box.items.append("late")
                done.set()
            else:
                release.set()
                assert done.wait(LONG)

        flow.execute()

    assert boxes[0] is not boxes[1]
    assert boxes[0].items == [1, "late"]
    assert flow.get_channel().get("box").items == [1]


def test_a_thread_past_its_deadline_that_shares_with_a_sibling_takes_the_session_back() -> None:
    lent, release, done = threading.Event(), threading.Event(), threading.Event()
    boxes: list[Any] = []

    seen = Seen()

    with workflow("w", session_id="s", checkpoint=EveryTask(), observers=[seen]) as flow:

        @task(inject_context=True)
        def make(context) -> None:
            context.get_channel().set("box", Box())

        @task(inject_context=True, timeout=stretched(0.3), max_retries=1)
        def slow(context) -> None:
            box = context.get_channel().get("box")
            boxes.append(box)
            lent.set()
            if len(boxes) == 1:
                release.wait(LONG)
                box.items.append("late")
                done.set()
            else:
                assert seen.first("task_ended sibling").wait(LONG)

        @task(inject_context=True)
        def sibling(context) -> None:
            assert lent.wait(LONG)
            box = context.get_channel().get("box")
            while len(boxes) < 2:
                threading.Event().wait(0.001)
            box.items.append("sibling")

        @task(inject_context=True)
        def last(context) -> list[Any]:
            release.set()
            assert done.wait(LONG)
            return list(context.get_channel().get("box").items)

        make >> (slow | sibling) >> last
        assert flow.execute() == ["sibling"]
