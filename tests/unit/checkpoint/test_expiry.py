"""A path that was noted long ago: what is said of a checkpoint that is not kept any more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.core.errors import CheckpointExpired, CheckpointNotFound
from graflow_ckpt.stores.local import LocalStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import save

LONG_AGO = 1_700_000_000


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)


def asked(folder: Path, name: str) -> CheckpointNotFound:
    with pytest.raises(CheckpointNotFound) as missing:
        CheckpointManager.resume_from_checkpoint(f"{folder}/{name}")
    return missing.value


def test_one_that_was_too_old_has_expired(tmp_path: Path) -> None:
    save(LocalStore(tmp_path), "s", 9)

    error = asked(tmp_path, f"session_s_step_3_{LONG_AGO}-3.pkl")

    assert isinstance(error, CheckpointExpired)
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
        assert type(asked(tmp_path, name)) is CheckpointNotFound
