"""Patience: a question that changes nothing is asked again while its server is away.

A restart of the server is no failure of the task that happened to ask. Not here: commits, which are
sent again under their number (redis.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.links.complaints import translated

log = logging.getLogger("graflow_ckpt.sessions")

T = TypeVar("T")

LONGEST = 1.0
"""Seconds between two times at most."""


def patiently(ask: Callable[[], T], address: str, session: str, seconds: float) -> T:
    """The answer; ServerGone if there is none after so many seconds."""
    deadline, pause = None, 0.02
    while True:
        try:
            with translated(address):
                return ask()
        except ServerGone as error:
            if deadline is None:
                log.warning("session %s waits: %s", session, error, extra={"session": session})
                deadline = monotonic() + seconds
            elif monotonic() > deadline:
                raise
        sleep(pause)
        pause = min(pause * 2, LONGEST)
