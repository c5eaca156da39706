"""Retention of workflows that run: by default, as they say, when they fail, fork, are paused and end well."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    BestOf,
    CheckpointManager,
    DeleteOnSuccess,
    EveryTask,
    KeepEvery,
    KeepLast,
    OfAll,
    task,
    workflow,
)
from graflow_ckpt.checkpoint.retention import Retention
from graflow_ckpt.checkpoint.seals.seal import seal
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring
from tests.acceptance.command_line import (
    COUNT,
    KILLED,
    checkpoints,
    graflow,
    inside,
    program,
    run_count,
)
from tests.acceptance.places import Make

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


def steps(session: str = "s", store: str = "checkpoints") -> list[int]:
    return sorted(m.steps for m in CheckpointManager.list_checkpoints(session, store=store))


def loop(limit: int, make: Make = workflow, fails: Callable[[], bool] = bool, **options: Any) -> Any:
    """A task that comes round so often; each round asks for nothing unless told."""
    asks = options.pop("asks", lambda number: None)
    with make("loop", session_id="s", checkpoint=options.pop("checkpoint", EveryTask()), **options) as flow:

        @task(inject_context=True)
        def count(context: Any, data: int = 1) -> int:
            if data == limit and fails():
                raise ZeroDivisionError("the last one fails")
            if (metadata := asks(data)) is not None:
                context.checkpoint(metadata)
            if data < limit:
                context.next_iteration(data + 1)
            return data

    return flow.execute()


def aged(session: str, days: float) -> None:
    """Its checkpoints say that they are so old; sealed, as if that were so."""
    keyring = Keyring.load()
    for path in Path("checkpoints").glob(f"session_{session}_step_*.meta.json"):
        meta = json.loads(path.read_text())
        meta["created_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        path.write_text(
            json.dumps(seal({k: v for k, v in meta.items() if k not in ("seal", "key_id")}, keyring))
        )


# --- after saves -------------------------------------------------------------------------


def test_by_default_a_long_run_leaves_ten(workflow: Make) -> None:
    loop(30, workflow)

    assert len(steps()) == 10
    assert steps()[-1] == 30


def test_a_loop_that_asks_in_every_round_can_be_kept_small(workflow: Make) -> None:
    loop(
        9, checkpoint=None, asks=lambda number: {"loss": abs(number - 4)},
        keep=OfAll(KeepLast(2) | BestOf("loss", 1, "min") | KeepEvery(7)),
    )  # fmt: skip

    assert steps() == [4, 7, 9, 9]


def test_a_run_that_fails_is_looked_after_and_goes_on() -> None:
    broken = [True]
    with pytest.raises(ZeroDivisionError):
        loop(8, fails=lambda: broken[0], keep=KeepLast(2))
    assert len(steps()) == 2

    broken[0] = False
    assert loop(8, fails=lambda: broken[0], keep=KeepLast(2)) == 8
    assert len(steps()) == 2


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_what_ended_well_can_leave_nothing(durability: Any) -> None:
    def big(number: int) -> None:
        return None

    broken = [True]
    keep: Retention = OfAll(KeepLast(3) & DeleteOnSuccess())
    with pytest.raises(ZeroDivisionError):
        loop(5, fails=lambda: broken[0], keep=keep, durability=durability, asks=big)
    assert steps()

    broken[0] = False
    assert loop(5, fails=lambda: broken[0], keep=keep, durability=durability, asks=big) == 5

    assert steps() == []
    assert [raw for _, _, raw in open_store("checkpoints").segments("s") if raw] == []
    assert loop(2, keep=keep, durability=durability) == 2  # it begins anew


# --- the command line --------------------------------------------------------------------


def test_what_was_forked_stays_with_the_fork_and_goes_without_it() -> None:
    run_count("--session", "s", "--every", "1", "--", "4", status=KILLED)
    origin = checkpoints("s")[1]
    graflow("resume", origin, "--fork", "other")
    first = checkpoints("other")[0]
    metas = [json.loads(Path(p.replace(".pkl", ".meta.json")).read_text()) for p in checkpoints("other")]
    source = json.loads(Path(origin.replace(".pkl", ".meta.json")).read_text())
    assert {meta["origin"] for meta in metas} == {source["checkpoint_id"]}
    inside("checkpoints", "delete", first, "--yes")  # the others still know where they come from

    spared = inside("checkpoints", "prune", "--keep", "1", "--yes", "--json").document["spared"]
    assert [(row["path"], row["why"]) for row in spared] == [(origin, "forked")]
    graflow("resume", "s")
    assert origin in checkpoints("s")

    inside("checkpoints", "delete", "other", "--yes")
    inside("prune", "--keep", "1", "--yes")  # the same by its short name
    assert origin not in checkpoints("s")
    assert len(checkpoints("s")) == 1


def test_a_session_goes_on_from_what_pruning_has_left() -> None:
    program("count.py", COUNT)
    graflow(
        "run",
        "count.py",
        "--session",
        "s",
        "--every",
        "1",
        "--durability",
        "journal",
        "--",
        "4",
        status=KILLED,
    )
    newest = checkpoints("s")[-1]

    aged("s", 30)
    text = inside("checkpoints", "prune", "--older-than", "7d", "--yes").err

    assert "1 checkpoint kept: the newest good one of a session" in text
    assert checkpoints("s") == [newest]
    assert "continues from step 4" in graflow("resume", "s").err
