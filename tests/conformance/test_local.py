"""The folder keeps the contract of every store; its owners cannot lose a session while they live."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.testing import Opener, ProcessContract, StoreContract


class TestLocal(StoreContract, ProcessContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(LocalStore, tmp_path / "checkpoints")
