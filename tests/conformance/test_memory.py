"""The memory store keeps the contract of every store, as far as one process goes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.testing import FencingContract, Opener, RestoredContract, Snapshot, StoreContract
from tests.conformance.restoring import in_memory


class TestMemory(StoreContract, FencingContract, RestoredContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        yield partial(MemoryStore, "memory://conformance")
        MemoryStore("memory://conformance").forget()

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        return in_memory("memory://conformance")


class TestBoundedMemory(StoreContract, FencingContract, RestoredContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        yield partial(MemoryStore, "memory://bounded?max_bytes=100000000&max_checkpoints=2000")
        MemoryStore("memory://bounded").forget()

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        return in_memory("memory://bounded")
