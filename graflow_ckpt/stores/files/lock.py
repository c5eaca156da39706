"""A file lock that dies with its process, and only with it.

Promise: while a process holds an exclusive `Flock`, no other process and no other `Flock` of the
same process gets it; when the process ends, however it ends, the kernel releases it. A forked child
does not keep it: the lock sits on the open file that parent and child share, so a child that
outlives a killed parent would hold it for as long as it lives. Therefore the child closes its copy
in the first moment after the fork (`os.register_at_fork`), and never unlocks, which would take the
lock from the parent.
Not here: what a lock means (ownership.py, store.py). A fork made by C code without Python's hooks
and without exec is not seen.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from graflow_ckpt.stores.files.disk import open_own

_BUSY = {errno.EAGAIN, errno.EACCES}

_gate = threading.RLock()  # no thread forks between the opening of a lock file and its registration
_open: weakref.WeakSet[Flock] = weakref.WeakSet()


class Flock:
    """An open lock file. `fd` is -1 once it is closed."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: str, *, create: bool = True, look: bool = False) -> None:
        """Open the lock file. `look`: only to see whether it is held, on a read-only file system, too."""
        self.path = path
        self.fd = -1
        flags = os.O_RDONLY if look else os.O_RDWR | (os.O_CREAT if create else 0)
        with _gate:
            self.fd = open_own(path, flags)
            _open.add(self)

    def __del__(self) -> None:
        self.close()  # a lease that was dropped without a release must not keep its session

    def take(self, patience: float | None = None) -> bool:
        """Wait for it, for `patience` seconds: a holder that is stopped would keep it for ever."""
        if patience is None:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            return True
        pause, end = 0.001, time.monotonic() + patience
        while not self._try(fcntl.LOCK_EX):
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    def is_free(self) -> bool:
        """Return whether no process holds it. A shared lock asks, so that two calls do not see each other."""
        free = self._try(fcntl.LOCK_SH)
        if free:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        return free

    def is_in_place(self) -> bool:
        """Return True while the path still names the file that is open."""
        try:
            there = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(os.fstat(self.fd), there)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _try(self, how: int) -> bool:
        try:
            fcntl.flock(self.fd, how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True


@contextmanager
def held(path: str, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file at `path` for the block, and delete it afterwards.

    Without `wait` the block also runs if another owner holds it, and gets False.
    """
    lock = locked(path, patience=None if wait else 0)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            if lock.fd >= 0:  # not in a child that was forked inside the block
                with suppress(OSError):
                    os.unlink(path)  # before the lock goes: after it, the file is another owner's
            lock.close()


def locked(path: str, *, patience: float | None, create: bool = True) -> Flock | None:
    """Lock the file that `path` names. None if it is still held after `patience` seconds, or is not there."""
    while True:
        try:
            lock = Flock(path, create=create)
        except FileNotFoundError:
            if create:
                raise
            return None
        try:
            if not lock.take(patience):
                lock.close()
                return None
            if lock.is_in_place():
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()  # it was deleted while we waited: a lock that no other process will look at


def is_held(path: str) -> bool:
    """Return True while any process holds the lock file at `path`."""
    try:
        lock = Flock(path, look=True)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not lock.is_free()
    finally:
        lock.close()


def _close_in_child() -> None:
    _gate.release()
    for lock in list(_open):
        lock.close()


os.register_at_fork(before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_close_in_child)
