"""Aliases: one live object under several names of a session.

A trio keeps that they are one, for it is one pickle. A journal record holds each name's pickle
by itself: what changes such an object is made durable by a cut. An object inside of another
value is not looked for.
"""

from __future__ import annotations

from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.values import Live


class Aliases:
    """Knows under which names an object has stood."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._names: dict[int, set[str]] = {}
        for name, (cell, _) in state.values.items():
            if isinstance(cell, Live):
                self._names.setdefault(id(cell.value), set()).add(name)

    def beside(self, name: str, cell: Live) -> str | None:
        """Another name under which the object stands now."""
        names = self._names.setdefault(id(cell.value), set())
        names.add(name)
        for other in names:
            found = self._state.values.get(other)
            if other != name and found and isinstance(found[0], Live) and found[0].value is cell.value:
                return other
        return None
