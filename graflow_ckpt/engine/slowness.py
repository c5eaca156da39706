"""Slow saves and loads: a line in the log, once per session, when one took longer than it may.

Once, since a store that is slow is slow each time; how slow is in the metrics of each save.
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger("graflow_ckpt.checkpoint")

VARIABLE = "GRAFLOW_CKPT_SLOW_SAVE"
DEFAULT = 0.1


def slow_after() -> float:
    """Seconds, as the environment has them. What is no number there is said, and not believed."""
    text = os.environ.get(VARIABLE, "").strip()
    try:
        return float(text) if text else DEFAULT
    except ValueError:
        log.warning("%s=%r is no number of seconds; %s counts", VARIABLE, text, DEFAULT)
        return DEFAULT


def tell(doing: str, seconds: float, path: str, session: str, limit: float) -> bool:
    """Log it if it was slow; whether it was."""
    if seconds <= limit:
        return False
    log.warning(
        "SLOW CHECKPOINT %s: %.2fms for %s (more than %.0fms; said once per session)",
        doing,
        seconds * 1000,
        path,
        limit * 1000,
        extra={"session": session},
    )
    return True
