"""SIGTERM and Ctrl-C while a session runs.

The first one: start nothing more, finish what runs, cut, leave with status 75. The second one,
or the end of the grace period: leave at once; the last cut stands. Handlers are installed in
the main thread only, and the previous ones are put back.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from graflow_ckpt.core.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_RESORT = 5.0  # seconds that a body which swallows SystemExit is given after the grace period


class Stop:
    """Whether, and by which signal, the session was asked to stop."""

    def __init__(self, session: str, grace: float, stop: Callable[[], None]) -> None:
        self.signal: int | None = None
        self.stop = stop
        self._session = session
        self._grace = grace
        self._expired = False
        self._timer: threading.Timer | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            self._start_timer(self._grace)
            self.stop()
            name = signal.Signals(number).name
            _say(f"{name}: finishing what runs, then saving (again: leave at once; grace {self._grace:g} s)")
        elif self._expired or number != signal.SIGINT:
            raise Interrupted(f"Session {self._session} did not finish in its grace period.", self._session)
        else:
            raise KeyboardInterrupt

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        if self._expired:
            _say(f"session {self._session}: a task does not let go; leaving. The last checkpoint stands.")
            os._exit(75)
        self._expired = True
        self._start_timer(_LAST_RESORT)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def handled(stop: Stop) -> Iterator[None]:
    """The handlers are ours inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        stop.close()
        for number, handler in before.items():
            # None: it was set by something other than Python, which cannot be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _say(text: str) -> None:
    sys.stderr.write(f"graflow-ckpt: {text}\n")
    sys.stderr.flush()
