"""Stores with checkpoints of any age and status in them, for tests of what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import metadata_of
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program.program import Program, current_tasks, describe, pack_code
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from tests.unit.checkpoint import trios

_graph = trios.graph()
_program = Program(describe(_graph, current_tasks(_graph)), pack_code(_graph), "prog.py", ("prog.py",), "w")


def save(
    store: CheckpointStore,
    session: str,
    sequence: int,
    *,
    days: float = 0,
    status: str = "running",
    user: dict[str, Any] | None = None,
    cause: str = "policy",
    name: str = "",
    lease: Lease | None = None,
    going: Callable[[str, bytes], Iterable[str]] = lambda path, meta: (),
    **more: Any,
) -> CheckpointMetadata:
    """One checkpoint that is so many days old; `more`: other fields of its metadata."""
    snapshot = capture(trios.state(session))
    snapshot.facts.update({"epoch": more.pop("epoch", 1), "status": status, "steps": sequence})
    path = f"{store.folder}/{name or f'session_{session}_step_{sequence}_17-{sequence}.pkl'}"
    metadata = metadata_of(snapshot, _program, path=path, sequence=sequence, cause=cause, user=user)
    metadata.created_at = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    for field, value in more.items():
        setattr(metadata, field, value)
    along = partial(going, path)
    return archive.save(store, trios.RING, lease, snapshot, _program, metadata, going=along)


def line(store: CheckpointStore, session: str, count: int, **more: Any) -> list[CheckpointMetadata]:
    return [save(store, session, sequence, **more) for sequence in range(1, count + 1)]


def left(store: CheckpointStore) -> list[str]:
    """What is there: session and sequence, as `s3`."""
    import json

    metas = [json.loads(raw) for _, raw in store.list()]
    return sorted(f"{meta['session_id']}{meta['sequence']}" for meta in metas)
