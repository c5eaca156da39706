"""A gate: what a join or a group waits with.

    need  0   all have to arrive, and one of them done
    need -1   all have to arrive
    need  n   as soon as n of them are done

It fires once and stays until all have arrived, so that late ones are absorbed.

`toward` names the tasks that branches jump to from above the gate. If too few others arrive, the
gate is not passed: the session continues at those tasks.
"""

from __future__ import annotations

from typing import Any

JUMP = "\x1e"
"""Stands before the name of each task that is jumped to; no task id has it in it."""


class Gate:
    """What a join or a group waits with."""

    __slots__ = ("arrived", "fired", "need", "ok", "size", "toward")

    def __init__(
        self, size: int, need: int, arrived: int = 0, ok: int = 0, fired: bool = False, toward: str = ""
    ) -> None:
        self.size = size
        self.need = need
        self.arrived = arrived
        self.ok = ok
        self.fired = fired
        self.toward = toward

    def jump(self, target: str) -> None:
        """Note where a branch jumps to."""
        if target not in self.toward.split(JUMP):
            self.toward += JUMP + target

    def facts(self) -> list[Any]:
        facts = [self.size, self.need, self.arrived, self.ok, int(self.fired)]
        return [*facts, self.toward] if self.toward else facts
