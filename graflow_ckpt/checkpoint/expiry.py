"""Expiry: what is said of a checkpoint that is not there because it was too old to be kept.

Told by the path alone, which has the time in it, and only where others of its session are: in another
folder than meant nothing has expired. Whether it went with its age or by hand nobody can know any more, so
the hint says both.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from graflow_ckpt.checkpoint.retention import PERIOD
from graflow_ckpt.core.errors import CheckpointExpired, CheckpointNotFound
from graflow_ckpt.core.protocols import Readable

_OWN: Final = re.compile(
    r"session_(?P<session>[A-Za-z0-9_-]{1,64})_step_\d+_(?P<made>\d{1,11})-\d+(\.pkl)?\Z"
)


def meta_of(store: Readable, path: str) -> bytes:
    """The meta of a checkpoint; if there is none, CheckpointExpired says so of one that was too old."""
    try:
        return store.meta(path)
    except CheckpointNotFound as error:
        raise expired(store, path) or error from None


def expired(store: Readable, path: str) -> CheckpointExpired | None:
    """What is to be said of a path at which nothing is; None: nothing is known of it."""
    own = _OWN.search(path)
    if own is None:
        return None
    ends = int(own["made"]) + PERIOD.period
    if ends > time.time() or next(iter(store.list(own["session"])), None) is None:
        return None
    return CheckpointExpired(
        f"Checkpoint {path} expired at {datetime.fromtimestamp(ends, UTC).isoformat()}. "
        f"Automatic checkpoints expire after {PERIOD.period:.0f} seconds.",
        hint="That is the default; keep= of its workflow or somebody by hand may have let it go earlier. "
        f"What is there: graflow-ckpt checkpoints list {own['session']}.",
        path=path,
        session=own["session"],
    )
