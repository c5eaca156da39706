"""What has to come out of a program that a fleet runs: the oracle, with notes of how it got there.

ends     what the commit ledger has to hold: how each (task, cycle) ended, retries included
causes   what must have been committed before a (task, cycle) was: so many of these
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.acceptance.oracle import End, Oracle, Spec
from tests.acceptance.program import Graph, Program

Run = tuple[str, int]
"""A task, or a group, and the cycle in which it ran."""


class Cause(NamedTuple):
    """So many of these came first."""

    need: int
    of: frozenset[Run]


@dataclass(frozen=True, slots=True)
class Expected:
    """Everything that must not depend on what happened to the fleet."""

    end: End
    ends: tuple[tuple[str, int, str], ...]
    causes: dict[Run, Cause]
    lists: frozenset[str]  # values whose order is open

    @property
    def completed(self) -> set[Run]:
        return {(task, cycle) for task, cycle, how in self.ends if how == "completed"}


def expected(program: Program) -> Expected:
    """Interpret the program."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20 * len(program.bodies)))
    model = Model(program)
    end = model.run()
    bodies = model.bodies.values()
    lists = {name for body in bodies for kind, name, _ in body.ops if kind == "append"}
    causes = {run: Cause(need or len(of), frozenset(of)) for run, (need, of) in model.causes.items() if of}
    return Expected(end, tuple(model.ends), causes, frozenset(lists))


class Model(Oracle):
    """The oracle, which also writes down each end and what led to each run."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, limit=100 * len(program.bodies))
        self.graph = LargeGraph(program)
        self.ends: list[tuple[str, int, str]] = []
        self.causes: dict[Run, tuple[int, set[Run]]] = {}  # 0: all of them
        self._now: Run | None = None
        self._arriving: str | None = None
        self._arrived: dict[str, set[Run]] = {}  # at gates that are open; those of `causes` go on growing

    def _take(self, spec: Spec) -> None:
        self._now = (spec.task, spec.cycle)
        steps, retries = self.end.steps, self.features["retry"]
        super()._take(spec)
        self.ends.append((spec.task, spec.cycle, self._how(spec, steps, retries)))

    def _how(self, spec: Spec, steps: int, retries: int) -> str:
        if spec.how in ("pass", "skip"):
            return {"pass": "passed", "skip": "skipped"}[spec.how]
        if self.end.steps > steps:
            return "completed"
        return "retry" if self.features["retry"] > retries else "lost"

    def _arrive(self, task: str, ok: int) -> None:
        if not self._waits(task):
            super()._arrive(task, ok)
            return
        assert self._now is not None
        group = self.graph.groups.get(task)
        if ok or group is None or group.policy != "least":
            self._arrived.setdefault(task, set()).add(self._now)
        self._arriving = task
        super()._arrive(task, ok)
        self._arriving = None
        if task not in self.gates:
            self._arrived.pop(task, None)

    def _enqueue(self, task: str, data: Any = None, how: str = "run") -> None:
        if self._now is not None:
            run = (task, self.counts[task])
            if task == self._arriving:
                group = self.graph.groups.get(task)
                least = group is not None and group.policy == "least" and how == "run"
                self.causes[run] = (group.need if group and least else 0, self._arrived.get(task, set()))
            else:
                self.causes[run] = (0, {self._now})
        super()._enqueue(task, data, how)


class LargeGraph(Graph):
    """The same shape, for programs of thousands of tasks: what leads where is worked out once."""

    _below: dict[str, set[str]]

    def __post_init__(self) -> None:
        self._below = {}
        super().__post_init__()

    def leads_to(self, source: str, target: str) -> bool:
        below = self._below.get(source)
        if below is None:
            below = self._below[source] = set()
            walk = [source]
            while walk:
                name = walk.pop()
                if name not in below:
                    below.add(name)
                    walk += self.forward[name]
        return target in below
