"""The object store keeps the contract of every store, on a server that speaks like S3 (or Azurite)."""

from __future__ import annotations

from functools import partial

import pytest

from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.testing import (
    FencingContract,
    FencingProcessContract,
    Opener,
    ProcessContract,
    RestoredContract,
    Snapshot,
    StoreContract,
)
from tests.conformance.restoring import in_head


class TestObjects(StoreContract, FencingContract, RestoredContract, ProcessContract, FencingProcessContract):
    lease_seconds = 0.5

    @pytest.fixture
    def opener(self, objects_url: str) -> Opener:
        return partial(ObjectStore, objects_url, lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, objects_url: str) -> Snapshot:
        return in_head(objects_url)
