"""Checkpoints in memory: for tests, notebooks, and runs that will not be resumed.

    memory:                                         the place that everything in this process shares
    memory://NAME                                   another one
    memory://NAME?max_bytes=N&max_checkpoints=N     the same, and what has no room there is refused

Promise: that of keyed.py, for as long as the process lives. `synced` is False: nothing is on
a disk, and a journal here guards against errors, not against crashes. A bounded place never drops
anything by itself: what would not fit is `TooLarge`, and what is there stays (retention makes room).

An epoch that was given out is never given out again while the process lives. A forked child has a copy that
no process would look into, so everything is refused there. Not here: other processes; they have a memory of
their own.
"""

from __future__ import annotations

import os
import re
import threading
from urllib.parse import parse_qsl

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.drivers.memory.driver import MemoryDriver, Room
from graflow_ckpt.stores.head import Head
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.names import base_of, elsewhere

_SCHEME = "memory://"
_DEFAULT = "main"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_BOUNDS = ("max_bytes", "max_checkpoints")

_rooms: dict[str, Room] = {}
_gate = threading.Lock()


class MemoryStore(KeyedStore):
    """A store in memory: one place for all of one name in a process. The writing store's bounds apply."""

    shared = False

    def __init__(
        self, where: str = "memory:", *, max_bytes: int | None = None, max_checkpoints: int | None = None
    ) -> None:
        for bound, given in (("max_bytes", max_bytes), ("max_checkpoints", max_checkpoints)):
            if given is not None:
                arguments.whole(bound, given, least=1)
        name, bounds = _parsed(os.fspath(where))
        with _gate:
            self.room = _rooms.setdefault(name, Room(name))
        most = bounds.get("max_bytes") if max_bytes is None else max_bytes
        count = bounds.get("max_checkpoints") if max_checkpoints is None else max_checkpoints
        super().__init__(MemoryDriver(self.room, most, count), f"{_SCHEME}{name}", lease=0)
        self.synced = False

    def probe(self) -> None:
        """Refuse only a forked child: memory can be written."""
        self.driver.get()

    def forget(self) -> None:
        """Empty the place, but for the epochs: former owners of a session may not write into what comes
        next."""
        for entry in self.driver.keys("head/"):
            head = self.heads.read(entry.key.partition("/")[2]).head
            if head != Head():
                emptied = Head(epoch=head.epoch + 1, number=head.number).encode()
                self.driver.batch([Put(entry.key, emptied, fresh=False)])
        for kind in ("data/", "lease/", "journal/"):
            self.driver.batch([], [entry.key for entry in self.driver.keys(kind)])

    def _name(self, path: str) -> str:
        base = path if "/" not in path else path[len(self.folder) + 1 :] if self.takes(path) else ""
        if not base_of(base):
            raise elsewhere(path, self.folder)
        return base_of(base)


def _parsed(where: str) -> tuple[str, dict[str, int]]:
    """Return the name of the place, and its bounds."""
    head, _, query = where.partition("?")
    name = head.removeprefix("memory:").removeprefix("//").rstrip("/") or _DEFAULT
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
        bounds = {key: int(value) for key, value in pairs}
    except ValueError:
        bounds = {"": 0}
    if not _NAME.match(name) or not set(bounds) <= set(_BOUNDS) or any(n < 0 for n in bounds.values()):
        raise CheckpointError(
            f"{where!r} is not a place in memory.",
            hint=f"Write memory:, or memory://NAME; bounds: ?{'=N&'.join(_BOUNDS)}=N.",
            store=where,
        )
    return name, bounds
