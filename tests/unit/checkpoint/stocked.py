"""Stores with checkpoints of any age and status in them, for tests of what is kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.core.protocols import CheckpointStore
from tests.unit.checkpoint import trios


def save(
    store: CheckpointStore,
    session: str,
    sequence: int,
    *,
    days: float = 0,
    status: str = "running",
    cause: str = "policy",
    name: str = "",
    **more: Any,
) -> CheckpointMetadata:
    """One checkpoint that is so many days old; `more`: as `trios.save` takes it."""
    path = f"{store.folder}/{name or f'session_{session}_step_{sequence}_17-{sequence}.pkl'}"
    created = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    return trios.save(
        Path(), path=path, store=store, session=session, sequence=sequence, cause=cause, created_at=created,
        facts={"status": status, "steps": sequence}, **more,
    )  # fmt: skip


def line(store: CheckpointStore, session: str, count: int, **more: Any) -> list[CheckpointMetadata]:
    return [save(store, session, sequence, **more) for sequence in range(1, count + 1)]


def left(store: CheckpointStore) -> list[str]:
    """What is there: session and sequence, as `s3`."""
    metas = [json.loads(raw) for _, raw in store.list()]
    return sorted(f"{meta['session_id']}{meta['sequence']}" for meta in metas)
