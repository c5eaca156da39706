"""What is said of a session's end, and with which status."""

from __future__ import annotations

import pytest

from graflow_ckpt.fleet.status import Status
from graflow_ckpt.interfaces.cli.waiting import EXITS, closing, counts


def status(how: str = "running", **facts: object) -> Status:
    given: dict[str, object] = {
        "session": "s", "workflow": "w", "status": how, "reason": "", "steps": 7, "completed": 5, "ready": 2,
        "running": 1, "delayed": 3, "failed": 0, "skipped": 0, "created": 1.0, "ended": None, "tokens": 1,
        "checkpoint": None, "max_steps": None, "cap": None, "calls": None, "tasks": None, "queues": (),
        "slices": (), "fleet": True, **facts,
    }  # fmt: skip
    return Status(**given)  # type: ignore[arg-type]


def told(how: str, **facts: object) -> str:
    return closing(status(how, **facts), EXITS.get(how, 124), 2.5)


def test_each_end_says_what_can_be_done_next() -> None:
    assert told("completed") == "completed after 7 steps"
    assert told("failed", reason="E: no", failed=1) == (
        "failed after 7 steps: E: no; look: graflow-ckpt failed list --session s --traceback; "
        "go on: graflow-ckpt resume s"
    )
    assert told("paused", reason="by hand") == "paused after 7 steps: by hand; go on: graflow-ckpt resume s"
    assert told("stopped", reason="max_steps=7 reached") == (
        "max_steps=7 reached after 7 steps; go on with a larger one: graflow-ckpt resume s --max-steps 14"
    )
    assert told("cancelled", reason="enough") == "cancelled after 7 steps: enough"
    assert told("stalled", reason="still waiting: join") == "stalled after 7 steps: still waiting: join"


def test_what_completed_with_failures_says_how_many() -> None:
    assert told("completed", failed=2) == (
        "completed after 7 steps, 2 failed: graflow-ckpt failed list --session s"
    )


def test_who_has_waited_long_enough_is_told_how_far_it_is() -> None:
    assert told("running") == "has not ended after 2.5 s (5 done, 1 running, 5 waiting)"


@pytest.mark.parametrize(
    ("how", "code"),
    [("completed", 0), ("stopped", 0), ("failed", 1), ("cancelled", 1), ("stalled", 1), ("paused", 3)],
)
def test_an_end_has_a_status_for_who_called(how: str, code: int) -> None:
    assert EXITS[how] == code


@pytest.mark.parametrize("how", ["init", "running", "closing", "failing", "frozen"])
def test_what_goes_on_is_no_end(how: str) -> None:
    assert how not in EXITS


def test_failures_are_counted_only_if_there_are_some() -> None:
    assert counts(status()) == "5 done, 1 running, 5 waiting"
    assert counts(status(failed=1)) == "5 done, 1 running, 5 waiting, 1 failed"
