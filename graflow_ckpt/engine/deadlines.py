"""Deadlines: which attempt's time is up first.

Those of attempts that have ended stay until they are the first: nobody searches for them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from time import monotonic


class Deadlines:
    """Claim numbers by the time at which their attempts end."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def add(self, when: float, number: int) -> None:
        heappush(self._heap, (when, number))

    def left(self) -> float | None:
        """Seconds until the first one, negative once it has passed; None without any."""
        return self._heap[0][0] - monotonic() if self._heap else None

    def passed(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= monotonic()

    def pop(self) -> int:
        return heappop(self._heap)[1]
