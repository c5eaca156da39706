"""What observers and the log are told, and when."""

from __future__ import annotations

import logging

import pytest

from graflow_ckpt import Event
from tests.loops import chain


def test_observers_are_told_in_order_after_the_commit() -> None:
    seen: list[Event] = []

    def a(context) -> None:
        context.progress(1, 4)

    chain(a, b=lambda: None, session_id="s", durability="checkpoint", observers=[seen.append]).execute()

    assert [(e.kind, e.task, e.step) for e in seen] == [
        ("session_started", "", 0),
        ("task_started", "a", 0),
        ("task_progress", "a", 0),
        ("task_ended", "a", 1),
        ("task_started", "b", 1),
        ("task_ended", "b", 2),
        ("checkpoint_saved", "", 2),
        ("session_ended", "", 2),
    ]
    assert {event.session for event in seen} == {"s"}
    assert seen[0].facts["resumed"] is False
    assert seen[2].facts == {"done": 1, "total": 4}
    assert seen[3].facts["outcome"] == "done"
    assert seen[-1].facts["status"] == "completed"


def test_an_observer_that_fails_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def bad(event: Event) -> None:
        raise ValueError("observer")

    assert chain(a=lambda: 1, observers=[bad, lambda event: seen.append(event.kind)]).execute() == 1

    assert seen == ["session_started", "task_started", "task_ended", "session_ended"]
    assert sum("failed on task_ended" in record.getMessage() for record in caplog.records) == 1


def test_a_failure_is_logged_once_with_stable_keys_and_says_whether_it_runs_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def a() -> None:
        raise OSError("x")

    with caplog.at_level(logging.WARNING), pytest.raises(OSError, match="x"):
        chain(a, max_retries=1, session_id="s").execute()

    first, second = [r for r in caplog.records if r.name == "graflow_ckpt.engine"]
    assert first.getMessage() == "task a failed, it runs again: OSError: x"
    assert second.getMessage() == "task a failed: OSError: x"
    assert (first.session, first.task, first.attempt) == ("s", "a", 1)
    assert second.attempt == 2


def test_the_logger_of_a_task_has_the_same_keys(caplog: pytest.LogCaptureFixture) -> None:
    def a(context) -> None:
        context.logger.warning("hello %s", "there")

    chain(a, session_id="s").execute()

    (record,) = [r for r in caplog.records if r.getMessage() == "hello there"]
    assert (record.session, record.task, record.attempt) == ("s", "a", 1)


def test_the_exception_is_the_tasks_own_with_the_command_that_goes_on() -> None:
    error = OSError("mine")

    def a() -> None:
        raise error

    with pytest.raises(OSError, match="mine") as raised:
        chain(a, session_id="s", store="elsewhere").execute()

    assert raised.value is error
    assert error.__notes__ == ["Session s can go on: graflow-ckpt resume s --store elsewhere"]
