"""A disk that fails where a test wants it to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.files.disk import Disk


class FaultyDisk(Disk):
    """The real disk, but call number `at` (from 1) of `method` fails with `number`."""

    __slots__ = ("_at", "_method", "_number", "_seen")

    def __init__(self, method: str = "", number: int = errno.EIO, at: int = 1) -> None:
        self.arm(method, number, at)

    def arm(self, method: str, number: int = errno.EIO, at: int = 1) -> None:
        self._method, self._number, self._at, self._seen = method, number, at, 0

    def _pass(self, method: str) -> None:
        if method == self._method:
            self._seen += 1
            if self._seen == self._at:
                raise OSError(self._number, os.strerror(self._number))

    def write(self, fd: int, data: Buffer) -> int:
        self._pass("write")
        return super().write(fd, data[: max(1, len(data) // 2)])  # the kernel may take less than it is given

    def write_at(self, fd: int, data: Buffer, offset: int) -> int:
        self._pass("write_at")
        return super().write_at(fd, data[: max(1, len(data) // 2)], offset)


def _passing(method: str) -> Callable[..., Any]:
    def call(self: FaultyDisk, *args: Any) -> Any:
        self._pass(method)
        return getattr(Disk, method)(self, *args)

    return call


for method in ("create", "sync", "sync_data", "sync_folder", "rename", "unlink", "make_folder", "truncate"):
    setattr(FaultyDisk, method, _passing(method))
