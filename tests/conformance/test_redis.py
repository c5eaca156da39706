"""The Redis store keeps the contract of every store, on each server that there is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.testing import (
    FencingContract,
    FencingProcessContract,
    Opener,
    ProcessContract,
    RestoredContract,
    Snapshot,
    StoreContract,
)
from tests.conformance.restoring import in_redis
from tests.servers import Server, binaries

SYNCED = {"appendonly": "yes", "appendfsync": "always"}  # else it keeps no journal


@pytest.fixture(scope="module", params=sorted(binaries()))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(SYNCED, binary=binaries()[request.param]) as server:
        yield server


class TestRedis(StoreContract, FencingContract, RestoredContract, ProcessContract, FencingProcessContract):
    lease_seconds = 1.0

    @pytest.fixture
    def opener(self, server: Server) -> Opener:
        server.ask("FLUSHALL")
        return partial(RedisStore, server.url, lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, server: Server) -> Snapshot:
        return in_redis(server)
