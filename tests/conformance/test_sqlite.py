"""The SQLite store keeps the contract of every store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.testing import (
    FencingContract,
    FencingProcessContract,
    Opener,
    ProcessContract,
    RestoredContract,
    Snapshot,
    StoreContract,
)
from tests.conformance.restoring import in_sqlite


class TestSqlite(StoreContract, FencingContract, RestoredContract, ProcessContract, FencingProcessContract):
    lease_seconds = 1.0

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(SqliteStore, tmp_path / "checkpoints.db", lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, tmp_path: Path) -> Snapshot:
        return in_sqlite(tmp_path / "checkpoints.db")
