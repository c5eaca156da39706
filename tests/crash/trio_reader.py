"""A trio of a test's own making, and a reader that tells which one it found.

The parts name the checkpoint that they belong to all through, and meta has their digests; the
reader does what the real one does, by the store's public calls only.
"""

from __future__ import annotations

import json
import zlib

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.core.protocols import PartWriter, Sink
from graflow_ckpt.stores.files.store import LocalStore

NOTHING = "nothing"
CORRUPT = "corrupt"


def parts(tag: str, size: int = 40) -> list[tuple[str, PartWriter]]:
    """The parts of checkpoint `tag`, whose staging id is the tag."""
    bodies = {part: (f"{tag} {part} " * size)[:size].encode() for part in ("pkl", "state.json")}
    meta = json.dumps(
        {"stage": tag, "sums": {part: [size, zlib.crc32(body)] for part, body in bodies.items()}}
    )

    def writer(data: bytes) -> PartWriter:
        def write(sink: Sink) -> None:
            sink.write(data)

        return write

    return [(part, writer(body)) for part, body in bodies.items()] + [("meta.json", writer(meta.encode()))]


def read(store: LocalStore, path: str, tries: int = 50) -> str:
    """The tag of the checkpoint at `path`, NOTHING, or CORRUPT."""
    for _ in range(tries):
        try:
            raw = store.meta(path)
        except CheckpointNotFound:
            return NOTHING
        try:
            meta = json.loads(raw)
            if all(
                _sum(store, path, part, meta["stage"]) == tuple(found) for part, found in meta["sums"].items()
            ):
                return str(meta["stage"])
        except (ValueError, CheckpointCorrupt, CheckpointNotFound):
            pass
        if _meta_or_none(store, path) == raw:
            return CORRUPT
    return CORRUPT


def read_naively(store: LocalStore, path: str) -> str:
    """What a reader finds that looks under the final names only."""
    try:
        found = json.loads(store.meta(path))
        if all(_sum(store, path, part, "") == tuple(found["sums"][part]) for part in found["sums"]):
            return str(found["stage"])
    except CheckpointNotFound:
        return NOTHING
    except ValueError:
        pass
    return CORRUPT


def _sum(store: LocalStore, path: str, part: str, stage: str) -> tuple[int, int]:
    source = store.open(path, part, stage)
    try:
        buffer = bytearray(source.size + 1)
        size = source.readinto(memoryview(buffer))
        return size, zlib.crc32(buffer[:size])
    finally:
        source.close()


def _meta_or_none(store: LocalStore, path: str) -> bytes | None:
    try:
        return store.meta(path)
    except CheckpointNotFound:
        return None
