"""The inventory of a store: what its checkpoints say of themselves, unverified. No pickle is opened.

Good for counting, for listing and for saying which ones are too many; before something is deleted
for that, pruning.py verifies what is to be kept instead. What cannot be read is counted, and left
to the operator.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from graflow_ckpt.checkpoint.model import (
    COUNTS,
    Document,
    document_of,
    lacking,
    lines_in,
    named,
    parse,
    size_of,
)
from graflow_ckpt.checkpoint.retention import REQUESTED, WAITS, Cut, bytes_of, shared_in
from graflow_ckpt.core.errors import BadSessionId, CheckpointError, CheckpointNotFound, UnknownKey
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import CheckpointStore, Readable
from graflow_ckpt.stores import Place, address_of, open_store
from graflow_ckpt.stores.around.encodings import Metas
from graflow_ckpt.stores.files.leftovers import strays
from graflow_ckpt.stores.names import META, PARTS, contents_in

log = logging.getLogger("graflow_ckpt.checkpoint")

UNREADABLE = "unreadable"
"""The status of a checkpoint whose meta is damaged."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The checkpoints of a store. Of the `unreadable` only the path is known, and the session in its name."""

    cuts: tuple[Cut, ...]
    unreadable: tuple[Cut, ...] = ()
    top: tuple[str, bytes] | None = None  # the last that was written

    @property
    def size(self) -> int:
        return bytes_of(self.cuts)


def inventory(store: Readable, session: str | None = None) -> Inventory:
    """Return the inventory of the whole store, or of one session."""
    cuts: list[Cut] = []
    unreadable: list[Cut] = []
    metas = Metas(store)
    top: tuple[str, bytes] | None = None
    for path, raw in store.list(session):
        top = top or (path, raw)
        cut = cut_of(path, raw, metas)
        if cut is None:
            own, meta = named(path), document_of(raw) or {}
            session_of = own["session"] if own is not None else ""
            lacks = lacking(meta) if "schema_version" in meta else ()  # it may be of a later version
            unreadable.append(Cut(path, session_of, status=UNREADABLE, cause="", size=len(raw), lacks=lacks))
        elif session in (None, cut.session):  # else a copy of another one's, under this one's name
            cuts.append(cut)
    return Inventory(tuple(cuts), tuple(unreadable), top)


def cut_of(path: str, raw: bytes, metas: Metas | None = None) -> Cut | None:
    """Return what a meta says; None if it cannot be read. `metas`: those of its store, else what is in the
    open counts."""
    meta = document_of(raw)
    if meta is not None and metas is not None:
        meta = metas.shown(path, meta)
    if meta is None:
        return None
    try:
        held, place = meta.get("contents"), metas.store.contents if metas is not None else None
        scope = place.scope(path) if held and place is not None else ""
        return Cut(
            path=path,
            session=check_session_id(meta["session_id"]),
            workflow=_text(meta.get("workflow")),
            id=_text(meta.get("checkpoint_id")),
            epoch=_whole(meta["epoch"]),
            sequence=_whole(meta["sequence"]),
            created=seconds(meta.get("created_at")),
            status=_text(meta.get("status")),
            cause=_text(meta.get("cause")),
            size=len(raw) + size_of(meta.get("parts")),
            shared=shared_in(held, scope),
            metrics=_numbers(meta.get("user_metadata")),
            parent=_text(meta.get("parent")) or None,
            origin=_text(meta.get("origin")) or None,
            lacks=lacking(meta),
            rewinds=lines_in(meta),
            run=_whole(meta.get("run", 1)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, BadSessionId):
        return None


def seconds(created_at: object) -> float:
    """Return a time as metadata have it, as Unix time; what is no time counts as new."""
    try:
        made = datetime.fromisoformat(str(created_at))
        return (made if made.tzinfo is not None else made.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return float("inf")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int:
    if type(value) is not int or value not in COUNTS:
        raise TypeError(value)
    return value


def _numbers(user: object) -> Mapping[str, float]:
    """Return the numbers. Booleans are none here, and what is no number cannot be compared with one."""
    if not isinstance(user, dict):
        return {}
    return {
        name: value
        for name, value in user.items()
        if type(value) in (int, float) and value == value  # NaN is not
    }


# --- metrics ----------------------------------------------------------------------------


_HOUR, _DAY = 3600.0, 86400.0
AGES = (("< 1 hour", _HOUR), ("1-24 hours", _DAY), ("1-7 days", 7 * _DAY), ("> 7 days", float("inf")))
"""Buckets, and the age from which on it is the next one."""


@dataclass(frozen=True, slots=True)
class Count:
    """A count of some checkpoints; oldest and newest only if a time can be read."""

    checkpoints: int
    sessions: int
    size: int  # what several have in common counts once
    oldest: Cut | None
    newest: Cut | None
    largest: Cut | None


@dataclass(frozen=True, slots=True)
class Census:
    """A census of a store."""

    total: Count
    workflows: dict[str, Count]  # those with the most bytes first
    ages: dict[str, int]
    statuses: dict[str, int]
    paused: int
    requested: int  # by tasks
    automatic: int
    unreadable: tuple[Cut, ...]


def census(of: Inventory, now: float) -> Census:
    groups: dict[str, list[Cut]] = {}
    for cut in of.cuts:
        groups.setdefault(cut.workflow, []).append(cut)
    workflows = {name: _count(cuts) for name, cuts in groups.items()}
    ages = dict.fromkeys((name for name, _ in AGES), 0)
    for cut in of.cuts:
        ages[next(name for name, limit in AGES if now - cut.created < limit or limit == AGES[-1][1])] += 1
    requested = sum(cut.cause == REQUESTED for cut in of.cuts)
    return Census(
        _count(of.cuts),
        dict(sorted(workflows.items(), key=lambda item: (-item[1].size, item[0]))),
        ages,
        dict(Counter(cut.status for cut in of.cuts).most_common()),
        sum(cut.status in WAITS for cut in of.cuts),
        requested,
        len(of.cuts) - requested,
        of.unreadable,
    )


def _count(cuts: Sequence[Cut]) -> Count:
    timed = sorted((cut for cut in cuts if cut.created < float("inf")), key=lambda cut: cut.created)
    return Count(
        len(cuts),
        len({cut.session for cut in cuts}),
        bytes_of(cuts),
        timed[0] if timed else None,
        timed[-1] if timed else None,
        max(cuts, key=lambda cut: bytes_of([cut]), default=None),
    )


LARGE_MB: Final = 1000
"""From here on an operator should look at what is kept."""


def get_checkpoint_metrics(store: Place = "checkpoints") -> dict[str, Any]:  # Any: numbers, and dicts of them
    """Return how many checkpoints there are, of which workflows, and how old."""
    now = time.time()
    found = census(inventory(open_store(address_of(store))), now)
    oldest, newest = found.total.oldest, found.total.newest
    return {
        "total_checkpoints": found.total.checkpoints,
        "paused_checkpoints": found.paused,
        "automatic_checkpoints": found.total.checkpoints - found.paused,
        "workflows": {name: count.checkpoints for name, count in found.workflows.items()},
        "age_distribution": found.ages,
        "oldest_checkpoint_age_seconds": now - oldest.created if oldest is not None else 0,
        "newest_checkpoint_age_seconds": now - newest.created if newest is not None else 0,
    }


def get_db_metrics(db_path: str | os.PathLike[str]) -> dict[str, float]:
    """Return the size of a database's file, and when it was changed; warn from 1 GB on."""
    found = os.stat(db_path)
    size_mb = found.st_size / (1024 * 1024)
    if size_mb > LARGE_MB:
        log.warning("Database size exceeds 1GB - consider cleanup (%s: %.0f MB)", os.fspath(db_path), size_mb)
    return {"size_bytes": found.st_size, "size_mb": size_mb, "last_modified": found.st_mtime}


# --- an audit --------------------------------------------------------------------------

ADVICE: Final = {
    "unreadable": "its metadata is damaged: delete it, or copy it from a good store",
    "locked": "it is encrypted with a key that is not here",
    "lacking": "a part is not there, or has another size: delete it, or copy it from a good store",
    "part": "nothing refers to it: to be deleted by hand, if no copy of its meta is to be had",
    **dict.fromkeys(
        ("staged", "loose"), "a save was never committed: the next run of the session deletes it"
    ),
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
    """The audit of one store. `whole`: whether it could be looked into below the protocol."""

    checkpoints: int
    orphans: tuple[Orphan, ...]
    whole: bool

    @property
    def size(self) -> int:
        return sum(orphan.size for orphan in self.orphans)


def audit(store: CheckpointStore, seen: Callable[[str], None] = lambda path: None) -> Audit:
    """Report what in a store belongs to no checkpoint, and what checkpoints lack. Nothing is changed.

    It looks at names and sizes: a checkpoint whose bytes were changed in place is found by `verify`. What it
    reports is the state of a moment; a save under way may be in it where its writer is not known.
    """
    count, metas = 0, Metas(store)
    found: list[Orphan] = []
    for path, raw in store.list():
        count += 1
        found += _of_checkpoint(store, metas, path, raw)
        seen(path)
    below = strays(store)
    for stray in below or ():
        found.append(Orphan(stray.kind, stray.name, stray.size, stray.session))
    return Audit(count, tuple(found), below is not None)


def _of_checkpoint(store: CheckpointStore, metas: Metas, path: str, raw: bytes) -> Iterator[Orphan]:
    cut = cut_of(path, raw, metas)
    if cut is None:
        yield _unreadable(metas, path, raw)
        return
    meta = parse(path, raw, f".{META}")
    stage = str(meta.get("stage", ""))
    whys = [f"{part}: {why}" for part in PARTS if part != META and (why := _lack(store, path, meta, part))]
    whys += [
        f"content {name} is not there" for name in contents_in(raw) if not _is_held(store, path, name, stage)
    ]
    if whys and _is_still(store, path, raw):
        for why in whys:
            yield Orphan("lacking", path, cut.size, cut.session, why)


def _is_still(store: CheckpointStore, path: str, raw: bytes) -> bool:
    """Return whether it was neither written again nor deleted while it was looked at."""
    with suppress(CheckpointError):
        return store.meta(path) == raw
    return False


def _is_held(store: CheckpointStore, path: str, name: str, stage: str) -> bool:
    with suppress(CheckpointError):
        if store.contents is not None:
            store.contents.open(path, name, stage).close()
            return True
    return False


def _unreadable(metas: Metas, path: str, raw: bytes) -> Orphan:
    try:
        metas.revealed(path, parse(path, raw, f".{META}"))
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
