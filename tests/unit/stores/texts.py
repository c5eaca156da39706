"""Trios of which each part is one text, for tests that look at how a keyed store keeps them.

Not here: what the layers above write and read, with contents (tests/trios.py).
"""

from __future__ import annotations

import json
from typing import Any

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from tests.trios import Parts, all_of, writer


def parts(text: str, *, session: str = "s", size: int = 1, **more: Any) -> Parts:
    """Three parts that hold the same text, `size` times in the first."""
    meta = json.dumps({"session_id": session, "stage": text, **more}).encode()
    written = {"pkl": text.encode() * size, "state.json": text.encode(), "meta.json": meta}
    return [(name, writer(data)) for name, data in written.items()]


def put(store: CheckpointStore, name: str, text: str, lease: Lease | None = None, **more: Any) -> str:
    path = f"{store.folder}/{name}"
    store.put(path, parts(text, **more), lease=lease, stage=text)
    return path


def read(store: CheckpointStore, path: str) -> tuple[str, bytes, bytes]:
    """Stage, pkl and state as one checkpoint; looks again while somebody writes it anew."""
    while True:
        meta = store.meta(path)
        stage = json.loads(meta)["stage"]
        try:
            values, state = (all_of(store.open(path, part, stage)) for part in ("pkl", "state.json"))
            return stage, values, state
        except CheckpointCorrupt:
            if store.meta(path) == meta:
                raise


def names(store: CheckpointStore, *args: str | None) -> list[str]:
    """As they are listed."""
    return [path.rpartition("/")[2] for path, _ in store.list(*args)]


def keys(store: Any, prefix: str = "") -> list[str]:
    """What a bucket has."""
    return [entry.key for entry in store.bucket.list(prefix)]


def own_name(number: int = 1, session: str = "s") -> str:
    return f"session_{session}_step_1_1700000000-{number}.pkl"
