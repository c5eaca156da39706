"""Checkpoints for tests that hold contents: put, read and asked for as the layers above do it.

Not here: what a store has to promise of them (store_contents.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.core.protocols import CheckpointStore, Contents, Lease, Saving, Sink
from graflow_ckpt.testing.trios import all_of, meta_of, path_of, writer

PIECE = 4 << 20
"""What contents are handed over in, but for the last piece."""


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content(number: int, size: int = 70_000) -> bytes:
    return (b"%08d;" % number * (size // 9 + 1))[:size]


def pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


def contents_of(store: CheckpointStore) -> Contents:
    assert store.contents is not None, "this contract is for stores that have contents"
    return store.contents


def meta_holding(stage: str, names: Iterable[str], *, session: str = "s", sequence: int = 1) -> bytes:
    document = json.loads(meta_of(stage, session=session, sequence=sequence))
    document["contents"] = [{"at": 0, "size": 1, "name": name} for name in names]
    return json.dumps(document).encode()


def put_holding(
    store: CheckpointStore,
    name: str,
    stage: str,
    contents: Sequence[bytes],
    *,
    lease: Lease | None = None,
    sequence: int = 1,
) -> str:
    """Put a trio that holds contents, as a save does it; the path."""
    path = path_of(store, name)
    by_name = {name_of(data): data for data in contents}
    savings: list[Saving] = []  # a save begins it when it finds the first large value

    def values(sink: Sink) -> None:
        saving = contents_of(store).saving(path, lease=lease, stage=stage)
        savings.append(saving)
        there = saving.hold(list(by_name))
        for called, data in by_name.items():
            if called not in there:
                saving.add(called, len(data), pieces(data))
        saving.settle()
        sink.write(stage.encode())

    session = lease.session if lease is not None else "s"
    meta = meta_holding(stage, by_name, session=session, sequence=sequence)
    parts = [("pkl", values), ("state.json", writer(b"{}")), ("meta.json", writer(meta))]
    try:
        store.put(path, parts, lease=lease, stage=stage)
    finally:
        for saving in savings:
            saving.end()
    return path


def held(store: CheckpointStore, path: str) -> list[bytes]:
    """What a checkpoint holds, read as the layers above read."""
    while True:
        raw = store.meta(path)
        meta = json.loads(raw)
        names = [entry["name"] for entry in meta.get("contents", ())]
        try:
            return [all_of(contents_of(store).open(path, name, meta["stage"])) for name in names]
        except (CheckpointCorrupt, CheckpointNotFound):
            if store.meta(path) == raw:
                raise


def there(store: CheckpointStore, contents: Iterable[bytes], name: str = "asking") -> set[bytes]:
    """Which of these a save of that name would find: a store may keep those of a session by themselves."""
    by_name = {name_of(data): data for data in contents}
    saving = contents_of(store).saving(path_of(store, name), lease=None, stage="asking")
    try:
        return {by_name[found] for found in saving.hold(list(by_name))}
    finally:
        saving.end()
