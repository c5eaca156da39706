"""Checkpoints for tests: their parts follow from their stage, so that a mix of two is seen.

Not here: real ones. A store does not look into parts, and these are cheaper.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.core.protocols import CheckpointStore, Lease, PartWriter, Sink, Source

Parts = list[tuple[str, PartWriter]]


class Torn(AssertionError):
    """A meta was found whose parts are not the ones that were written with it."""


@dataclass(frozen=True, slots=True)
class Trio:
    """What was read under one path: the three parts, which belong together."""

    stage: str
    values: bytes
    state: bytes
    meta: bytes


def writer(data: bytes) -> PartWriter:
    def write(sink: Sink) -> None:
        with memoryview(data) as view:
            for at in range(0, len(view), 100_000):
                sink.write(view[at : at + 100_000])

    return write


def values_of(stage: str, size: int = 64) -> bytes:
    return (f"values of {stage};".encode() * (size // 10 + 1))[:size]


def meta_of(
    stage: str,
    *,
    session: str = "s",
    sequence: int = 1,
    size: int = 64,
    facts: Mapping[str, str] | None = None,
) -> bytes:
    """Like a real one as far as stores may look: JSON, with the session and the stage in it."""
    document = {
        "schema_version": "1.0",
        "session_id": session,
        "sequence": sequence,
        "epoch": 1,
        "created_at": "2026-01-01T00:00:00+00:00",
        "status": "running",
        "stage": stage,
        "sizes": {"pkl": size},
        "digests": {"pkl": _digest(values_of(stage, size)), "state.json": _digest(stage.encode())},
    }
    return json.dumps({**document, **(facts or {})}).encode()


def parts_of(stage: str, *, session: str = "s", sequence: int = 1, size: int = 64) -> Parts:
    return [
        ("pkl", writer(values_of(stage, size))),
        ("state.json", writer(stage.encode())),
        ("meta.json", writer(meta_of(stage, session=session, sequence=sequence, size=size))),
    ]


def path_of(store: CheckpointStore, name: str) -> str:
    return f"{store.folder}/{name}" if store.folder else name


def own_name(session: str = "s", sequence: int = 1) -> str:
    """The name that a session gives to its checkpoints."""
    return f"session_{session}_step_{sequence}_1700000000-{sequence}.pkl"


def put(
    store: CheckpointStore,
    name: str,
    stage: str,
    *,
    lease: Lease | None = None,
    session: str = "s",
    sequence: int = 1,
    size: int = 64,
) -> str:
    """Put a trio; the path that it was put under."""
    path = path_of(store, name)
    parts = parts_of(stage, session=session, sequence=sequence, size=size)
    store.put(path, parts, lease=lease, stage=stage)
    return path


def put_own(store: CheckpointStore, lease: Lease, sequence: int, stage: str = "") -> str:
    """Put a checkpoint as a session does it."""
    name, stage = own_name(lease.session, sequence), stage or f"n{sequence}"
    return put(store, name, stage, lease=lease, session=lease.session, sequence=sequence)


def put_meta(store: CheckpointStore, name: str, meta: bytes, stage: str = "alone") -> str:
    """Put something that has a meta and no more."""
    path = path_of(store, name)
    store.put(path, [("meta.json", writer(meta))], lease=None, stage=stage)
    return path


def read(store: CheckpointStore, path: str) -> Trio:
    """As the layers above read: meta is believed, and looked at again if something does not fit it."""
    while True:
        meta = store.meta(path)
        found = _parsed(path, meta)
        stage, digests = found["stage"], found["digests"]
        try:
            values, state = (all_of(store.open(path, part, stage)) for part in ("pkl", "state.json"))
        except (CheckpointCorrupt, CheckpointNotFound) as error:
            if is_still(store, path, meta):
                raise Torn(f"{path} has a meta of stage {stage!r}, and lacks a part: {error}") from error
            continue
        if {"pkl": _digest(values), "state.json": _digest(state)} == digests:
            return Trio(stage, values, state, meta)
        if is_still(store, path, meta):
            raise Torn(f"{path} has a meta of stage {stage!r}, and parts of something else")


def _parsed(path: str, meta: bytes) -> Any:
    try:
        return json.loads(meta)
    except ValueError:
        raise Torn(f"{path} has a meta that nobody has written: {meta[:80]!r}") from None


def is_still(store: CheckpointStore, path: str, meta: bytes) -> bool:
    """Whether that meta is there; CheckpointNotFound goes on to the reader: it was deleted meanwhile."""
    return store.meta(path) == meta


def all_of(source: Source, step: int = 1 << 20) -> bytes:
    """Everything, in pieces; closes the source."""
    try:
        found = bytearray()
        buffer = memoryview(bytearray(step))
        while count := source.readinto(buffer):
            found += buffer[:count]
        return bytes(found)
    finally:
        source.close()


def listed(store: CheckpointStore, session: str | None = None, pattern: str | None = None) -> list[str]:
    """The names that are listed, in that order, without a suffix."""
    return [named(path) for path, _ in store.list(session, pattern)]


def named(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".pkl")


@contextmanager
def owning(store: CheckpointStore, session: str = "s", *, take_over: bool = False) -> Iterator[Lease]:
    lease = store.acquire(session, take_over=take_over)
    try:
        yield lease
    finally:
        lease.release()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
