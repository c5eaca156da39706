"""The metrics of a store as one dict, under the names that their users know."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint.inventory import get_checkpoint_metrics, get_db_metrics
from graflow_ckpt.stores.local import LocalStore
from tests.unit.checkpoint.stocked import save


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
