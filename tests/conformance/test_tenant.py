"""What a tenant has of a store keeps the contract of every store, whatever the others have in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.tenant import Tenant
from graflow_ckpt.testing import FencingContract, Opener, RestoredContract, Snapshot, StoreContract
from graflow_ckpt.testing.trios import own_name, put
from tests.conformance.restoring import in_memory


def tenant_in_memory(name: str = "acme") -> Tenant:
    return Tenant(MemoryStore("memory://tenants"), name)


def tenant_in_folder(folder: Path, name: str = "acme") -> Tenant:
    return Tenant(LocalStore(folder), name)


def fill(store: Tenant) -> None:
    """What is not to be seen. The lease is kept."""
    lease = store.acquire("s")
    journal = store.journal(lease, 0)
    journal.append(b"of somebody else;")
    for name in ("best", own_name()):
        put(store, name, "elses")


class TestTenantInMemory(StoreContract, FencingContract, RestoredContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        MemoryStore("memory://tenants").forget()
        fill(tenant_in_memory("other"))
        yield tenant_in_memory
        MemoryStore("memory://tenants").forget()

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        return in_memory("memory://tenants")


class TestTenantInFolder(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        fill(tenant_in_folder(tmp_path / "checkpoints", "acm"))
        return partial(tenant_in_folder, tmp_path / "checkpoints")
