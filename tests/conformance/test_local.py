"""The folder keeps the contract of every store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.testing import Opener, ProcessContract, RestoredContract, Snapshot, StoreContract
from tests.conformance.restoring import in_folder


class TestLocal(StoreContract, RestoredContract, ProcessContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(LocalStore, tmp_path / "checkpoints")

    @pytest.fixture
    def snapshot(self, tmp_path: Path) -> Snapshot:
        return in_folder(tmp_path / "checkpoints")
