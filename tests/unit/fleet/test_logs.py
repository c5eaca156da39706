"""Lines of a pool's log: their keys, and what is never in them."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from graflow_ckpt.fleet import pool as logs

log = logging.getLogger("graflow_ckpt.fleet")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def as_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (line,) = said(capsys)
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_fact_is_one_json_object_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    logs.begin_log("json", "worker-1")

    log.warning(
        "task %s failed", "a", extra={"session": "s", "task": "a", "step": 3, "attempt": 2, "token": "e1t1"}
    )

    found = as_json(capsys)
    assert found.items() >= {
        "level": "warning", "logger": "graflow_ckpt.fleet", "message": "task a failed", "session": "s",
        "task": "a", "step": 3, "attempt": 2, "token": "e1t1", "worker": "worker-1",
    }.items()  # fmt: skip
    assert found["time"].endswith("Z")


def test_text_says_the_same_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    logs.begin_log("text", "worker-1")

    log.info("task %s failed", "a", extra={"session": "s1", "task": "a", "step": 3})

    (line,) = said(capsys)
    assert "INFO    worker-1: task a failed" in line
    assert line.endswith("session=s1 step=3")  # the task has been named


def test_several_lines_of_one_fact_stay_together(capsys: pytest.CaptureFixture[str]) -> None:
    logs.begin_log("json", "pool")

    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed")

    found = as_json(capsys)
    assert "ValueError: two\nlines" in found["error"]


@pytest.mark.parametrize("manner", ["text", "json"])
def test_a_password_is_in_no_line(capsys: pytest.CaptureFixture[str], manner: logs.Manner) -> None:
    logs.begin_log(manner, "pool", logs.secrets_of("redis://user:s%40cret-word@host:6379/0", None, ""))

    try:
        raise ValueError("cannot connect to redis://user:s%40cret-word@host")
    except ValueError:
        log.exception("also as %s", "s@cret-word")

    text = "\n".join(said(capsys))
    assert "cannot connect" in text
    assert "cret-word" not in text


def test_passwords_are_known_by_all_kinds_of_addresses() -> None:
    found = logs.secrets_of(
        "redis+sentinel://:first@one:26379,two:26379/main/0?sentinel_password=second", "unix://:third@/socket"
    )

    assert {"first", "second", "third"} <= set(found)


def test_rq_says_only_what_it_warns_of(capsys: pytest.CaptureFixture[str]) -> None:
    logs.begin_log("text", "worker-1")

    logging.getLogger("rq.worker").info("*** Listening on default...")
    logging.getLogger("rq.worker").warning("a warning")

    (line,) = said(capsys)
    assert "a warning" in line


def test_a_child_logs_under_its_own_name_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.begin_log("text", "pool")
    logs.begin_log("text", "worker-1")

    log.info("here")

    (line,) = said(capsys)
    assert "worker-1: here" in line
    assert logging.getLogger().handlers[0].stream is sys.stderr  # type: ignore[attr-defined]
