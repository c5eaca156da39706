"""SIGTERM and Ctrl-C while a session runs.

The first one: start nothing more, finish what runs, cut, leave with status 75. The second one,
or the end of the grace period: leave at once; the last cut is kept. Handlers are installed in
the main thread only, and the previous ones are put back when the last session has ended: of several at once
(`aexecute`), which end in any order, each receive a signal.
"""

from __future__ import annotations

import os
import signal
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from graflow_ckpt.core.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_RESORT = 5.0  # seconds that a body which swallows SystemExit is given after the grace period


class Stop:
    """The request to stop the session, and the signal that made it."""

    def __init__(
        self,
        session: str,
        grace: float,
        stop: Callable[[], None],
        leave: Callable[[Interrupted], None] | None = None,
    ) -> None:
        """Make a stop; `leave`: for a run in another thread."""
        self.signal: int | None = None
        self._stop = stop
        self._leave = leave
        self._session = session
        self._grace = grace
        self._expired = self._left = False
        self._open = threading.Lock()  # held as long as the time has to be watched
        self._open.acquire()

    def ask(self) -> bool:
        """Stop as if by a signal; False if that was asked before."""
        if self.signal is not None:
            return False
        self.signal = 0
        self._stop()
        return True

    @property
    def overdue(self) -> bool:
        """True if its grace period is over, and nothing was done about that yet."""
        return self._expired and not self._left

    def __call__(self, number: int, frame: FrameType | None, *, aloud: bool = True) -> None:
        if self.signal is None:
            self.signal = number
            # Neither threading.Timer nor sys.stderr: the main thread may hold their locks right now.
            start_new_thread(self._watch, ())
            self._stop()
            if aloud:
                name, grace = signal.Signals(number).name, f"grace {self._grace:g} s"
                _say(f"{name}: finishing what runs, then saving (again: leave at once; {grace})")
            return
        if number == signal.SIGINT and not self._expired:
            raise KeyboardInterrupt
        self._left = True
        error = Interrupted(f"Session {self._session} did not finish in its grace period.", self._session)
        if self._leave is None:
            raise error
        self._leave(error)

    def _watch(self) -> None:
        if self._open.acquire(timeout=min(self._grace, threading.TIMEOUT_MAX)):
            return
        self._expired = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if self._open.acquire(timeout=_LAST_RESORT):
            return
        _say(f"session {self._session}: a task does not let go; leaving. The last checkpoint stands.")
        os._exit(75)

    def close(self) -> None:
        self._open.release()


class _Handlers:
    """The handlers of this process, for all sessions that run now."""

    def __init__(self) -> None:
        self._stops: list[Stop] = []
        self._before: dict[int, Any] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        told = [stop for stop in reversed(self._stops) if stop.overdue] or self._stops[::-1]
        for stop in told:
            stop(number, frame, aloud=stop is told[0])

    def add(self, stop: Stop) -> None:
        self._stops.append(stop)  # first: no signal is to find the list empty
        if len(self._stops) == 1:
            self._before = {number: signal.signal(number, self) for number in _SIGNALS}

    def remove(self, stop: Stop) -> None:
        if len(self._stops) == 1:
            for number, handler in self._before.items():
                # None: it was set by something other than Python, which cannot be put back from here
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._stops.remove(stop)


_handlers = _Handlers()


@contextmanager
def handled(stop: Stop) -> Iterator[None]:
    """Let `stop` receive the signals that arrive inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _handlers.add(stop)
    try:
        yield
    finally:
        stop.close()
        _handlers.remove(stop)


def _say(text: str) -> None:
    with suppress(OSError):  # nothing reads it
        os.write(2, f"graflow-ckpt: {text}\n".encode())
