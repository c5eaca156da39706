"""An audit: what in a store belongs to no checkpoint, and what checkpoints lack. Nothing is changed.

It looks at names and sizes: a checkpoint whose bytes were changed in place is found by `verify`. What it
tells is a picture of a moment; a save that is under way may be in it where its writer cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from graflow_ckpt.checkpoint.inventory import cut_of
from graflow_ckpt.checkpoint.model import Document, parse
from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound, UnknownKey
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.names import META, PARTS, contents_in_order
from graflow_ckpt.stores.strays import strays

ADVICE: Final = {
    "unreadable": "its metadata is damaged: delete it, or copy it from a good store",
    "locked": "it is encrypted with a key that is not here",
    "lacking": "a part is not there, or has another size: delete it, or copy it from a good store",
    "part": "nothing refers to it: to be deleted by hand, if no copy of its meta is to be had",
    "staged": "a save was never committed: the next run of the session takes it away",
    "loose": "a save was never committed: the next run of the session takes it away",
    "journal": "no checkpoint of that session is here: checkpoints delete SESSION, or it is run again",
    "foreign": "nothing that this package writes",
}


@dataclass(frozen=True, slots=True)
class Orphan:
    """One thing that does not belong, or does not hold together."""

    kind: str
    name: str
    size: int = 0
    session: str = ""
    why: str = ""

    @property
    def advice(self) -> str:
        return ADVICE[self.kind]


@dataclass(frozen=True, slots=True)
class Audit:
    """Of one store. `whole`: whether it could be looked into below the protocol."""

    checkpoints: int
    orphans: tuple[Orphan, ...]
    whole: bool

    @property
    def size(self) -> int:
        return sum(orphan.size for orphan in self.orphans)


def audit(store: CheckpointStore, seen: Callable[[str], None] = lambda path: None) -> Audit:
    """Look at all of it."""
    count = 0
    found: list[Orphan] = []
    for path, raw in store.list():
        count += 1
        found += _of_checkpoint(store, path, raw)
        seen(path)
    below = strays(store)
    for stray in below or ():
        found.append(Orphan(stray.kind, stray.name, stray.size, stray.session))
    return Audit(count, tuple(found), below is not None)


def _of_checkpoint(store: CheckpointStore, path: str, raw: bytes) -> Iterator[Orphan]:
    cut = cut_of(path, raw)
    if cut is None:
        yield _unreadable(store, path, raw)
        return
    meta = parse(path, raw, f".{META}")
    for part in PARTS:
        if part == META:
            continue
        why = _lack(store, path, meta, part)
        if not why:
            continue
        if not _is_still(store, path, raw):
            return
        yield Orphan("lacking", path, cut.size, cut.session, f"{part}: {why}")
    for name in contents_in_order(raw):
        if not _is_held(store, path, name, str(meta.get("stage", ""))) and _is_still(store, path, raw):
            yield Orphan("lacking", path, cut.size, cut.session, f"content {name} is not there")


def _is_still(store: CheckpointStore, path: str, raw: bytes) -> bool:
    """Whether it was neither written anew nor deleted while it was looked at."""
    with suppress(CheckpointError):
        return store.meta(path) == raw
    return False


def _is_held(store: CheckpointStore, path: str, name: str, stage: str) -> bool:
    if store.contents is None:
        return False
    try:
        store.contents.open(path, name, stage).close()
    except CheckpointError:
        return False
    return True


def _unreadable(store: CheckpointStore, path: str, raw: bytes) -> Orphan:
    try:
        store.meta(path)
    except UnknownKey:
        return Orphan("locked", path, len(raw))
    except CheckpointError:
        pass
    return Orphan("unreadable", path, len(raw))


def _lack(store: CheckpointStore, path: str, meta: Document, part: str) -> str:
    try:
        source = store.open(path, part, str(meta.get("stage", "")))
    except CheckpointNotFound:
        return "gone"
    except CheckpointError as error:
        return error.message
    try:
        size, said = source.size, (meta.get("parts") or {}).get(part, {}).get("size")
        return "" if size == said else f"it has {size} bytes, and {said} were written"
    finally:
        source.close()
