"""SIGTERM and Ctrl-C while a session runs.

The first one: start nothing more, finish what runs, cut, leave with status 75. The second one,
or the end of the grace period: leave at once; the last cut stands. Handlers are installed in
the main thread only, and the previous ones are put back.
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
    """Whether, and by which signal, the session was asked to stop."""

    def __init__(
        self,
        session: str,
        grace: float,
        stop: Callable[[], None],
        leave: Callable[[Interrupted], None] | None = None,
    ) -> None:
        """`leave`: for a run in another thread."""
        self.signal: int | None = None
        self._stop = stop
        self._leave = leave
        self._session = session
        self._grace = grace
        self._expired = False
        self._open = threading.Lock()  # held as long as somebody has to watch the time
        self._open.acquire()

    def ask(self) -> bool:
        """Stop as if by a signal; False if that was asked before."""
        if self.signal is not None:
            return False
        self.signal = 0
        self._stop()
        return True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            # Neither threading.Timer nor sys.stderr: the main thread may hold their locks right now.
            start_new_thread(self._watch, ())
            self._stop()
            name = signal.Signals(number).name
            _say(f"{name}: finishing what runs, then saving (again: leave at once; grace {self._grace:g} s)")
            return
        if number == signal.SIGINT and not self._expired:
            raise KeyboardInterrupt
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
    with suppress(OSError):  # nobody listens
        os.write(2, f"graflow-ckpt: {text}\n".encode())
