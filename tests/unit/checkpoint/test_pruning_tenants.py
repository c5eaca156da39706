"""Retention per tenant: each keeps its own, and what one keeps costs no other one a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.checkpoint.retention import KeepLast, KeepWithin, OfAll
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.memory import MemoryStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line, save


@pytest.fixture(params=["memory://tenants-kept", "sqlite:///{}/kept.db"])
def tenants(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[CheckpointStore, CheckpointStore]]:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    address = str(request.param).format(tmp_path)
    yield open_store(f"tenant.acme+{address}"), open_store(f"tenant.beta+{address}")
    MemoryStore("memory://tenants-kept").forget()


def test_each_tenant_has_its_own_last_ones(tenants: tuple[CheckpointStore, CheckpointStore]) -> None:
    acme, beta = tenants
    line(beta, "s", 3)
    line(acme, "s", 3)
    save(acme, "t", 4)

    gone = CheckpointManager.prune(OfAll(KeepLast(2, per="tenant")), store=acme.url)

    assert len(gone.cuts) == 2
    assert left(acme) == ["s3", "t4"]
    assert left(beta) == ["s1", "s2", "s3"]


def test_a_budget_is_of_one_tenant(tenants: tuple[CheckpointStore, CheckpointStore]) -> None:
    acme, beta = tenants
    line(acme, "s", 2)
    line(beta, "s", 2)

    assert CheckpointManager.prune(KeepWithin(kb=20, per="tenant"), store=beta.url).cuts == ()
    CheckpointManager.prune(KeepWithin(kb=1, per="tenant"), store=acme.url)

    assert left(acme) == ["s2"]  # the newest good one of a session that can go on
    assert left(beta) == ["s1", "s2"]
