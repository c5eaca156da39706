"""Metrics of a store as one dict, for those who collect them themselves. No pickle is opened.

Prometheus has them under its own names (interfaces/observers/prometheus.py), people by `checkpoints stats`.

A census of a store: how many checkpoints there are, how old, how large, of which workflows.
From unverified metadata; no pickle is opened. Pure: the inventory is taken elsewhere, and so is the time.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from graflow_ckpt.checkpoint.inventory import Inventory, inventory
from graflow_ckpt.checkpoint.pruning import WAITS
from graflow_ckpt.checkpoint.retention import REQUESTED, Cut
from graflow_ckpt.checkpoint.sizes import bytes_of
from graflow_ckpt.stores import Place, address_of, open_store

_HOUR, _DAY = 3600.0, 86400.0
AGES = (("< 1 hour", _HOUR), ("1-24 hours", _DAY), ("1-7 days", 7 * _DAY), ("> 7 days", float("inf")))
"""Buckets, and the age from which on it is the next one."""


@dataclass(frozen=True, slots=True)
class Count:
    """Of some checkpoints; oldest and newest only if a time can be read."""

    checkpoints: int
    sessions: int
    size: int  # what several have in common counts once
    oldest: Cut | None
    newest: Cut | None
    largest: Cut | None


@dataclass(frozen=True, slots=True)
class Census:
    """Of a store."""

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


log = logging.getLogger("graflow_ckpt.checkpoint")

LARGE_MB: Final = 1000
"""From here on somebody should look at what is kept."""


def get_checkpoint_metrics(store: Place = "checkpoints") -> dict[str, Any]:  # Any: numbers, and dicts of them
    """How many checkpoints there are, of which workflows, and how old."""
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
    """The size of a database's file, and when it was changed; a warning from 1 GB on."""
    found = os.stat(db_path)
    size_mb = found.st_size / (1024 * 1024)
    if size_mb > LARGE_MB:
        log.warning("Database size exceeds 1GB - consider cleanup (%s: %.0f MB)", os.fspath(db_path), size_mb)
    return {"size_bytes": found.st_size, "size_mb": size_mb, "last_modified": found.st_mtime}
