"""A process that has lost its session writes nothing more into any store; its log says what was refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, task, workflow
from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.stores import open_store


def test_what_comes_too_late_is_refused_by_the_store_and_kept_in_the_log(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[Any] = []

    with workflow("w", "late", store=store_url, rng=False) as flow:

        @task(inject_context=True)
        def step(context: Any) -> None:
            context.checkpoint({"n": context.cycle})
            if context.cycle == 1:
                in_folder = "://" not in store_url and store_url != "memory:"
                if in_folder:  # an owner cannot be fenced while its lock file is in place
                    Path(store_url, ".late.lock").unlink()
                taken.append(open_store(store_url).acquire("late", take_over=not in_folder))
            context.next_iteration()

        with caplog.at_level(logging.ERROR), pytest.raises(Fenced):
            flow.execute(max_steps=5)

    (record,) = [record for record in caplog.records if "was refused" in record.getMessage()]
    assert (record.__dict__["session"], record.__dict__["step"]) == ("late", 2)
    assert record.__dict__["epoch"] < taken[0].epoch
    kept = CheckpointManager.list_checkpoints("late", store=store_url)
    assert [found.user_metadata["n"] for found in kept] == [0]
    taken[0].release()
