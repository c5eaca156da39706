"""Bars in seconds, on a machine that does other work as well.

`took < stretched(1.0)` asks for a second of an idle machine. Where others have the cores, the bar is
longer by as much as a spin takes longer than the time of a core that it gets. Not for hangs: those have
fixed limits, `LONG` where nothing else is said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LONG = 30.0  # seconds: only a hang takes so long
SPIN = 0.05  # seconds of a core, some ten slices of the scheduler
T = TypeVar("T")


def stretched(seconds: float) -> float:
    """Return so many seconds of an idle machine in seconds of this one, as busy as it is now."""
    began, spent = time.perf_counter(), time.thread_time()
    while time.thread_time() - spent < SPIN:
        pass
    return seconds * max(1.0, (time.perf_counter() - began) / SPIN)


def comes(found: Callable[[], T], within: float = LONG) -> T:
    """Return what `found` returns once it returns something; its last answer if it never does."""
    deadline = time.monotonic() + within
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return value


def until(found: Callable[[], T], within: float = LONG) -> T:
    """Return what `found` returns once it returns something."""
    value = comes(found, within)
    assert value, "it did not come to that"
    return value
