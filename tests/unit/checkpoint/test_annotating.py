"""Metadata of a checkpoint that is there are changed by whoever has seen them last, and by nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.core.errors import CheckpointCorrupt, MetadataChanged, NotStorable, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import save


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)


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

    with pytest.raises(MetadataChanged):
        CheckpointManager.update_metadata(found, {"n": 3})

    assert CheckpointManager.verify(found.path).user_metadata == {"n": 2}


def test_one_that_was_written_anew_meanwhile_is_another_one(store: CheckpointStore) -> None:
    found = kept(store, {"n": 1})
    kept(store, {"n": 1})

    with pytest.raises(MetadataChanged):
        CheckpointManager.update_metadata(found, {"n": 2})


def test_while_somebody_runs_the_session_it_is_his(store: CheckpointStore) -> None:
    found = kept(store, {"n": 1})
    lease = store.acquire("s")

    with pytest.raises(SessionBusy):
        CheckpointManager.update_metadata(found, {"n": 2})

    lease.release()


def test_what_json_cannot_hold_and_what_is_damaged_is_not_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    found = kept(store, {"n": 1})

    with pytest.raises(NotStorable):
        CheckpointManager.update_metadata(found, {"when": object()})
    Path(found.path.replace(".pkl", ".state.json")).write_text("{}")
    with pytest.raises(CheckpointCorrupt):
        CheckpointManager.update_metadata(found, {"n": 2})

    assert store.owner("s") is None
