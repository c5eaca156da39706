"""graflow-ckpt failed: what has failed on a busy, and how it runs again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import Fleet

# The session goes on without the task that fails.
LENIENT = """
from graflow_ckpt import task, workflow

with workflow("lenient") as ctx:

    @task
    def fine():
        return 1

    @task(max_retries=0)
    def broken():
        raise ArithmeticError("seven is odd")

    (fine | broken).best_effort()
    ctx.execute()
"""


@pytest.fixture
def failed(busy: Fleet, own_folder: Path) -> str:
    """A session whose task `enrich` has failed; it will not when there is a file `mended`."""
    busy.server.ask("FLUSHALL")
    busy("submit", "etl.py", "--session", "s", "--input", f"mended={own_folder}/mended", "--wait", status=1)
    return "s"


def test_a_failed_task_is_listed_with_its_error_and_what_can_be_done(busy: Fleet, failed: str) -> None:
    head, row = busy("failed", "list").out.splitlines()

    assert head.split() == ["SESSION", "TASK", "ERROR", "ATTEMPTS", "ENDED", "THEN", "MESSAGE"]
    assert row.split()[:4] == ["s", "enrich", "ValueError", "1"]
    assert "requeue" in row
    assert "no file" in row


def test_tracebacks_are_shown_if_they_are_asked_for(busy: Fleet, failed: str) -> None:
    told = busy.here("failed", "list", "--session", "s", "--traceback").out

    assert told.startswith("s  enrich (attempt 1): ValueError: no file")
    assert "etl.py" in told
    assert "raise ValueError" in told


def test_as_json_a_failure_is_a_document(busy: Fleet, failed: str) -> None:
    (found,) = busy.here("failed", "list", "--json").document

    assert (found["task"], found["type"], found["then"]) == ("enrich", "ValueError", "requeue")
    assert (found["status"], found["workflow"], found["attempts"]) == ("failed", "etl", 1)
    assert found["ended"] > 0
    assert "traceback" not in found
    assert "traceback" in busy.here("failed", "list", "--traceback", "--json").document[0]


def test_failures_can_be_chosen_and_are_limited(busy: Fleet, failed: str) -> None:
    program("lenient.py", LENIENT)
    busy("submit", "lenient.py", "--wait")

    assert busy.here("failed", "list", "--task", "enrich", "--json").document[0]["session"] == "s"
    assert busy.here("failed", "list", "--task", "none", "--json").document == []
    done = busy.here("failed", "list", "--limit", "1")
    assert len(done.out.splitlines()) == 2
    assert "There are more than 1" in done.err


def test_what_the_session_went_on_without_is_listed_and_cannot_run_again(busy: Fleet, failed: str) -> None:
    program("lenient.py", LENIENT)
    busy("submit", "lenient.py", "--session", "lenient", "--wait")

    (row,) = busy.here("failed", "list", "--session", "lenient", "--json").document

    assert (row["task"], row["type"], row["message"]) == ("broken", "ArithmeticError", "seven is odd")
    assert (row["then"], row["attempts"]) == ("gone", None)
    told = busy.here("failed", "requeue", "lenient", "broken", status=1).err
    assert "what it was called with is not kept" in told


def test_what_has_failed_runs_again_and_the_session_goes_on(
    busy: Fleet, failed: str, own_folder: Path
) -> None:
    (own_folder / "mended").touch()

    told = busy("failed", "requeue", "s").err

    assert "session s goes on with 1 task: enrich" in told
    assert "completed after 4 steps" in busy("wait", "s").err
    assert "Nothing has failed" in busy.here("failed", "list").err


def test_a_task_can_be_named(busy: Fleet, failed: str, own_folder: Path) -> None:
    (own_folder / "mended").touch()

    found = busy("failed", "requeue", "s", "enrich", "--json").document

    assert (found["session"], found["requeued"]) == ("s", ["enrich"])
    assert found["status"] in ("running", "completed")  # the workers may be through already


def test_what_has_not_failed_is_not_requeued(busy: Fleet, failed: str) -> None:
    told = busy.here("failed", "requeue", "s", "clean", status=1).err
    assert "Task 'clean' of session s has not failed" in told
    assert "Failed have: enrich" in told

    busy("submit", "etl.py", "--session", "fine", "--wait")
    assert "no failed task that could run again" in busy.here("failed", "requeue", "fine", status=1).err
