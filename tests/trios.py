"""Checkpoints for tests: their parts follow from their stage, so that a mix of two is seen.

Some hold contents, and are put, read and asked for as the layers above do it.
Not here: real ones. A store does not look into parts, and these are cheaper. What a store has to promise of
contents is in conformance/contracts/contents.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.core.protocols import CheckpointStore, Contents, Lease, PartWriter, Saving, Sink, Source

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
    drops: Iterable[str] = (),
) -> str:
    """Put a trio; the path that it was put under."""
    path = path_of(store, name)
    parts = parts_of(stage, session=session, sequence=sequence, size=size)
    store.put(path, parts, lease=lease, stage=stage, **_along(drops))
    return path


def _along(drops: Iterable[str]) -> dict[str, Any]:
    """Broken stores know of no `drops`, and are not to be convicted of that."""
    return {"drops": lambda: drops} if drops else {}


def put_own(
    store: CheckpointStore, lease: Lease, sequence: int, stage: str = "", drops: Iterable[str] = ()
) -> str:
    """Put a checkpoint as a session does it."""
    name, stage = own_name(lease.session, sequence), stage or f"n{sequence}"
    return put(store, name, stage, lease=lease, session=lease.session, sequence=sequence, drops=drops)


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
            if store.meta(path) == meta:
                raise Torn(f"{path} has a meta of stage {stage!r}, and lacks a part: {error}") from error
            continue
        if {"pkl": _digest(values), "state.json": _digest(state)} == digests:
            return Trio(stage, values, state, meta)
        if store.meta(path) == meta:
            raise Torn(f"{path} has a meta of stage {stage!r}, and parts of something else")


def _parsed(path: str, meta: bytes) -> Any:
    try:
        return json.loads(meta)
    except ValueError:
        raise Torn(f"{path} has a meta that nobody has written: {meta[:80]!r}") from None


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


# --- with contents -------------------------------------------------------------------------


PIECE = 4 << 20
"""What contents are handed over in, but for the last piece."""
ASKING = own_name(sequence=88_888)


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def called(name: str) -> str:
    """The name of a checkpoint in a test: an own one of the session: these share if any do."""
    return own_name(sequence=int.from_bytes(name.encode())).removesuffix(".pkl")


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
    drops: Iterable[str] = (),
) -> str:
    """Put a trio that holds contents, as a save does it; the path."""
    path = path_of(store, name)
    by_name = {name_of(data): data for data in contents}
    savings: list[Saving] = []  # a save begins it when it finds the first large value

    def values(sink: Sink) -> None:
        saving = contents_of(store).saving(path, lease=lease, stage=stage)
        savings.append(saving)
        there = saving.hold(list(by_name))
        for name, data in by_name.items():
            if name not in there:
                saving.add(name, len(data), pieces(data))
        saving.settle()
        sink.write(stage.encode())

    session = lease.session if lease is not None else "s"
    meta = meta_holding(stage, by_name, session=session, sequence=sequence)
    parts = [("pkl", values), ("state.json", writer(b"{}")), ("meta.json", writer(meta))]
    try:
        store.put(path, parts, lease=lease, stage=stage, **_along(drops))
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


def there(store: CheckpointStore, contents: Iterable[bytes], name: str = ASKING) -> set[bytes]:
    """Which of these a save of that name would find: a store may keep those of a session by themselves."""
    by_name = {name_of(data): data for data in contents}
    saving = contents_of(store).saving(path_of(store, name), lease=None, stage="asking")
    try:
        return {by_name[found] for found in saving.hold(list(by_name))}
    finally:
        saving.end()
