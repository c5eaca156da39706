"""Errors that may pass by themselves, the patience that waits for them, and a breaker.

                 failures in a row                 the time is over: one may try
    closed  ────────────────────────▶  open  ────────────────────────────────────▶  half open
       ▲                                 ▲              it fails                        │
       │                                 └──────────────────────────────────────────────┤
       └────────────────────────────────────────────────────────────────────────────────┘
                                             it succeeds
Not here: which calls are tried again (retrying.py), and what happens meanwhile (fallback.py).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.core.protocols import Buffer, Parts, PartWriter, Sink
from graflow_ckpt.core.task import Backoff

_spread = random.Random()  # not the program's: what a workflow draws must not depend on a server's errors


_SHARE = 10.0
_LONGEST = 300.0
"""So that at most a tenth of the time is spent in calls that fail, and a store that is back is found."""


def may_pass(error: BaseException) -> bool:
    """Return whether the same call may succeed in a while: a server was not there, not ready, or was lost.

    The call may have been carried out: a caller that cannot repeat it has to look first.
    """
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return False
        if isinstance(seen, (ConnectionError, TimeoutError)):  # ServerGone is one
            return True
        seen = seen.__cause__
    return False


class Patience:
    """The number and distance of the tries of one call: until `seconds` are over."""

    def __init__(
        self,
        seconds: float = 10.0,
        backoff: Backoff = Backoff(0.05, limit=2.0, jitter=0.5),  # noqa: B008  a frozen value
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.seconds = seconds
        self._backoff = backoff
        self._clock = clock
        self._sleep = sleep

    def pauses(self) -> Iterator[None]:
        """Wait, and yield each time that another try makes sense."""
        end, tries = self._clock() + self.seconds, 0
        while True:
            pause = self._backoff.delay(tries, _spread.random())
            if self._clock() + pause > end:
                return
            self._sleep(pause)
            tries += 1
            yield


class Breaker:
    """Spares a server that is away, and callers that would wait for it."""

    def __init__(
        self, failures: int = 5, cooldown: float = 5.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = failures
        self._cooldown = cooldown
        self._clock = clock
        self._failures = 0
        self._again = 0.0
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Return whether no call has succeeded since it broke."""
        return self._failures >= self._limit

    def allows(self) -> bool:
        """Return whether a call may be made now. Of the callers that ask while it is open, one per period."""
        with self._lock:
            if not self.open:
                return True
            now = self._clock()
            if now < self._again:
                return False
            self._again = now + self._cooldown
            return True

    def good(self) -> None:
        with self._lock:
            self._failures = 0

    def bad(self, seconds: float = 0.0) -> bool:
        """Note that a call has failed, after so many seconds; return whether that has broken it.

        Where the server does not answer at all a call may take half a minute: it is not made so often then.
        """
        with self._lock:
            was = self.open
            self._failures += 1
            self._again = self._clock() + max(self._cooldown, min(_SHARE * seconds, _LONGEST))
            return self.open and not was

    def ask(self) -> None:
        """Allow one call, however little time has passed."""
        with self._lock:
            self._again = self._clock()

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    def away(self, address: str) -> ServerGone:
        """Return the error to raise instead of a call that is not made."""
        return ServerGone(
            f"{address} was away when it was asked last, and is not asked again for some seconds.",
            hint="Start it, or look at its network; then run the same command again.",
            address=address,
        )


class PutAttempt:
    """One `put`: what its writers have written. A writer that fails by itself fails again."""

    def __init__(self, parts: Parts) -> None:
        self.written: dict[str, bytes] = {}  # the whole of the last part, once it was written
        self.own_fault = False
        last = len(parts) - 1
        self.parts = [
            (part, self._guarded(part, write, at == last)) for at, (part, write) in enumerate(parts)
        ]

    def _guarded(self, part: str, write: PartWriter, kept: bool) -> PartWriter:
        def guarded(sink: Sink) -> None:
            tee = _Tee(sink, bytearray() if kept else None)
            try:
                write(tee)
            except BaseException:
                self.own_fault = not tee.failed
                raise
            if tee.copy is not None:
                self.written[part] = bytes(tee.copy)

        return guarded


class _Tee:
    def __init__(self, sink: Sink, copy: bytearray | None) -> None:
        self._sink = sink
        self.copy = copy
        self.failed = False

    def write(self, data: Buffer, /) -> int:
        try:
            done = self._sink.write(data)
        except BaseException:
            self.failed = True
            raise
        if self.copy is not None:
            self.copy += data
        return done
