"""What is said where a run is not simply that of a new session."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graflow_ckpt.engine.notices import again_line, notify, since, some


@pytest.mark.parametrize(("told", "level"), [(False, logging.WARNING), (True, logging.INFO)])
def test_a_program_is_warned_and_the_command_line_says_it_itself(
    told: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    notify("s", again_line("s", 2), told=told)

    (record,) = caplog.records
    assert (record.name, record.levelno, vars(record)["session"]) == ("graflow_ckpt.session", level, "s")
    assert record.getMessage() == "session s was finished and begins run 2; the former run is kept"


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        ({"seconds": 5}, "5 s ago"), ({"minutes": 3}, "3 min ago"), ({"hours": 30}, "1 d ago"),
        ({"hours": -1}, "0 s ago"),
    ],
)  # fmt: skip
def test_an_age_has_one_unit_and_is_never_negative(ago: dict[str, Any], said: str) -> None:
    made = datetime.now(UTC) - timedelta(**ago)

    assert since({"created_at": made.isoformat()}) == said


def test_an_age_that_is_not_known_is_no_number() -> None:
    assert since({"created_at": "yesterday"}) == since({}) == "at an unknown time"


def test_of_many_names_a_few_are_said() -> None:
    assert (some("ba"), some("abcde")) == ("a, b", "a, b, c and 2 more")
