"""Slow saves are said once per session, with their time and place."""

from __future__ import annotations

import logging

import pytest

from graflow_ckpt import EveryTask, task, workflow


def slow(caplog: pytest.LogCaptureFixture, what: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if f"SLOW CHECKPOINT {what}" in record.getMessage()]


def run(*, fails: bool = False) -> None:
    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:

        @task
        def a() -> int:
            return 1

        @task
        def b(a: int) -> int:
            if fails:
                raise OSError("b")
            return a

        a >> b
        flow.execute()


def test_a_session_says_once_that_its_saves_are_slow(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "0")

    run()

    (record,) = slow(caplog, "SAVE")
    assert record.levelno == logging.WARNING
    assert "session_s_step_0_" in record.getMessage()
    assert vars(record)["session"] == "s"


def test_saves_that_are_fast_enough_say_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "3600")

    run()

    assert not slow(caplog, "")


def test_a_slow_load_is_said_too(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="b"):
        run(fails=True)
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "0")

    run()

    assert len(slow(caplog, "LOAD")) == 1


def test_a_limit_that_is_no_number_is_said_and_not_believed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "soon")

    run()

    assert any("'soon' is no number of seconds" in record.getMessage() for record in caplog.records)
