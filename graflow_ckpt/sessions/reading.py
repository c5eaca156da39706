"""What one attempt reads of a session in Redis: copies, each taken once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graflow_ckpt.core.facts import RESULT, Version
from graflow_ckpt.sessions.protocol import Found

Look = tuple[Found | None, bool]
"""What stands under a name; and of a result, whether its task gave none this time."""


class Reader:
    """What one attempt reads, each value once: it sees them as they were when it first looked."""

    shares = False

    def __init__(
        self,
        look: Callable[[Sequence[str]], tuple[dict[str, Look], list[dict[str, Look]]]],
        names: Callable[[], list[str]],
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        self._look_up = look
        self._names = names
        self._connections = connections  # how many were opened by now
        self._since = 0  # the number of the one that the first value came by
        self._found: dict[str, Look] = {}
        self._together: dict[str, dict[str, Found]] = {}  # by name: what came by the same pickle

    def seen_before(self, connection: int) -> list[tuple[str, Version]]:
        """What was read if some of it came by an earlier connection: names and versions, 0 for nothing."""
        if self._since >= connection or not self._found:
            return []
        return [(name, 0 if found is None else found[1]) for name, (found, _) in self._found.items()]

    def prefetch(self, names: Sequence[str]) -> None:
        """These will be read: one round trip for all."""
        self._look_for(names)

    def read(self, name: str) -> Found | None:
        return self._look(name)[0]

    def gave_nothing(self, task: str) -> bool:
        return self._look(task + RESULT)[1]

    def _look(self, name: str) -> Look:
        found = self._found.get(name)
        if found is None:
            self._look_for([name])
            found = self._found[name]
        return found

    def _look_for(self, names: Sequence[str]) -> None:
        if not self._found:
            self._since = self._connections()  # before it is asked: another thread may reconnect meanwhile
        names = [name for name in names if name not in self._found]
        if not names:
            return
        looks, bundles = self._look_up(names)
        for bundle in bundles:
            found = {name: look[0] for name, look in bundle.items() if look[0] is not None}
            for name, look in bundle.items():
                if name not in self._found:  # else it is of an earlier moment, and a write of it is refused
                    self._found[name], self._together[name] = look, found
        self._found |= looks

    def together(self, name: str) -> dict[str, Found]:
        """What came by the same pickle: copies that share objects with the value, and it itself."""
        return self._together.get(name, {})

    def names(self) -> list[str]:
        return self._names()

    def lend(self, name: str) -> None:
        """What it gets is a copy of its own."""

    def give_back(self, names: Sequence[str]) -> None:
        """Nothing was lent."""

    def on_loan(self) -> list[str]:
        return []
