"""CheckpointManager: the verbs that users know."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import owning
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three cuts of session s and one of t."""
    for sequence in (1, 2, 3):
        trios.save(tmp_path, f"session_s_step_{sequence}_17-{sequence}.pkl", sequence=sequence)
    trios.save(tmp_path, "session_t_step_1_17-1.pkl", session="t")
    return tmp_path


def names(found: list[Any]) -> list[str]:
    return [Path(getattr(item, "path", item)).name for item in found]


# --- create and resume -----------------------------------------------------------------


def test_metadata_that_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    context = ExecutionContext.create(trios.graph(), "a", session_id="s", store=str(tmp_path))

    with pytest.raises(errors.NotStorable, match=r"metadata\['loss'\]"):
        CheckpointManager.create_checkpoint(context, metadata={"loss": float("inf")})

    assert list(tmp_path.iterdir()) == []


def test_a_copy_elsewhere_belongs_to_the_store_that_it_was_written_in(tmp_path: Path) -> None:
    trios.save(tmp_path / "home")
    (tmp_path / "away").mkdir()
    for part in ("pkl", "state.json", "meta.json"):
        (tmp_path / "home" / f"x.{part}").rename(tmp_path / "away" / f"x.{part}")

    back, _ = CheckpointManager.resume_from_checkpoint(str(tmp_path / "away" / "x.pkl"))
    assert back.home.store.url == LocalStore(tmp_path / "home").url
    (tmp_path / "home").rename(tmp_path / "gone")
    back, _ = CheckpointManager.resume_from_checkpoint(str(tmp_path / "away" / "x.pkl"))
    assert back.home.store.url == LocalStore(tmp_path / "away").url


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").mkdir()

    with pytest.raises(errors.CheckpointError):
        CheckpointManager.resume_from_checkpoint(str(tmp_path / "x.pkl"))


# --- list ------------------------------------------------------------------------------


def test_listing_opens_no_pickle_and_leaves_damaged_ones_out_by_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in folder.glob("*.pkl"):
        path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    meta = folder / "session_s_step_2_17-2.meta.json"
    meta.write_text("{")
    other = folder / "session_s_step_1_17-1.meta.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"sequence": "many"}))
    with caplog.at_level(logging.WARNING):
        found = CheckpointManager.list_checkpoints("s", store=str(folder))

    assert [metadata.sequence for metadata in found] == [3]
    assert "step_2_17-2.pkl is corrupted" in caplog.text
    assert "step_1_17-1.pkl is corrupted" in caplog.text


# --- latest ----------------------------------------------------------------------------


def test_the_latest_is_the_newest_good_one(folder: Path) -> None:
    assert CheckpointManager.get_latest("s", store=str(folder)).endswith("-3.pkl")

    (folder / "session_s_step_3_17-3.state.json").write_text("{}")

    assert CheckpointManager.get_latest("s", store=str(folder)).endswith("-2.pkl")


def test_there_is_no_latest_of_a_session_without_checkpoints(folder: Path) -> None:
    with pytest.raises(errors.CheckpointNotFound, match="Session nobody has no checkpoint"):
        CheckpointManager.get_latest("nobody", store=str(folder))


def test_there_is_no_latest_if_none_is_good(folder: Path) -> None:
    (folder / "session_t_step_1_17-1.state.json").unlink()

    with pytest.raises(
        errors.NoGoodCheckpoint, match="Session t has 1 checkpoints and none of them verifies"
    ):
        CheckpointManager.get_latest("t", store=str(folder))


# --- clean up --------------------------------------------------------------------------


def test_all_but_the_newest_of_each_session_are_deleted(folder: Path) -> None:
    assert CheckpointManager.cleanup_old_checkpoints(1, store=str(folder)) == 2

    left = CheckpointManager.list_checkpoints(store=str(folder))
    assert sorted((m.session_id, m.sequence) for m in left) == [("s", 3), ("t", 1)]
    assert len(list(folder.glob("*.pkl"))) == 2
    assert CheckpointManager.cleanup_old_checkpoints(0, store=str(folder)) == 0


def test_only_the_session_that_was_named_is_cleaned_up(folder: Path) -> None:
    trios.save(folder, "session_t_step_2_17-2.pkl", session="t", sequence=2)

    assert CheckpointManager.cleanup_old_checkpoints(2, "s", store=str(folder)) == 1
    assert len(CheckpointManager.list_checkpoints("t", store=str(folder))) == 2


# --- verify ----------------------------------------------------------------------------


@pytest.fixture(params=["folder", "sqlite", "memory", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    MemoryStore("memory://annotated").forget()
    return open_store(
        {
            "folder": f"{tmp_path}/kept",
            "sqlite": f"sqlite:///{tmp_path}/kept.db",
            "memory": "memory://annotated",
            "encrypted": f"encrypted+sqlite:///{tmp_path}/closed.db",
        }[request.param]
    )


def kept(store: CheckpointStore, user: dict[str, object]) -> CheckpointMetadata:
    return CheckpointManager.verify(save(store, "s", 1, user=user).path)


def test_keys_are_set_others_stay_and_the_checkpoint_is_whole(store: CheckpointStore) -> None:
    found = kept(store, {"loss": 3, "epoch": 1})

    changed = CheckpointManager.update_metadata(found, {"loss": 2, "label": "best"})

    assert changed.user_metadata == {"loss": 2, "label": "best", "epoch": 1}
    assert CheckpointManager.verify(found.path) == changed
    context, _ = CheckpointManager.resume_from_checkpoint(found.path)
    assert context.session_id == "s"


def test_of_two_who_have_read_the_same_one_is_refused(store: CheckpointStore) -> None:
    found = kept(store, {"n": 1})
    CheckpointManager.update_metadata(found, {"n": 2})

    with pytest.raises(errors.MetadataChanged):
        CheckpointManager.update_metadata(found, {"n": 3})

    assert CheckpointManager.verify(found.path).user_metadata == {"n": 2}


def test_one_that_was_written_anew_meanwhile_is_another_one(store: CheckpointStore) -> None:
    found = kept(store, {"n": 1})
    kept(store, {"n": 1})

    with pytest.raises(errors.MetadataChanged):
        CheckpointManager.update_metadata(found, {"n": 2})


def test_while_somebody_runs_the_session_it_is_his(store: CheckpointStore) -> None:
    found = kept(store, {"n": 1})

    with owning(store), pytest.raises(errors.SessionBusy):
        CheckpointManager.update_metadata(found, {"n": 2})


def test_what_json_cannot_hold_and_what_is_damaged_is_not_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    found = kept(store, {"n": 1})

    with pytest.raises(errors.NotStorable):
        CheckpointManager.update_metadata(found, {"when": object()})
    Path(found.path.replace(".pkl", ".state.json")).write_text("{}")
    with pytest.raises(errors.CheckpointCorrupt):
        CheckpointManager.update_metadata(found, {"n": 2})

    assert store.owner("s") is None


# --- what is too old --------------------------------------------------------------------


LONG_AGO = 1_700_000_000


def asked(folder: Path, name: str) -> errors.CheckpointNotFound:
    with pytest.raises(errors.CheckpointNotFound) as missing:
        CheckpointManager.resume_from_checkpoint(f"{folder}/{name}")
    return missing.value


def test_one_that_was_too_old_has_expired(tmp_path: Path) -> None:
    save(LocalStore(tmp_path), "s", 9)

    error = asked(tmp_path, f"session_s_step_3_{LONG_AGO}-3.pkl")

    assert isinstance(error, errors.CheckpointExpired)
    assert error.message == (
        f"Checkpoint {tmp_path}/session_s_step_3_{LONG_AGO}-3.pkl expired at 2023-11-21T22:13:20+00:00. "
        "Automatic checkpoints expire after 604800 seconds."
    )
    assert "checkpoints list s" in error.hint


def test_one_that_is_young_or_was_named_or_whose_session_is_not_here_is_not_found(tmp_path: Path) -> None:
    save(LocalStore(tmp_path), "s", 9)

    for name in (
        f"session_s_step_3_{time.time():.0f}-3.pkl",
        "best.pkl",
        f"session_t_step_3_{LONG_AGO}-3.pkl",
    ):
        assert type(asked(tmp_path, name)) is errors.CheckpointNotFound
