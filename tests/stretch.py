"""Bars in seconds, on a machine that does other work as well.

`took < stretched(1.0)` asks for a second of an idle machine. Where others have the cores, the bar is
longer by as much as a spin takes longer than the time of a core that it gets. Not for hangs: those have
fixed limits.
"""

from __future__ import annotations

import time

SPIN = 0.05  # seconds of a core, some ten slices of the scheduler


def stretched(seconds: float) -> float:
    """Return so many seconds of an idle machine in seconds of this one, as busy as it is now."""
    began, spent = time.perf_counter(), time.thread_time()
    while time.thread_time() - spent < SPIN:
        pass
    return seconds * max(1.0, (time.perf_counter() - began) / SPIN)
