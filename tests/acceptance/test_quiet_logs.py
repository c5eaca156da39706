"""Logs say what happened to which session, at any level, and nothing of what is in it."""

from __future__ import annotations

import logging

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task
from tests.acceptance.places import Make

SECRET = "hunter2-in-a-value"


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
                context.get_channel().set("box", Box(SECRET))
                context.get_channel().set("large", SECRET * 5000)  # more than may be saved
                return {"password": SECRET}

            @task(inject_context=True, max_retries=1)
            def two(context, one: dict[str, str]) -> str:
                context.get_channel().set("large", "")
                context.checkpoint({"note": SECRET})
                tries.append(1)
                if fails:
                    raise OSError("not now")
                return one["password"]

            one >> two
            return flow.execute()

    with caplog.at_level(logging.DEBUG):
        with pytest.raises(OSError, match="not now"):
            run(fails=True)
        assert run(fails=False) == SECRET
        for found in CheckpointManager.list_checkpoints("s"):
            CheckpointManager.resume_from_checkpoint(found.path)

    assert len(tries) == 3
    assert len(caplog.records) > 3
    assert "hunter2" not in "".join(caplog.handler.format(record) for record in caplog.records)
