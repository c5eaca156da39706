"""checkpoints prune, delete, clear and stats: in this process, on files and in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.checkpoint.retention import (
    DEFAULT,
    BestOf,
    KeepEvery,
    KeepFor,
    KeepLast,
    KeepWithin,
    LastSuccessful,
)
from graflow_ckpt.cli.care.removal import parse_best, parse_bytes, retention_of
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from tests.acceptance.command_line import inside
from tests.servers import Server
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line, save

CONTEXT = click.Context(click.Command("test"))
PARAMETER = click.Option(["--test"])
NOTHING: dict[str, Any] = {
    "older_than": None, "keep": None, "budget": None, "best": (), "keep_every": None, "per": "session",
    "keep_successful": True,
}  # fmt: skip


@pytest.fixture(scope="session")
def one_redis() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(params=["local", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """An empty one, which the command line takes without being told."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    monkeypatch.chdir(tmp_path)
    if request.param == "local":
        return open_store("checkpoints")
    server: Server = request.getfixturevalue("one_redis")
    server.ask("FLUSHALL")
    monkeypatch.setenv("GRAFLOW_CKPT_STORE", server.url)
    return open_store(server.url)


def said(*arguments: str, status: int = 0) -> str:
    """What `graflow-ckpt checkpoints …` says."""
    return inside("checkpoints", *arguments, status=status).said


def as_json(*arguments: str, status: int = 0) -> Any:
    return inside("checkpoints", *arguments, "--json", status=status).document


def own(store: CheckpointStore, session: str, sequence: int) -> str:
    return f"{store.folder}/session_{session}_step_{sequence}_17-{sequence}.pkl"


# --- what is typed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "retention"),
    [
        ({}, DEFAULT),
        ({"keep_successful": False}, KeepLast(10) & KeepFor(days=7)),
        ({"older_than": 60.0}, KeepFor(seconds=60.0) | LastSuccessful()),
        ({"older_than": 60.0, "keep": 3, "keep_successful": False}, KeepFor(seconds=60.0) & KeepLast(3)),
        ({"keep": 3, "per": "workflow"}, KeepLast(3, per="workflow") | LastSuccessful()),
        ({"budget": 5000}, KeepWithin(kb=5) | LastSuccessful()),
        (
            {"keep": 1, "best": [("loss", 2, "min"), ("acc", 1, "max")], "keep_every": 5},
            KeepLast(1) | BestOf("loss", 2) | BestOf("acc", 1, "max") | KeepEvery(5) | LastSuccessful(),
        ),
        ({"best": [("loss", 1, "min")], "keep_successful": False}, BestOf("loss")),
    ],
)
def test_options_are_one_retention(typed: dict[str, Any], retention: object) -> None:
    assert retention_of(**{**NOTHING, **typed}) == retention


def test_best_and_sizes_are_parsed() -> None:
    assert parse_best(CONTEXT, PARAMETER, ["loss", "loss:3", "a:max", "a.b:2:max"]) == (
        ("loss", 1, "min"), ("loss", 3, "min"), ("a", 1, "max"), ("a.b", 2, "max"),
    )  # fmt: skip
    assert [parse_bytes(CONTEXT, PARAMETER, text) for text in ("7", "7B", "1kB", "1.5MB", "10 GB", "1T")] == [
        7, 7, 1000, 1_500_000, 10**10, 10**12,
    ]  # fmt: skip
    assert parse_bytes(CONTEXT, PARAMETER, None) is None


@pytest.mark.parametrize("text", ["", "0", "GB", "1 XB", "-1GB", "1GBB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size"):
        parse_bytes(CONTEXT, PARAMETER, text)


def test_a_best_without_a_metric_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="is not METRIC"):
        parse_best(CONTEXT, PARAMETER, [""])


# --- prune -------------------------------------------------------------------------------


def test_a_dry_run_lists_what_would_go_with_its_bytes(store: CheckpointStore) -> None:
    line(store, "a", 3, days=9)
    save(store, "p", 1, days=9, status="paused")
    bytes_ = sum(cut.size for cut in inventory(store).cuts if cut.session == "a" and cut.sequence < 3)

    text = said("prune", "--older-than", "7d", "--dry-run")
    document = as_json("prune", "--older-than", "7d", "--dry-run")

    assert own(store, "a", 1) in text
    assert own(store, "a", 3) not in text
    assert "2 checkpoints (" in text
    assert "1 checkpoint kept: paused" in text
    assert document["paths"] == [own(store, "a", 1), own(store, "a", 2)]
    assert (document["dry_run"], document["checkpoints"], document["bytes"]) == (True, 2, bytes_)
    assert {row["why"] for row in document["spared"]} == {"newest", "paused"}
    assert left(store) == ["a1", "a2", "a3", "p1"]


def test_prune_does_what_the_dry_run_has_said(store: CheckpointStore) -> None:
    line(store, "a", 3, days=9)
    would = as_json("prune", "--dry-run")

    done = as_json("prune", "--yes")

    assert done == {**would, "dry_run": False}
    assert left(store) == ["a3"]
    assert said("prune", "--yes") == (
        "graflow-ckpt: 0 checkpoints (0 B) deleted\n"
        "graflow-ckpt: 1 checkpoint kept: the newest good one of a session\n"
    )


def test_rules_combine(store: CheckpointStore) -> None:
    for number, loss in enumerate([0.5, 0.1, 0.4, 0.3, 0.2], 1):
        save(store, "a", number, user={"loss": loss}, cause="request")
    line(store, "b", 2, workflow="v")

    said("prune", "--keep", "1", "--best", "loss:1", "--keep-every", "3", "--workflow", "w", "--yes")
    assert left(store) == ["a2", "a3", "a5", "b1", "b2"]
    said("prune", "--keep", "1", "--session", "a", "--yes")
    assert left(store) == ["a5", "b1", "b2"]
    said("prune", "--keep", "1", "--per", "store", "--yes")
    assert left(store) == ["a5", "b2"]


def test_somebody_is_asked_first(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    line(store, "a", 3)
    asked: list[str] = []

    def answer(question: str, **options: Any) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(click, "confirm", answer)

    said("prune", "--keep", "1", status=130)

    assert asked[0].startswith("Delete 2 checkpoints (")
    assert left(store) == ["a1", "a2", "a3"]


def test_what_has_changed_while_somebody_thought_is_looked_at_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = line(store, "a", 4)

    def meanwhile(question: str, **options: Any) -> bool:
        save(store, "fork", 1, parent=made[1].checkpoint_id)
        save(store, "a", 5)
        return True

    monkeypatch.setattr(click, "confirm", meanwhile)

    said("prune", "--keep", "1")

    assert left(store) == ["a2", "a4", "a5", "fork1"]


def test_what_could_not_be_deleted_is_status_1(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    line(store, "a", 3)

    def refuse(self: Any, path: str) -> bool:
        raise PermissionError("read-only")

    monkeypatch.setattr(type(store), "delete", refuse)

    assert "stays: read-only" in said("prune", "--keep", "1", "--yes", status=1)
    document = as_json("prune", "--keep", "1", "--yes", status=1)
    assert [row["error"] for row in document["failed"]] == ["read-only", "read-only"]


@pytest.mark.parametrize(
    "wrong", [["--keep", "0"], ["--older-than", "soon"], ["--per", "planet"], ["--older-than", "7"]]
)
def test_what_means_nothing_is_a_usage_error(store: CheckpointStore, wrong: list[str]) -> None:
    said("prune", *wrong, status=2)


def test_a_number_that_no_checkpoint_has_rates_none_and_lets_none_go(store: CheckpointStore) -> None:
    for number in range(1, 4):
        save(store, "a", number, user={"loss": number / 10}, cause="request")

    assert "did you mean loss?" in said("prune", "--best", "los", "--yes", status=2)
    assert "there is: loss." in said("prune", "--keep", "1", "--best", "acc:3:max", "--yes", status=2)

    assert left(store) == ["a1", "a2", "a3"]
    assert "0 checkpoints" in said("prune", "--best", "los", "--session", "b", "--yes")


def test_an_empty_store_has_nothing_to_prune(store: CheckpointStore) -> None:
    assert said("prune") == "graflow-ckpt: 0 checkpoints (0 B) deleted\n"
    assert as_json("stats")["checkpoints"] == 0
    assert "no such checkpoints" in said("stats")
    assert said("clear", "w") == "graflow-ckpt: 0 checkpoints (0 B) deleted\n"


# --- delete ------------------------------------------------------------------------------


def test_a_checkpoint_is_deleted_by_its_path(store: CheckpointStore) -> None:
    line(store, "a", 3)

    assert as_json("delete", own(store, "a", 2), "--yes")["paths"] == [own(store, "a", 2)]

    assert left(store) == ["a1", "a3"]


def test_a_session_is_deleted_with_its_damaged_checkpoints_and_others_stay(store: CheckpointStore) -> None:
    line(store, "a", 2)
    line(store, "b", 1)
    _spoil(store, own(store, "a", 9))

    said("delete", "a", "--yes")

    assert left(store) == ["b1"]
    assert inventory(store).unreadable == ()


def test_a_session_that_could_go_on_is_named_before_it_goes(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    line(store, "a", 2)
    save(store, "b", 1, status="completed")
    monkeypatch.setattr(click, "confirm", lambda question, **options: True)

    text = said("delete", "a", "b")

    assert "cannot go on then: a\n" in text
    assert left(store) == []


@pytest.mark.parametrize("held", ["paused", "forked"])
def test_what_has_to_stay_holds_all_that_is_named(store: CheckpointStore, held: str) -> None:
    made = line(store, "a", 2)
    if held == "paused":
        save(store, "a", 3, status="paused")
    else:
        save(store, "f", 1, parent=made[0].checkpoint_id)
    before = left(store)

    text = said("delete", "a", "--yes", status=1)
    assert "Nothing was deleted. It has to stay:" in text
    assert left(store) == before

    said("delete", "a", "--yes", "--force")
    assert not any(name.startswith("a") for name in left(store))


def test_of_a_session_that_somebody_runs_nothing_is_deleted(store: CheckpointStore) -> None:
    line(store, "a", 2)
    lease = store.acquire("a")
    try:
        assert "session a is being run" in said("delete", "a", "--yes", "--force", status=1)
        assert as_json("clear", "w", "--yes", "--force")["spared"][0]["why"] == "busy"
    finally:
        lease.release()
    assert left(store) == ["a1", "a2"]


def test_what_is_not_there_is_an_error_and_nothing_goes(store: CheckpointStore) -> None:
    line(store, "a", 1)

    assert "neither a checkpoint nor a session" in said("delete", "a", "nobody", "--yes", status=1)
    assert as_json("delete", "nobody", "--yes", status=1)["error"] == "NoSession"
    assert "There is no checkpoint" in said("delete", own(store, "a", 7), "--yes", status=1)
    assert left(store) == ["a1"]


def test_a_dry_run_of_delete_and_clear_deletes_nothing(store: CheckpointStore) -> None:
    line(store, "a", 2)

    assert as_json("delete", "a", "--dry-run")["checkpoints"] == 2
    assert as_json("clear", "w", "--dry-run")["checkpoints"] == 2
    assert left(store) == ["a1", "a2"]


# --- clear -------------------------------------------------------------------------------


def test_a_workflow_is_cleared_and_others_stay(store: CheckpointStore) -> None:
    line(store, "a", 2)
    line(store, "b", 2)
    line(store, "v", 1, workflow="other")

    assert as_json("clear", "w", "--yes")["checkpoints"] == 4

    assert left(store) == ["v1"]


def test_only_what_is_finished_is_cleared_on_request(store: CheckpointStore) -> None:
    line(store, "a", 2)
    save(store, "b", 1)
    save(store, "b", 2, status="completed")
    save(store, "c", 1, status="failed")

    said("clear", "w", "--finished", "--yes")

    assert left(store) == ["a1", "a2", "c1"]


def test_what_waits_for_an_answer_is_cleared_by_force_only(store: CheckpointStore) -> None:
    line(store, "a", 1)
    save(store, "p", 1, status="paused")

    assert "1 checkpoint kept: paused" in said("clear", "w", "--yes")
    assert left(store) == ["p1"]
    said("clear", "w", "--yes", "--force")
    assert left(store) == []


def test_what_stays_does_not_become_the_newest_of_its_session(store: CheckpointStore) -> None:
    save(store, "a", 1, status="paused")
    save(store, "a", 2)
    save(store, "a", 4, status="completed")

    said("clear", "w", "--yes")

    assert left(store) == ["a1", "a4"]


def test_forks_of_the_same_workflow_go_together_and_others_hold_their_parents(store: CheckpointStore) -> None:
    made = line(store, "a", 2)
    save(store, "f", 1, parent=made[0].checkpoint_id)
    save(store, "g", 1, parent=made[1].checkpoint_id, workflow="other")

    assert "1 checkpoint kept: another session was forked from it" in said("clear", "w", "--yes")

    assert left(store) == ["a2", "g1"]


# --- stats -------------------------------------------------------------------------------


def test_a_store_is_counted(store: CheckpointStore) -> None:
    line(store, "a", 2, days=30, cause="request")
    save(store, "b", 1, days=2, user={"big": "x" * 5000})
    save(store, "c", 1, status="paused", workflow="v", days=0.5)
    save(store, "d", 1, status="completed", workflow="v")
    _spoil(store, own(store, "e", 1))
    known = inventory(store)

    found = as_json("stats")
    text = said("stats")

    assert (found["checkpoints"], found["sessions"], found["bytes"]) == (5, 4, known.size)
    assert found["ages"] == {"< 1 hour": 1, "1-24 hours": 1, "1-7 days": 1, "> 7 days": 2}
    assert found["statuses"] == {"running": 3, "paused": 1, "completed": 1}
    assert (found["paused"], found["requested"], found["automatic"]) == (1, 2, 3)
    assert list(found["workflows"]) == ["w", "v"]
    assert found["workflows"]["v"]["checkpoints"] == 2
    assert found["oldest"]["path"] == own(store, "a", 1)
    assert found["newest"]["path"] == own(store, "d", 1)
    assert found["largest"]["path"] == own(store, "b", 1)
    assert found["unreadable"] == [own(store, "e", 1)]
    assert found["oldest"]["age"] > 29 * 86400
    assert "WORKFLOW" in text.splitlines()[0]
    assert "30 d" in text
    assert own(store, "b", 1) in text
    assert as_json("stats", "--workflow", "v")["checkpoints"] == 2


def _spoil(store: CheckpointStore, path: str) -> None:
    parts = {"pkl": b"", "state.json": b"", "meta.json": b"{"}
    writers = [(name, lambda sink, data=data: sink.write(data)) for name, data in parts.items()]
    store.put(path, writers, lease=None, stage="x")
