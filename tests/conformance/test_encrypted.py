"""An encrypted store keeps the contract of every store.

What processes do to each other is between them and the store that is wrapped; a kill is in
tests/acceptance/test_wrapped.py, an append that was cut off anywhere in tests/unit/stores/test_encrypted.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.stores.encrypted import Encrypted
from graflow_ckpt.stores.keys import Keyring
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.testing import FencingContract, Opener, RestoredContract, Snapshot, StoreContract
from tests.conformance.restoring import in_memory

KEYRING = Keyring({"conformance": bytes(range(32))})


def encrypted_memory() -> Encrypted:
    return Encrypted(MemoryStore("memory://encrypted"), KEYRING)


def encrypted_folder(folder: Path) -> Encrypted:
    return Encrypted(LocalStore(folder), KEYRING)


class TestEncryptedMemory(StoreContract, FencingContract, RestoredContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        yield encrypted_memory
        MemoryStore("memory://encrypted").forget()

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        return in_memory("memory://encrypted")


class TestEncryptedLocal(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(encrypted_folder, tmp_path / "checkpoints")
