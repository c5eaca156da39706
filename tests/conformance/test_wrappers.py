"""A store that is wrapped (compressed, encrypted, a tenant's, cached) keeps the contract of every store.

What processes do to each other is between them and the store that is wrapped; a kill is in
tests/acceptance/test_wrapped.py, an append that was cut off anywhere in
tests/unit/stores/around/test_encrypted.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around.cached import Cached
from graflow_ckpt.stores.around.compressed import Compressed
from graflow_ckpt.stores.around.encrypted import Encrypted
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.around.retrying import Retrying
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.conformance.contracts.contract import Contract, Opener, names_of_tests
from tests.conformance.contracts.fencing import Snapshot
from tests.conformance.contracts.processes import ProcessContract
from tests.conformance.contracts.store import InProcess, StoreContract
from tests.conformance.restoring import in_memory
from tests.conformance.test_stores import (
    IN_A_FOLDER,
    IN_A_FOLDER_IN_PROCESS,
    IN_PROCESS,
    changed_or_skipped,
)
from tests.servers import Server, binaries
from tests.trios import own_name, put

KEYRING = Keyring({"conformance": bytes(range(32))})
PLACE = "memory://wrapped"


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    """An empty one, for all that is opened in a test."""
    MemoryStore(PLACE).forget()
    yield MemoryStore(PLACE)
    MemoryStore(PLACE).forget()


class AroundMemory(InProcess):
    @pytest.fixture
    def snapshot(self, memory: MemoryStore) -> Snapshot:
        return in_memory(PLACE)


class TestCompressedMemory(AroundMemory):
    @pytest.fixture
    def opener(self, memory: MemoryStore) -> Opener:
        return lambda: Compressed(MemoryStore(PLACE))


class TestCompressedLocal(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: Compressed(LocalStore(tmp_path / "checkpoints"))


class TestEncryptedMemory(AroundMemory):
    @pytest.fixture
    def opener(self, memory: MemoryStore) -> Opener:
        return lambda: Encrypted(MemoryStore(PLACE), KEYRING)


class TestEncryptedLocal(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: Encrypted(LocalStore(tmp_path / "checkpoints"), KEYRING)


def fill(store: Tenant) -> None:
    """What another tenant has, which is not to be seen. The lease is kept."""
    lease = store.acquire("s")
    journal = store.journal(lease, 0)
    journal.append(b"of somebody else;")
    for name in ("best", own_name()):
        put(store, name, "elses")


class TestTenantInMemory(AroundMemory):
    @pytest.fixture
    def opener(self, memory: MemoryStore) -> Opener:
        fill(Tenant(memory, "other"))
        return lambda: Tenant(MemoryStore(PLACE), "acme")


class TestTenantInFolder(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        fill(Tenant(LocalStore(tmp_path / "checkpoints"), "acm"))
        return lambda: Tenant(LocalStore(tmp_path / "checkpoints"), "acme")


def all_but_the_cache(folder: Path) -> CheckpointStore:
    return Retrying(Fallback(LocalStore(folder / "checkpoints"), str(folder / "folder")))


class TestAroundAFolder(StoreContract, ProcessContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(all_but_the_cache, tmp_path)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(binary=next(iter(binaries().values()))) as server:
        yield server


class TestCached(AroundMemory):
    @pytest.fixture
    def opener(self, server: Server, memory: MemoryStore) -> Opener:
        server.ask("FLUSHALL")
        return lambda: Cached(MemoryStore(PLACE), server.url)


NUMBERS: dict[type[Contract], int] = {
    TestCompressedMemory: IN_PROCESS,
    TestCompressedLocal: IN_A_FOLDER_IN_PROCESS,
    TestEncryptedMemory: IN_PROCESS,
    TestEncryptedLocal: IN_A_FOLDER_IN_PROCESS,
    TestTenantInMemory: IN_PROCESS,
    TestTenantInFolder: IN_A_FOLDER_IN_PROCESS,
    TestAroundAFolder: IN_A_FOLDER,
    TestCached: IN_PROCESS,
}


@pytest.mark.parametrize("suite", NUMBERS)
def test_a_wrapper_has_as_many_tests_as_it_had(suite: type[Contract]) -> None:
    assert len(names_of_tests(suite)) == NUMBERS[suite]


@pytest.mark.parametrize("suite", NUMBERS)
def test_no_wrapper_changes_or_skips_a_test(suite: type[Contract]) -> None:
    assert changed_or_skipped(suite) == []
