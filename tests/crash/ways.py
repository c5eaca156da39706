"""A store of each kind, and a way to it on which whoever uses it can be killed, or its server.

    way.killed("save", 7, …)      a process that is killed at the seventh step of what it does to the store

A step is a call of the disk for a folder, a statement for SQLite, and for a server a message: what is
sent at odd numbers was not carried out, what is answered at even ones was, and its sender does not know.
They are counted from the moment at which the process is at work: who is connected, and owns the session.
Not here: what the process does (doomed.py), and what must hold afterwards.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import lease as leases
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.drivers.redis.driver import PREFIX
from graflow_ckpt.stores.names import base_of
from tests import things
from tests.crash.doomed import NAMES, SESSION, Doomed, saved
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.care.test_copying import append

FAR = ("redis", "postgres", "objects")
KINDS = ("local", "sqlite", *FAR)
T = TypeVar("T")


@dataclass
class Way:
    """`url`: the store, for the test. `far`: the same one, for those who are to die."""

    kind: str
    url: str
    far: str
    doomed: Doomed
    proxy: Proxy | None = None
    server: Any = None  # of several classes that have no common one
    store: CheckpointStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_store(self.url)

    def steps(self, every: int = 1) -> count[int]:
        """The numbers of the steps at which somebody is to die; all of them with KILLS=all."""
        return count(1, 1 if os.environ.get("KILLS") == "all" else every)

    def killed(self, role: str, at: int, **more: Any) -> int:
        """The exit status of a process that dies there; 0: it has come to its end before."""
        order = {"store": self.far, **more}
        pid = self.doomed.told(role, 0 if self.proxy else at, self.kind, **order)
        if self.proxy is not None:
            self.proxy.at_message(at, lambda: os.kill(pid, signal.SIGKILL))
        self.doomed.begins()
        status = self.doomed.ended()
        if self.proxy is not None:
            self.proxy.resume()
        assert status in (0, -signal.SIGKILL)
        return status

    def deaths(self, role: str, every: int, begin: Callable[[int], T], **more: Any) -> Iterator[T]:
        """Kill such a process at one step after the other, until one comes to its end. What `begin` has made
        for each (it is told the step) is given when that one has died."""
        for at in self.steps(every):
            made = begin(at)
            status = self.killed(role, at, **more)
            yield made
            if status == 0:
                return

    def without_server(self, role: str, at: int, **more: Any) -> int:
        """The exit status of a process whose server is killed at that message, and back when it has ended."""
        assert self.proxy is not None
        self.doomed.told(role, 0, **{"store": self.far, "patience": 0.1, **more})
        died: list[int] = []

        def kill() -> None:
            died.append(at)
            if self.kind != "objects":  # what that server has stored ends with it: only the way to it goes
                self.server.kill()

        self.proxy.at_message(at, kill, refuse=True)
        self.doomed.begins()
        status = self.doomed.ended()
        assert died, "it came to its end before"
        if self.kind != "objects":
            self.server.start()
        self.proxy.resume()
        return status

    def with_server_restarted(self, role: str, at: int, **more: Any) -> int:
        """Likewise, but the server is back at once."""
        assert self.proxy is not None
        self.doomed.told(role, 0, **{"store": self.far, **more})
        self.proxy.at_message(at, (lambda: None) if self.kind == "objects" else self._restart)
        self.doomed.begins()
        return self.doomed.ended()

    def uninterrupted(self, role: str, **more: Any) -> int:
        """The exit status of a process to which nothing happens."""
        self.doomed.told(role, 0, **{"store": self.far, **more})
        self.doomed.begins()
        return self.doomed.ended()

    def _restart(self) -> None:
        self.server.kill()
        self.server.start()

    def saved_by_an_owner(self, sequences: Mapping[str, int]) -> int:
        """Checkpoints of these names; the epoch of their owner."""
        lease = self.store.acquire(SESSION)
        for name, sequence in sequences.items():
            saved(self.store, name, sequence, lease)
        lease.release()
        return lease.epoch

    def owned_anew(self, after: int = 0) -> int:
        """The epoch of the session's next owner, which is above all that there were; it has cleared away."""
        lease = self.store.acquire(SESSION)
        assert lease.epoch > after
        lease.release()
        self.swept()
        return lease.epoch

    def emptied(self) -> None:
        """Everything is deleted, and nothing is left that nobody refers to."""
        for path, _ in list(self.store.list()):
            self.store.delete(path)
        self.store.drop_segments(SESSION, 2**62)
        assert len(list(self.store.segments(SESSION))) <= 1  # the last one is never dropped
        self.swept()
        left = self.pieces()
        assert left == [], left

    def swept(self) -> None:
        """A day later: under a name that is not the session's own there is no epoch that says who is dead."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "LIFE", -60.0)
            if self.store.contents is not None:
                self.store.contents.sweep()

    def pieces(self) -> list[str]:
        """All that checkpoints consist of, by whatever name it lies there, whole or not."""
        return sorted(_PIECES[self.kind](self))


def own_name(number: int) -> str:
    return f"session_{SESSION}_step_{number}_17-{number}"


def fill(store: CheckpointStore) -> None:
    """A session: checkpoints under names of each kind, and a journal after the newest."""
    for sequence, name in enumerate((*NAMES, own_name(3)), 1):
        saved(store, name, sequence)
    append(store, 2, 3, after=1)


def whole(store: CheckpointStore) -> dict[str, int]:
    """What is listed, by name, with its sequence; all of it was read to the last byte."""
    return {
        base_of(path.rpartition("/")[2]): archive.check(store, trios.RING, path)[0].meta["sequence"]
        for path, _ in store.list()
    }


def parts(store: CheckpointStore) -> dict[str, Any]:
    """Digests of all parts, by the id of the checkpoint."""
    found = (archive.find(store, trios.RING, path).meta for path, _ in store.list())
    return {meta["checkpoint_id"]: meta["parts"] for meta in found}


# --- one of each kind -----------------------------------------------------------------------


def near(kind: str, folder: Path, doomed: Doomed) -> Way:
    """A folder, or a database in it."""
    url = f"sqlite:///{folder}/kept.db" if kind == "sqlite" else f"file://{folder}/kept"
    return Way(kind, url, url, doomed)


def far(kind: str, server: Any, url: str, proxy: Proxy, doomed: Doomed) -> Way:
    """A store of a server. On the proxied way nothing is encrypted, so that messages are what they seem."""
    there = url.replace(f":{server.port}", f":{proxy.port}")
    if kind == "postgres":
        there += "?sslmode=disable"
    return Way(kind, url, there, doomed, proxy, server)


# --- what lies there ------------------------------------------------------------------------


def _in_folder(way: Way) -> list[str]:
    return [name for name in os.listdir(way.url.removeprefix("file://")) if not name.startswith(".")]


def _in_keyed(way: Way) -> list[str]:
    return things.keys(way.store, "data/")


def _in_redis(way: Way) -> list[str]:
    """Also what its list of keys does not know."""
    server: Server = way.server
    prefix = f"{PREFIX}data/"
    return [key.decode().removeprefix(PREFIX) for key in server.ask("KEYS", f"{prefix}*")]


_PIECES: dict[str, Callable[[Way], list[str]]] = {
    "local": _in_folder,
    "sqlite": _in_keyed,
    "redis": _in_redis,
    "postgres": _in_keyed,
    "objects": _in_keyed,
}
