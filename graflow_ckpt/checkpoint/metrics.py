"""Metrics of a store as one dict, for those who collect them themselves. No pickle is opened.

Prometheus has them under its own names (interfaces/observers/prometheus.py), people by `checkpoints stats`.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Final

from graflow_ckpt.checkpoint.census import census
from graflow_ckpt.checkpoint.inventory import inventory
from graflow_ckpt.stores import Place, address_of, open_store

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
