"""A gate: what a join or a group waits with.

    need  0   all have to arrive, and one of them done
    need -1   all have to arrive
    need  n   as soon as n of them are done

It fires once and stays until all have arrived, so that late ones are absorbed.
"""

from __future__ import annotations


class Gate:
    """What a join or a group waits with."""

    __slots__ = ("arrived", "fired", "need", "ok", "size")

    def __init__(self, size: int, need: int, arrived: int = 0, ok: int = 0, fired: bool = False) -> None:
        self.size = size
        self.need = need
        self.arrived = arrived
        self.ok = ok
        self.fired = fired

    def facts(self) -> list[int]:
        return [self.size, self.need, self.arrived, self.ok, int(self.fired)]
