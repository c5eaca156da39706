"""Trios that say what they are, for the tests of stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import CheckpointStore, Lease, Sink, Source

Parts = list[tuple[str, Callable[[Sink], None]]]


def parts(text: str, *, session: str = "s", size: int = 1, **more: Any) -> Parts:
    """Three parts that hold the same text, `size` times in the first."""
    meta = json.dumps({"session_id": session, "stage": text, **more}).encode()
    return [
        ("pkl", lambda sink: _write(sink, text.encode() * size)),
        ("state.json", lambda sink: _write(sink, text.encode())),
        ("meta.json", lambda sink: _write(sink, meta)),
    ]


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


def all_of(source: Source) -> bytes:
    buffer = memoryview(bytearray(source.size))
    at = 0
    while count := source.readinto(buffer[at : at + 1_000_003]):
        at += count
    source.close()
    return bytes(buffer[:at])


def names(store: CheckpointStore, *args: str | None) -> list[str]:
    """As they are listed."""
    return [path.rpartition("/")[2] for path, _ in store.list(*args)]


def keys(store: Any, prefix: str = "") -> list[str]:
    """What a bucket has."""
    return [entry.key for entry in store._opened().list(prefix)]


def own_name(number: int = 1, session: str = "s") -> str:
    return f"session_{session}_step_1_1700000000-{number}.pkl"


def _write(sink: Sink, data: bytes) -> None:
    for at in range(0, len(data), 100_000):
        sink.write(data[at : at + 100_000])
