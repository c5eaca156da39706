"""Journal segments: files that frames are appended to, one after each cut.

    .{session}.{epoch}.{after}.journal      frame frame frame 0 0 0 0 …

Promise: a frame is on the disk when `append` returns, and it was appended by the session's owner.
After a failure nothing more is appended, ever. Room is made in steps of zeros, because a sync that
need not grow the file is cheaper; so zeros may follow the last frame, and a frame never begins with
one. `close` cuts them off.
Not here: what is in a frame, and which frames count (checkpoint/journal.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from graflow_ckpt.core.errors import CheckpointError, JournalFailed
from graflow_ckpt.stores.files.disk import Disk, refusing
from graflow_ckpt.stores.files.ownership import LocalLease
from graflow_ckpt.stores.owners import cannot_append, used

_FIRST_STEP = 16 << 10
_LAST_STEP = 256 << 10


class Segment:
    """One open segment."""

    def __init__(self, disk: Disk, path: str, lease: LocalLease, fd: int) -> None:
        self.path = path
        self._disk = disk
        self._lease = lease
        self._fd = fd
        self._end = 0  # of the last frame that is on the disk
        self._room = 0  # the size of the file
        self._step = _FIRST_STEP
        self._process = os.getpid()

    def append(self, frame: bytes, /) -> None:
        """Append; durable on return. JournalFailed closes the segment; so does Ctrl-C in the middle."""
        with self._lease.locked():
            if self._fd < 0:
                raise self._failed("it was closed")
            self._lease.check()
            try:
                self._make_room(len(frame))
                self._write(frame, self._end)
                self._disk.sync_data(self._fd)
            except OSError as error:
                self._give_up()
                raise self._failed(f"{error.strerror or error}") from error
            except BaseException:
                self._give_up()
                raise
            self._end += len(frame)
            self._room = max(self._room, self._end)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if os.getpid() == self._process:  # in a forked child `_end` is where its parent was then
                with suppress(OSError):  # zeros after the last frame do no harm
                    self._disk.truncate(fd, self._end)
        finally:
            self._disk.close(fd)

    def _make_room(self, size: int) -> None:
        if self._end + size <= self._room or size >= self._step:
            return
        with suppress(OSError):  # a full disk may still have room for the frame itself
            self._write(bytes(self._step), self._room)
            self._room += self._step
            self._step = min(self._step * 2, _LAST_STEP)

    def _write(self, data: bytes, offset: int) -> None:
        at = 0
        view = memoryview(data)
        while at < len(view):
            at += self._disk.write_at(self._fd, view[at:], offset + at)

    def _give_up(self) -> None:
        """Cut off the frame that failed: it must not come back, since its caller gets an error."""
        fd, self._fd = self._fd, -1
        try:
            with suppress(OSError):
                self._disk.truncate(fd, self._end)
                self._disk.sync_data(fd)
        finally:
            self._disk.close(fd)

    def _failed(self, why: str) -> JournalFailed:
        return cannot_append(self._lease.session, self.path, why, "disk")


def open_segment(disk: Disk, folder: str, lease: LocalLease, after: int) -> Segment:
    """Open a new segment for the records after `after`."""
    path = f"{folder}/.{lease.session}.{lease.epoch}.{after}.journal"
    with lease.locked(), refusing("begin the journal", path):
        lease.check()
        try:
            fd = disk.create(path)
        except FileExistsError:
            fd = _reopen(disk, lease, path)
        try:
            disk.sync_folder(folder)  # else a power cut can take the segment with all its synced frames
        except BaseException:
            disk.close(fd)
            raise
        return Segment(disk, path, lease, fd)


def _reopen(disk: Disk, lease: LocalLease, path: str) -> int:
    """Reopen a segment that got no frame (two cuts with nothing between)."""
    if disk.read(path).strip(b"\0"):
        raise used(lease.session, path)
    return disk.open_to_update(path)


def read_segments(disk: Disk, folder: str, session: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield (epoch, after, bytes) in that order. Zeros may follow the last frame."""
    for epoch, after in _segments(disk, folder, session):
        path = f"{folder}/.{session}.{epoch}.{after}.journal"
        with refusing("read the journal", path):
            try:
                raw = disk.read_filled(path)  # it grows until the next cut, which may never come
            except FileNotFoundError:
                continue  # dropped meanwhile: a cut covers it
            except MemoryError as error:
                raise CheckpointError(
                    f"The journal {path} is larger than the memory that this process may use.",
                    hint=f"Resume from a checkpoint that you name: graflow-ckpt checkpoints list {session}.",
                    session=session,
                    path=path,
                ) from error
        yield epoch, after, raw


def drop_segments(disk: Disk, folder: str, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    found = _segments(disk, folder, session)
    for (epoch, after), (_, ended) in pairwise(found):
        if ended <= before:
            path = f"{folder}/.{session}.{epoch}.{after}.journal"
            with refusing("drop the journal segment", path), suppress(FileNotFoundError):
                disk.unlink(path)


def epochs(disk: Disk, folder: str, session: str) -> list[int]:
    """Return those under which segments were begun."""
    return [epoch for epoch, _ in _segments(disk, folder, session)]


def _segments(disk: Disk, folder: str, session: str) -> list[tuple[int, int]]:
    pattern = re.compile(rf"\.{re.escape(session)}\.(\d+)\.(\d+)\.journal\Z")
    with refusing("look into", folder):
        try:
            names = disk.names(folder)
        except FileNotFoundError:
            return []
    return sorted((int(match[1]), int(match[2])) for name in names if (match := pattern.match(name)))
