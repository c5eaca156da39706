"""Inventory, census and audit: what unverified metadata tell, and what belongs to no checkpoint."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.care.inventory import (
    Inventory,
    audit,
    census,
    cut_of,
    get_checkpoint_metrics,
    get_db_metrics,
    inventory,
    seconds,
)
from graflow_ckpt.checkpoint.retention import Cut
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around.retrying import Retrying
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import new_mark
from tests import things
from tests.trios import owning
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.care.test_copying import append
from tests.unit.checkpoint.stocked import line, save

META = {"session_id": "s", "epoch": 1, "sequence": 2}


def cut(**more: Any) -> Cut | None:
    return cut_of("p", json.dumps({**META, **more}).encode())


def test_what_a_checkpoint_says_is_in_the_inventory(store: CheckpointStore) -> None:
    made = save(store, "a", 3, status="failed", user={"loss": 0.5, "ok": True, "note": "x"}, origin="chk_1")
    line(store, "b", 1)

    (found,) = inventory(store, "a").cuts

    assert (found.path, found.id) == (made.path, made.checkpoint_id)
    assert (found.session, found.workflow, found.epoch, found.sequence) == ("a", "w", 1, 3)
    assert (found.status, found.cause, found.origin) == ("failed", "policy", "chk_1")
    assert found.metrics == {"loss": 0.5}
    parts = json.loads(store.meta(made.path))["parts"]
    assert found.size == len(store.meta(made.path)) + parts["pkl"]["size"] + parts["state.json"]["size"]
    assert found.created == seconds(made.created_at)
    assert len(inventory(store).cuts) == 2


def test_a_copy_of_another_session_s_under_a_session_s_name_is_not_its_own(store: CheckpointStore) -> None:
    save(store, "a", 1, name="session_b_step_1_17-1.pkl")

    assert inventory(store, "b").cuts == ()
    assert [c.session for c in inventory(store).cuts] == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_id": "../x"}, {"session_id": None}, {"epoch": "1"}, {"sequence": True}, {"sequence": 1.5},
        {"epoch": None},
    ],
)  # fmt: skip
def test_without_session_epoch_and_sequence_it_is_unreadable(wrong: dict[str, Any]) -> None:
    assert cut(**wrong) is None


def test_what_else_is_wrong_only_counts_for_less() -> None:
    found = cut(
        created_at="yesterday", workflow=7, status=[], checkpoint_id=None, parts={"pkl": {"size": -5}},
        user_metadata={"a": "1", "b": 2},
    )  # fmt: skip

    assert found is not None
    assert (found.created, found.workflow, found.status, found.id) == (float("inf"), "", "", "")
    assert found.metrics == {"b": 2}
    assert found.size > 0


@pytest.mark.parametrize("parts", [[], {"pkl": 3}, "x", {"pkl": {"size": "9"}}])
def test_parts_that_are_none_have_no_size(parts: Any) -> None:
    found = cut(parts=parts)

    assert found is not None
    assert found.size == len(json.dumps({**META, "parts": parts}))


def test_times_without_a_zone_are_utc() -> None:
    assert seconds("1970-01-02T00:00:00") == seconds("1970-01-02T02:00:00+02:00") == 86400


@given(st.binary(max_size=200))
def test_any_bytes_are_a_cut_or_unreadable(raw: bytes) -> None:
    cut_of("p", raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([
    "session_id", "epoch", "sequence", "created_at", "parts", "user_metadata", "workflow", "status", "origin",
]), json_values))  # fmt: skip
def test_any_json_is_a_cut_or_unreadable(document: dict[str, Any]) -> None:
    cut_of("p", json.dumps({**META, **document}).encode())


# --- census ------------------------------------------------------------------------------


def test_ages_fall_into_four_buckets_and_what_has_no_time_is_old() -> None:
    now = 1e9
    ages = [0.0, 3599, 3600, 86399, 86400, 7 * 86400 - 1, 7 * 86400, -50, float("-inf")]
    cuts = tuple(Cut(str(n), "s", created=now - age) for n, age in enumerate(ages))

    found = census(Inventory(cuts), now)

    assert found.ages == {"< 1 hour": 4, "1-24 hours": 2, "1-7 days": 2, "> 7 days": 1}
    assert found.total.oldest is not None
    assert found.total.oldest.path == "6"
    assert census(Inventory(()), now).total.oldest is None


def test_the_workflow_with_the_most_bytes_is_first() -> None:
    cuts = (Cut("1", "a", "small", size=1), Cut("2", "b", "large", size=5), Cut("3", "b", "large", size=7))

    found = census(Inventory(cuts), 0.0)

    assert [(name, count.size, count.sessions) for name, count in found.workflows.items()] == [
        ("large", 12, 1), ("small", 1, 1),
    ]  # fmt: skip
    assert found.total.largest == cuts[2]


def test_what_checkpoints_have_in_common_counts_once_and_makes_them_large() -> None:
    cuts = (
        Cut("1", "a", "w", size=3, shared={"x": 100}),
        Cut("2", "a", "w", size=2, shared={"x": 100, "y": 50}),
        Cut("3", "a", "w", size=9),
    )

    found = census(Inventory(cuts), 0.0)

    assert found.total.size == 164
    assert found.total.largest == cuts[1]


# --- metrics ----------------------------------------------------------------------------


def test_totals_workflows_and_ages_are_counted_without_opening_a_pickle(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, "a", 1, days=10)
    save(store, "a", 2, days=2)
    save(store, "b", 1, status="paused", workflow="etl")
    for file in tmp_path.glob("*.pkl"):
        file.write_bytes(b"no pickle")

    found = get_checkpoint_metrics(store)

    assert found | {"oldest_checkpoint_age_seconds": 0, "newest_checkpoint_age_seconds": 0} == {
        "total_checkpoints": 3,
        "paused_checkpoints": 1,
        "automatic_checkpoints": 2,
        "workflows": {"w": 2, "etl": 1},
        "age_distribution": {"< 1 hour": 1, "1-24 hours": 0, "1-7 days": 1, "> 7 days": 1},
        "oldest_checkpoint_age_seconds": 0,
        "newest_checkpoint_age_seconds": 0,
    }
    assert 10 * 86400 <= found["oldest_checkpoint_age_seconds"] < 11 * 86400
    assert 0 <= found["newest_checkpoint_age_seconds"] < 86400
    assert get_checkpoint_metrics(str(tmp_path / "nothing"))["total_checkpoints"] == 0


def test_a_database_of_more_than_a_gigabyte_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "runs.db"
    with file.open("wb") as sparse, caplog.at_level(logging.WARNING):
        for size, warnings in ((1 << 20, 0), (1100 << 20, 1)):
            os.truncate(sparse.fileno(), size)

            found = get_db_metrics(file)

            assert (found["size_bytes"], found["size_mb"]) == (size, size / (1 << 20))
            assert found["last_modified"] == file.stat().st_mtime
            assert len(caplog.records) == warnings
    assert "Database size exceeds 1GB - consider cleanup" in caplog.text


# --- the audit ------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> LocalStore:
    return LocalStore(folder)


def kinds(store: CheckpointStore) -> list[tuple[str, str]]:
    return sorted((orphan.kind, orphan.session) for orphan in audit(store).orphans)


def test_a_store_that_is_as_it_should_be_has_no_orphans(store: LocalStore) -> None:
    line(store, "s", 3)
    save(store, "s", 4, name="best.pkl")
    append(store, 2, 3, after=1)

    found = audit(store)

    assert (found.checkpoints, found.orphans, found.whole) == (4, (), True)
    assert audit(LocalStore(f"{store.folder}/none")).orphans == ()


def test_parts_without_their_meta_are_found(store: LocalStore, folder: Path) -> None:
    made = line(store, "s", 2)
    os.unlink(made[0].path.replace(".pkl", ".meta.json"))

    assert kinds(store) == [("part", "s"), ("part", "s")]
    assert audit(store).size > 0


def test_checkpoints_that_lack_a_part_or_are_cut_short_are_found(store: LocalStore) -> None:
    made = line(store, "s", 3)
    os.unlink(made[0].path)
    Path(made[1].path).write_bytes(b"short")
    Path(made[2].path.replace(".pkl", ".meta.json")).write_bytes(b"{")

    found = audit(store)

    assert sorted(orphan.kind for orphan in found.orphans) == ["lacking", "lacking", "unreadable"]
    assert {orphan.name for orphan in found.orphans} == {cut.path for cut in made}
    assert any("it has 5 bytes" in orphan.why for orphan in found.orphans)


def test_what_a_dead_save_has_left_is_found_and_what_a_live_one_writes_is_not(
    store: LocalStore, folder: Path
) -> None:
    (made,) = line(store, "s", 1)
    base = made.path.removesuffix(".pkl")
    Path(f"{base}.abc.pkl.tmp").write_bytes(b"staged")

    assert kinds(store) == [("staged", "s")]
    with owning(store, "t"):
        Path(folder, "session_t_step_1_17-1.abc.pkl.tmp").write_bytes(b"staged")
        assert kinds(store) == [("staged", "s")]
    assert kinds(store) == [("staged", "s"), ("staged", "t")]


def test_a_committed_checkpoint_under_its_staged_names_is_none(store: LocalStore) -> None:
    (made,) = line(store, "s", 1)
    base = made.path.removesuffix(".pkl")
    stage = json.loads(Path(f"{base}.meta.json").read_bytes())["stage"]
    os.rename(made.path, f"{base}.{stage}.pkl.tmp")

    assert kinds(store) == []


def test_journals_of_no_session_and_foreign_files_are_found(store: LocalStore, folder: Path) -> None:
    line(store, "t", 1)
    append(store, 2, after=1)
    Path(folder, "notes.txt").write_text("mine")

    assert kinds(store) == [("foreign", ""), ("journal", "s")]
    assert all(orphan.advice for orphan in audit(store).orphans)


def test_a_database_is_looked_into(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/s.db")
    assert kinds(store) == []
    line(store, "s", 3)
    save(store, "t", 1)
    append(store, 2, after=1)
    assert kinds(store) == []

    things.write(store, f"data/s/{new_mark(1)}/000000", b"of an owner")
    things.drop(store, ["head/s", *(key for key in things.keys(store, "data/s/") if "/m." in key)])

    assert sorted(set(kinds(store))) == [("journal", "s"), ("staged", "s")]


def test_of_other_stores_it_says_that_it_has_not_looked_everywhere() -> None:
    inner = MemoryStore("memory://audited")
    line(inner, "s", 1)

    found, beyond = audit(inner), audit(Retrying(inner))

    assert (found.checkpoints, found.orphans, found.whole) == (1, (), True)
    assert (beyond.checkpoints, beyond.orphans, beyond.whole) == (1, (), False)
    inner.forget()


def test_what_a_checkpoint_shares_is_missed(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/shared.db")
    save(store, "s", 1, of=trios.state("s", ("put", "large", encode(b"x" * 100_000), -1)))
    assert audit(store).orphans == ()
    things.drop(store, things.keys_of_contents(store))

    (orphan,) = audit(store).orphans

    assert orphan.kind == "lacking"
    assert orphan.why.startswith("content ")
