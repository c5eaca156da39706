"""The bodies of the peers' tasks. Nothing heavy is imported: a forked RQ worker imports this once per job.

Not here: chains, for which each peer has its own way.
"""

from __future__ import annotations

import time

SPIN = 0.005  # seconds of CPU time


def noop() -> None:
    """The body of most tasks here."""


def given(number: int, name: str) -> None:
    """The same with two arguments."""


def stamp() -> float:
    """When the body began; this clock is the same in all processes of a machine."""
    return time.monotonic()


def spin() -> None:
    """5 ms of CPU time of this thread: what a worker's other threads use is not the task's."""
    end = time.thread_time() + SPIN
    while time.thread_time() < end:
        pass
