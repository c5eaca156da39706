"""graflow-ckpt checkpoints repair and verify --sample: damage is found, shown, kept aside and mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import EveryN, task, workflow
from tests.acceptance.command_line import checkpoints, graflow, inside


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


def spoil(path: str) -> bytes:
    Path(path).write_bytes(Path(path).read_bytes()[:-1] + b"?")
    return Path(path).read_bytes()


def test_a_damaged_checkpoint_is_taken_away_and_its_bytes_are_kept(cuts: list[str]) -> None:
    spoiled = spoil(cuts[-1])

    told = inside("checkpoints", "repair", "--all", "--dry-run", status=1)
    asked = graflow("checkpoints", "repair", "s", stdin="n\n", status=130)
    done = inside("checkpoints", "repair", "s", "--yes", "--json").document

    assert told.out.splitlines()[1].split()[:2] == [cuts[-1], "s"]
    assert "1 checkpoint will not be there any more; the bytes are kept in damaged" in asked.err
    (one,) = done["damaged"]
    assert (one["path"], one["done"], one["error"]) == (cuts[-1], "set aside", "CheckpointCorrupt")
    assert spoiled in [Path(file).read_bytes() for file in one["kept"]]
    assert checkpoints("s") == cuts[:-1]
    assert "nothing is damaged" in inside("checkpoints", "repair", "--all").err


def test_a_good_copy_from_another_store_takes_its_place(cuts: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "sqlite:///copy.db")
    spoil(cuts[0])

    done = inside("checkpoints", "repair", "--all", "--from", "sqlite:///copy.db", "--yes")

    assert done.out.splitlines()[1].split()[2] == "replaced"
    inside("checkpoints", "verify", "--all")
    assert checkpoints("s") == cuts


def test_repair_wants_to_know_what_and_an_audit_does_not(cuts: list[str]) -> None:
    inside("checkpoints", "repair", status=2)
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
