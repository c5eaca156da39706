"""Secrets in metadata and arguments stand in no file that people and tools read, and none is lost.

Logs tell what happened to which session, at any level, and nothing of what is in it.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, ExecutionContext, task, workflow
from graflow_ckpt.core.errors import NotStorable
from tests.acceptance.command_line import KILLED, graflow, program
from tests.acceptance.places import Make

SECRET = "hunter2-hunter2"
FETCH = """
import os, signal, sys
from graflow_ckpt import task, workflow

with workflow("fetch", "s") as ctx:

    @task(inject_context=True)
    def first(context):
        context.checkpoint({"api_key": "hunter2-hunter2", "tokens": 12, "rows": 3})

    @task(inject_context=True)
    def second(context):
        if not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        print("arguments", sys.argv[1:])

    first >> second
    ctx.execute()
"""


def in_clear() -> list[str]:
    """Return the files that hold the secret, the pickles apart."""
    files = [path for path in Path("checkpoints").rglob("*") if path.is_file() and path.suffix != ".pkl"]
    return [path.name for path in files if SECRET.encode() in path.read_bytes()]


def test_metadata_and_arguments_are_stored_redacted_and_come_back_whole() -> None:
    program("fetch.py", FETCH)
    graflow("run", "fetch.py", "--", "--password", SECRET, "--rows", "3", status=KILLED)

    assert in_clear() == []
    shown = graflow("checkpoints", "show", "s")
    assert SECRET not in shown.out
    assert "'--password', 'hunter2-hunter2', '--rows', '3'" in graflow("resume", "s").out
    path = next(meta.path for meta in CheckpointManager.list_checkpoints("s") if meta.cause == "request")
    context, metadata = CheckpointManager.resume_from_checkpoint(path)
    assert metadata.user_metadata["api_key"] == context.checkpoint_metadata["api_key"] == SECRET
    assert metadata.user_metadata["tokens"] == 12
    assert metadata.argv[1:3] == ["--password", SECRET]
    assert ExecutionContext.resume(path).checkpoint_metadata["rows"] == 3


def test_a_fork_keeps_them() -> None:
    program("fetch.py", FETCH)
    graflow("run", "fetch.py", "--", "--token", SECRET, status=KILLED)

    assert SECRET in graflow("resume", "s", "--fork", "t").out
    assert in_clear() == []


def test_a_secret_that_is_added_later_is_refused() -> None:
    with workflow("w", "s") as flow:
        flow.add(task(id="one")(lambda: 1))
    _, metadata = flow.execution_context.checkpoint(metadata={"api_key": SECRET})
    flow.execution_context.home.close()

    added = CheckpointManager.update_metadata(metadata, {"score": 0.9, "tokens": 3})

    assert added.user_metadata == {"api_key": SECRET, "score": 0.9, "tokens": 3}
    with pytest.raises(NotStorable, match="looks like a secret"):
        CheckpointManager.update_metadata(added, {"password": "x"})
    assert in_clear() == []


# --- logs, at any level -----------------------------------------------------------------


VALUE = "hunter2-in-a-value"


class Box:
    """A live value."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Box({self.text})"


def test_no_value_is_logged_when_it_is_saved_passed_on_tried_again_and_restored(
    workflow: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def run(fails: bool) -> object:
        with workflow("w", "s", checkpoint=EveryTask(), max_checkpoint_size_mb=0.02) as flow:

            @task(inject_context=True)
            def one(context) -> dict[str, str]:
                context.get_channel().set("box", Box(VALUE))
                context.get_channel().set("large", VALUE * 5000)  # more than may be saved
                return {"password": VALUE}

            @task(inject_context=True, max_retries=1)
            def two(context, one: dict[str, str]) -> str:
                context.get_channel().set("large", "")
                context.checkpoint({"note": VALUE})
                tries.append(1)
                if fails:
                    raise OSError("not now")
                return one["password"]

            one >> two
            return flow.execute()

    with caplog.at_level(logging.DEBUG):
        with pytest.raises(OSError, match="not now"):
            run(fails=True)
        assert run(fails=False) == VALUE
        for found in CheckpointManager.list_checkpoints("s"):
            CheckpointManager.resume_from_checkpoint(found.path)

    assert len(tries) == 3
    assert len(caplog.records) > 3
    assert "hunter2" not in "".join(caplog.handler.format(record) for record in caplog.records)
