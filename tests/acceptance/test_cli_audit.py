"""graflow-ckpt checkpoints audit and verify --sample: what is damaged or left over is found and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import EveryN, task, workflow
from tests.acceptance.command_line import checkpoints, inside


@pytest.fixture
def cuts() -> list[str]:
    with workflow("count", session_id="s", checkpoint=EveryN(2)) as ctx:

        @task(inject_context=True)
        def count(context: Any, data: int = 0) -> int:
            if data < 5:
                context.next_iteration(data + 1)
            return data

        ctx.execute()
    return checkpoints("s")


def test_an_audit_shows_what_belongs_to_no_checkpoint(cuts: list[str]) -> None:
    Path(cuts[0].replace(".pkl", ".meta.json")).unlink()

    told = inside("checkpoints", "audit", status=1)
    (first, second) = inside("checkpoints", "audit", "--json", status=1).document["orphans"]

    assert "2 orphans" in told.err
    assert (first["kind"], first["session"], second["name"]) == (
        "part",
        "s",
        Path(cuts[0]).stem + ".state.json",
    )


def test_a_sample_is_verified(cuts: list[str]) -> None:
    assert f"2 checkpoints of {len(cuts)}, 0 bad" in inside("checkpoints", "verify", "--sample", "2").err
    assert len(inside("checkpoints", "verify", "s", "--sample", "9", "--json").document) == len(cuts)
