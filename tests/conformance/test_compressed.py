"""A compressed store keeps the contract of every store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.stores.compressed import Compressed
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.testing import FencingContract, Opener, RestoredContract, Snapshot, StoreContract
from tests.conformance.restoring import in_memory


def compressed_memory() -> Compressed:
    return Compressed(MemoryStore("memory://compressed"))


def compressed_folder(folder: Path) -> Compressed:
    return Compressed(LocalStore(folder))


class TestCompressedMemory(StoreContract, FencingContract, RestoredContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        yield compressed_memory
        MemoryStore("memory://compressed").forget()

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        return in_memory("memory://compressed")


class TestCompressedLocal(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(compressed_folder, tmp_path / "checkpoints")
