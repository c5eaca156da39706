"""Wrappers that wait, fall back and cache keep the contract of every store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.cached import Cached
from graflow_ckpt.stores.fallback import Fallback
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.retrying import Retrying
from graflow_ckpt.testing import (
    FencingContract,
    Opener,
    ProcessContract,
    RestoredContract,
    Snapshot,
    StoreContract,
)
from tests.conformance.restoring import in_memory
from tests.servers import Server, binaries


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(binary=next(iter(binaries().values()))) as server:
        yield server


def all_but_the_cache(folder: Path) -> CheckpointStore:
    return Retrying(Fallback(LocalStore(folder / "checkpoints"), str(folder / "folder")))


class TestAroundAFolder(StoreContract, ProcessContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(all_but_the_cache, tmp_path)


class TestCached(StoreContract, FencingContract, RestoredContract):
    @pytest.fixture
    def opener(self, server: Server) -> Iterator[Opener]:
        server.ask("FLUSHALL")
        yield lambda: Cached(MemoryStore("memory://cached-contract"), server.url)
        MemoryStore("memory://cached-contract").forget()

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        return in_memory("memory://cached-contract")
