"""The Postgres store keeps the contract of every store."""

from __future__ import annotations

from functools import partial

import pytest

from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.testing import (
    FencingContract,
    FencingProcessContract,
    Opener,
    ProcessContract,
    RestoredContract,
    Snapshot,
    StoreContract,
)
from tests.conformance.restoring import in_postgres


class TestPostgres(StoreContract, FencingContract, RestoredContract, ProcessContract, FencingProcessContract):
    lease_seconds = 1.0

    @pytest.fixture
    def opener(self, postgres_url: str) -> Opener:
        return partial(PostgresStore, postgres_url, lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, postgres_url: str) -> Snapshot:
        return in_postgres(postgres_url)
