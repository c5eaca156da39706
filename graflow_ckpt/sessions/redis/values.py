"""The values of a session in Redis: what bodies read, as of one moment, together with what shares objects.

Values are bytes there: what a body gets is its own copy, and there are no loans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graflow_ckpt.core.facts import RESULT, Cell, Live, Version
from graflow_ckpt.links.complaints import readable
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.protocol import Found
from graflow_ckpt.sessions.redis import ops as codec
from graflow_ckpt.sessions.redis.keys import READ, keys_of
from graflow_ckpt.sessions.redis.ops import Cells
from graflow_ckpt.sessions.redis.sender import Sender
from graflow_ckpt.sessions.redis.tables import gone

Look = tuple[Found | None, bool]
"""What stands under a name; and of a result, whether its task gave none this time."""


class StoredValues:
    """Reads values, over the connection of a sender."""

    def __init__(self, link: RedisLink, sender: Sender, cells: Cells) -> None:
        self._link = link
        self._sender = sender
        self._cells = cells
        self._read = link.script(READ)

    @property
    def connections(self) -> int:
        return self._sender.connections

    def read_all(self, names: Sequence[str]) -> list[Look]:
        """Return values as of one moment; and of results, whether there is none this time."""
        looks, _ = self.look(names)
        return [looks[name] for name in names]

    def look(self, names: Sequence[str]) -> tuple[dict[str, Look], list[dict[str, Look]]]:
        """Return the same by name, and the bundles of these, with all that came by the same pickle."""
        sender = self._sender
        found = sender.ask(self._read, list(names))
        if found == [b"gone"]:
            raise gone(self._link, sender.session)
        rows: list[list[Any]] = found[len(names)] if len(found) > len(names) else []
        with readable(sender.session, self._link.address):
            bundles = [self._bundle(*row) for row in rows]
            together = {name: look for one in bundles for name, look in one.items()}
            looks = {
                name: together[name] if name in together else self._value(name, one)
                for name, one in zip(names, found, strict=False)
            }
        return looks, bundles

    def _bundle(self, number: bytes, pickle: bytes, *members: Any) -> dict[str, Look]:
        roots = codec.unpack_bundle(number.decode(), pickle, self._cells)
        named = [(name.decode(), found) for name, found in zip(members[::2], members[1::2], strict=True)]
        return {name: self._value(name, found, roots) for name, found in named}

    def _value(self, name: str, found: list[bytes] | None, roots: Mapping[str, Any] | None = None) -> Look:
        if not found:
            return None, False
        cell, version, void, *items = found
        if not version:
            return None, void == b"1"
        unpack = self._cells.unpack
        value = unpack(name, cell) if roots is None else Live(roots[name])
        return (value, version, tuple(unpack(name, i) for i in items)), void == b"1"

    def names(self) -> list[str]:
        link, session = self._link, self._sender.session
        client: Any = link.client
        fields: list[bytes] = link.patiently(
            lambda: client.hkeys(keys_of(session) + "v"), session, self._sender.patience
        )
        with readable(session, link.address):
            return [f[1:].decode() for f in fields if f[:1] == b"="]


class AttemptReader:
    """The reads of one attempt, each value once: it sees them as they were when it first looked."""

    __slots__ = ("_found", "_since", "_together", "_values")
    shares = False

    def __init__(self, values: StoredValues) -> None:
        self._values = values
        self._since = 0  # the number of the one that the first value came by
        self._found: dict[str, Look] = {}
        self._together: dict[str, dict[str, Found]] = {}  # by name: what came by the same pickle

    def seen_before(self, connection: int) -> list[tuple[str, Version]]:
        """Return what was read if some of it came by an earlier connection: names and versions (0: none)."""
        if self._since >= connection or not self._found:
            return []
        return [(name, 0 if found is None else found[1]) for name, (found, _) in self._found.items()]

    def prefetch(self, names: Sequence[str]) -> None:
        """Read these in one round trip: they will be asked for."""
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
            # before it is asked: another thread may reconnect meanwhile
            self._since = self._values.connections
        names = [name for name in names if name not in self._found]
        if not names:
            return
        looks, bundles = self._values.look(names)
        for bundle in bundles:
            found = {name: look[0] for name, look in bundle.items() if look[0] is not None}
            for name, look in bundle.items():
                if name not in self._found:  # else it is of an earlier moment, and a write of it is refused
                    self._found[name], self._together[name] = look, found
        self._found |= looks

    def committed(self, written: Mapping[str, Cell], appended: Sequence[str], version: Version) -> None:
        """See what the attempt itself has committed as it is now."""
        for name in appended:
            self._found.pop(name, None)
        for name, cell in written.items():
            found: Found = (cell, version, ())
            self._found[name] = found, False
            if name in self._together:
                self._together[name][name] = found

    def together(self, name: str) -> dict[str, Found]:
        """Return what came by the same pickle: copies that share objects with the value, and it itself."""
        return self._together.get(name, {})

    def names(self) -> list[str]:
        return self._values.names()

    def lend(self, name: str) -> None:
        """Do nothing: an attempt gets a copy of its own."""

    def give_back(self, names: Sequence[str]) -> None:
        """Do nothing: no value was lent."""

    def on_loan(self) -> list[str]:
        return []
