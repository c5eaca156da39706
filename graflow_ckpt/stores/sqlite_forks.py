"""Forks: what SQLite has open when a process forks, and what a child may do then.

SQLite notes in the memory of a process which locks that has on a file, and the child's copy of the notes is
wrong: the locks stay with the parent. A connection that a child opens would be taken for one beside those of
the parent and lock nothing, so that the parent's last one takes the log away while the child commits to it.

Promise: all idle connections are closed before a fork, so that a child opens a file like any other process.
If one is still used then, by another thread, the child is refused that file, by name.
Not here: pools and transactions (sqlite_file.py), forks of C code without Python's hooks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from typing import Any, Final, Protocol

from graflow_ckpt.core.errors import CheckpointError

Identity = tuple[int, int]
"""Of a file: its device and number."""

_PATIENCE: Final = 1.0  # seconds for other threads to come to the end of what they do

_gate = threading.RLock()  # nobody opens a connection while the process forks
_open: weakref.WeakSet[Connection] = weakref.WeakSet()
_pools: weakref.WeakSet[Closing] = weakref.WeakSet()
_carried: list[Connection] = []  # of a parent: not ours to close, so they are kept


class Closing(Protocol):
    """A pool."""

    def close(self) -> None: ...  # what is idle


class Connection(sqlite3.Connection):
    """Knows which file it was opened on."""

    identity: Identity | None = None
    lasts = True  # else it sees nothing of what others write: for one use

    def close(self) -> None:
        super().close()
        _open.discard(self)


# Any: what `sqlite3.connect` takes.
def connected(address: str, **options: Any) -> Connection:
    """A connection that is looked after. Waits while the process forks."""
    with _gate:
        connection = sqlite3.connect(address, factory=Connection, **options)
        _open.add(connection)
    return connection


def look_after(pool: Closing) -> None:
    """Its idle connections are closed before a fork."""
    with _gate:
        _pools.add(pool)


def check(identity: Identity | None, file: str) -> None:
    """Refuse a file that a parent used when this process was forked from it."""
    if identity is not None and any(one.identity in (None, identity) for one in _carried):
        raise CheckpointError(
            f"{file} cannot be used in this process: another thread was using it when it was forked.",
            hint="Start such processes with 'spawn' or 'forkserver', or before the first save.",
            path=file,
        )


def _before() -> None:
    _gate.acquire()
    end = time.monotonic() + _PATIENCE
    while True:
        for pool in list(_pools):
            pool.close()
        if not len(_open) or time.monotonic() > end:
            return
        time.sleep(0.001)


def _in_child() -> None:
    _carried.extend(_open)
    _open.clear()
    _gate.release()


os.register_at_fork(before=_before, after_in_parent=_gate.release, after_in_child=_in_child)
