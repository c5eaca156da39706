"""Exposure: what is committed and not durable yet, and when a checkpoint may make it so.

With durability="auto" a commit whose change is too large for a record opens a *gap*: from it on the journal
holds nothing, until a checkpoint closes the gap. A budget says when: saving takes a small share of the run's
time, and a credit for values that no checkpoint of this run holds.

A checkpoint waits until no value is on loan. While it waits nothing new is claimed, so waiting is paid like
saving: when the budget is used up, tasks are claimed again, and the checkpoint is tried later.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from graflow_ckpt.core.policy import Budget, Since

LONGEST = 10_000
LARGEST = 64 << 20
"""Records, and bytes of records, after which a checkpoint takes the place of a journal."""

_ASK = 0.1  # seconds between two looks at what is on loan


class Exposure:
    """Of one run."""

    def __init__(self, budget: Budget) -> None:
        self.gap = False
        self.must = False  # nothing is claimed before the gap is closed
        self._budget = budget
        self._began = monotonic()
        self._spent = self._cost = 0.0
        self._opener = ""  # the value that has opened the gap
        self._saved: set[str] = set()
        self._records = self._bytes = 0
        self._held: float | None = None  # since when a checkpoint waits

    def open(self, name: str, *, must: bool) -> None:
        self.gap, self.must, self._opener = True, must, name

    def recorded(self, size: int) -> None:
        self._records += 1
        self._bytes += size

    def saved(self, seconds: float, names: Iterable[str], *, counts: bool) -> None:
        """A checkpoint holds all; `counts`: nobody has asked for it, so the budget pays."""
        self.failed(seconds, counts=counts)
        self.gap = self.must = False
        self._records = self._bytes = 0
        self._saved.update(names)

    def failed(self, seconds: float, *, counts: bool) -> None:
        self._cost, self._held = seconds, None
        self._spent += seconds if counts else 0.0

    @property
    def wanted(self) -> bool:
        return self.gap or self._records >= LONGEST or self._bytes >= LARGEST

    def due(self, steps: int) -> bool:
        """Whether a checkpoint is wanted, and the budget allows it; `steps`: since the last one."""
        return self.wanted and self._budget.due(self.since(steps, 0.0, False))

    def left(self, steps: int) -> float | None:
        """Return the seconds until it is due, or until a look whether it can be taken is due again."""
        if self._held is not None:
            return _ASK
        return self._budget.left(self.since(steps, 0.0, False)) if self.wanted else None

    def holds(self) -> bool:
        """Whether claims wait for a checkpoint that cannot be taken now."""
        now = monotonic()
        if self._held is None:
            self._held = now
        waited = now - self._held
        since = self.since(1, 0.0, False)
        if self._budget.due(since._replace(spent=since.spent + waited)):
            return True
        self._spent += waited
        self._held = None
        return False

    def since(self, steps: int, seconds: float, idle: bool) -> Since:
        first = not self._saved or self._opener not in self._saved
        return Since(
            steps, seconds, idle, monotonic() - self._began, self._spent, self._cost, steps > 0, first
        )
