"""What the events of a session add up to."""

from __future__ import annotations

from typing import Any

from graflow_ckpt.core.events import Event, Kind
from graflow_ckpt.interfaces.cli.progress import Tally

START = {"workflow": "w", "store": "checkpoints", "pending": 1, "path": None}


def event(kind: Kind, at: int, task: str = "", **facts: Any) -> Event:
    return Event(kind, "s", 0.0, at, task, facts)


def tallied(*events: Event) -> Tally:
    tally = Tally(event("session_started", 0, **START))
    for one in events:
        tally.add(one)
    return tally


def test_what_runs_is_not_pending() -> None:
    tally = tallied(
        event("task_started", 0, "a"),
        event("task_ended", 1, "a", outcome="done", pending=5),
        event("task_started", 1, "b"),
        event("task_started", 1, "b"),
        event("task_started", 1, "c"),
    )

    assert tally.running == {"b": 2, "c": 1}
    assert tally.counts.startswith("1 done, 3 running, 2 pending, ")


def test_a_bar_goes_when_it_is_full() -> None:
    tally = tallied(
        event("task_started", 0, "a"),
        event("task_progress", 0, "a", done=3, total=10),
        event("task_ended", 1, "a", outcome="done", pending=1),
    )
    assert tally.bars == {"a": (3, 10)}, "a loop comes round"

    tally.add(event("task_started", 1, "a"))
    tally.add(event("task_progress", 1, "a", done=10, total=10))
    tally.add(event("task_ended", 2, "a", outcome="done", pending=0))

    assert tally.bars == {}
    assert tally.running == {}


def test_a_bar_without_a_total_goes_with_its_task() -> None:
    tally = tallied(
        event("task_started", 0, "a"),
        event("task_progress", 0, "a", done=3, total=None),
        event("task_ended", 1, "a", outcome="done", pending=1),
    )

    assert tally.bars == {}


def test_saves_and_failed_saves_are_counted() -> None:
    tally = tallied(
        event("checkpoint_saved", 3, path="p1", cause="policy"),
        event("checkpoint_saved", 6, path="p2", cause="policy"),
        event("checkpoint_failed", 9, error="full", cause="policy"),
    )

    assert (tally.saved, tally.failed_saves, tally.saved_step, tally.saved_path) == (2, 1, 6, "p2")
    assert tally.saved_at is not None


def test_a_session_that_goes_back_has_nothing_running() -> None:
    tally = tallied(
        event("task_started", 4, "a"),
        event("session_went_back", 4, "a", step=2, path="p"),
        event("session_started", 2, **{**START, "pending": 3}),
    )

    assert (tally.step, tally.pending, tally.running) == (2, 3, {})
    assert tally.rate >= 0


def test_the_end_is_what_the_document_says() -> None:
    tally = tallied(event("session_ended", 4, status="stopped", reason="max_steps=4 reached"))

    assert tally.document() | {"seconds": 0} == {
        "session": "s", "workflow": "w", "status": "stopped", "steps": 4, "pending": 1, "checkpoints": 0,
        "last_checkpoint": None, "seconds": 0,
    }  # fmt: skip
