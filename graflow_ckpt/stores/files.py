"""One part of a checkpoint as an open file: a sink to write it, a source to read it.

Promise: what the sink took is with the kernel after `flush`, in order, however the writes were cut;
an error names the path and what to do. Not here: when a file is synced, and what it is called.
"""

from __future__ import annotations

import os

from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.disk import Disk, refusing, regular_size

_BUFFER = 64 << 10
_SLICE = 8 << 20


class FileSink:
    """Small writes are collected, large ones go straight to the kernel."""

    __slots__ = ("_disk", "_fd", "_path", "_pending")

    def __init__(self, disk: Disk, fd: int, path: str) -> None:
        self._disk, self._fd, self._path = disk, fd, path
        self._pending = bytearray()

    def write(self, data: Buffer, /) -> int:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size < _BUFFER:
            self._pending += data
            if len(self._pending) >= _BUFFER:
                self.flush()
        else:
            self.flush()
            with memoryview(data) as view:
                self._write(view.cast("B"))
        return size

    def flush(self) -> None:
        if self._pending:
            self._write(memoryview(self._pending))
            self._pending = bytearray()

    def _write(self, view: memoryview) -> None:
        at = 0
        with refusing("write", self._path):
            while at < len(view):
                at += self._disk.write(self._fd, view[at : at + _SLICE])


class FileSource:
    """An open part. Its size is that of the file that was opened, whatever happens to the name."""

    __slots__ = ("_fd", "path", "size")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path
        try:
            self.size = regular_size(fd, path)
        except BaseException:
            os.close(fd)
            raise

    def readinto(self, buffer: memoryview, /) -> int:
        with refusing("read", self.path):
            return os.readv(self._fd, [buffer])

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
