"""Counting: a census of a store, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from graflow_ckpt.checkpoint.inventory import Census, Count, Inventory, census, inventory
from graflow_ckpt.checkpoint.retention import Cut, bytes_of
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.manner import Document
from graflow_ckpt.stores import open_store

COLUMNS = ("workflow", "sessions", "checkpoints", "size", "oldest", "newest", "largest")


def taken(store: str, workflow: str | None) -> Census:
    """Of what is in the store now."""
    found = inventory(open_store(store))
    if workflow is not None:
        found = Inventory(tuple(cut for cut in found.cuts if cut.workflow == workflow))
    return census(found, time.time())


def document(found: Census) -> Document:
    return {
        **_count(found.total),
        "workflows": {name: _count(count) for name, count in found.workflows.items()},
        "ages": found.ages,
        "statuses": found.statuses,
        "paused": found.paused,
        "requested": found.requested,
        "automatic": found.automatic,
        "unreadable": [cut.path for cut in found.unreadable],
    }


def rows(found: Census) -> list[tuple[str, ...]]:
    """One for each workflow; the last one for all, if there are several."""
    made = [_row(name or "-", count) for name, count in found.workflows.items()]
    return made if len(made) < 2 else [*made, _row("all", found.total)]


def lines(found: Census) -> Iterator[str]:
    yield _field("ages", ", ".join(f"{name}: {count}" for name, count in found.ages.items()))
    yield _field("statuses", ", ".join(f"{name} {count}" for name, count in found.statuses.items()))
    yield _field("made", f"{found.requested} asked for by tasks, {found.automatic} automatic")
    for name in ("oldest", "newest", "largest"):
        cut: Cut | None = getattr(found.total, name)
        if cut is not None:
            what = words.size(bytes_of([cut])) if name == "largest" else _age(cut)
            yield _field(name, f"{cut.path} ({what})")
    for cut in found.unreadable:
        yield _field("unreadable", cut.path)


def _row(name: str, count: Count) -> tuple[str, ...]:
    largest = bytes_of([count.largest]) if count.largest is not None else 0
    return (
        name, str(count.sessions), str(count.checkpoints), words.size(count.size),
        _age(count.oldest), _age(count.newest), words.size(largest),
    )  # fmt: skip


def _count(count: Count) -> Document:
    return {
        "checkpoints": count.checkpoints, "sessions": count.sessions, "bytes": count.size,
        "oldest": _cut(count.oldest), "newest": _cut(count.newest), "largest": _cut(count.largest),
    }  # fmt: skip


def _cut(cut: Cut | None) -> Document | None:
    if cut is None:
        return None
    timed = cut.created < float("inf")
    made = datetime.fromtimestamp(cut.created, UTC).isoformat() if timed else None
    age = max(0.0, time.time() - cut.created) if timed else None
    size = bytes_of([cut])
    return {"path": cut.path, "session": cut.session, "created_at": made, "age": age, "bytes": size}


def _age(cut: Cut | None) -> str:
    return words.age(max(0.0, time.time() - cut.created) if cut is not None else None)


def _field(name: str, value: str) -> str:
    return f"  {name:<11} {value}"
