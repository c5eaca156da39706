"""The disk: raw system calls, one method each, so that a test can act between us and the kernel.

Promise: every call that changes what is on the disk goes through one of these methods, in the order in
which the protocols (trio.py, ownership.py, journal.py) ask for it. A subclass that records them sees the
whole history that a crash can cut short. Also here: what an operating system's error means to a user
(`refusal`). A part of a checkpoint as an open file: what the sink took is with the kernel after `flush`, in
order, however the writes were cut; an error names the path and what to do.
The kind of file system that a path is on is known only where /proc/mounts is.
Not here: when a file is synced, and what it is called; which calls, in which order, and why.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError
from graflow_ckpt.core.protocols import Buffer

# macOS: fsync there only sends the bytes to the drive, which may keep them in its cache
_FULL_SYNC: int = getattr(fcntl, "F_FULLFSYNC", 0)

_NO_SYNC_OF_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}

_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space or use another folder (--store), then run again.",
    errno.EDQUOT: "The quota is used up: free some space or use another folder (--store), then run again.",
    errno.EROFS: "The file system is mounted read-only: name another folder (--store), or have it remounted.",
    errno.EACCES: "This user may not write there: change its permissions, or name another folder (--store).",
    errno.EPERM: "This user may not do that there: change its permissions, or name another folder (--store).",
    errno.EISDIR: "There is a folder of that name: give the path of a file.",
    errno.ENOTDIR: "A part of the path is a file, not a folder: name another path (--store).",
    errno.EXDEV: "The path crosses into another file system: give a folder that lies on one.",
    errno.ENAMETOOLONG: "The name is too long: a shorter one is needed (some 60 characters are added).",
    errno.ENOENT: "It, or its folder, is not there: is the path right? Was it removed while this ran?",
    errno.EMFILE: "Too many files are open in this process: raise `ulimit -n` or close some.",
    errno.ENFILE: "Too many files are open on this machine: close some, then run again.",
    errno.EIO: "The device reported an error: look at the kernel's log, and do not trust this disk.",
    errno.ENOLCK: "This file system has no file locks: use a folder on one that has (a local disk).",
    errno.ENOTSUP: "This file system cannot do that: use a folder on a local disk.",
    errno.EEXIST: "The staging name is taken: staging ids must be unique.",
    errno.ELOOP: "The path goes round in symbolic links: give another one.",
    errno.ESTALE: "The network file system has lost the file: check the mount, then run again.",
}


SMALL = 64 << 20
"""What is read in one piece is smaller, whatever another program has put in its place."""


HOLE = 4 << 20
"""Bytes: more than a record of a journal has."""

_CHUNK = 1 << 20


class Disk:
    """The real disk. It keeps nothing, so one instance serves all threads."""

    __slots__ = ()

    def create(self, path: str) -> int:
        """Create a file for writing, ours alone to read; refuse if the name exists."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open_to_update(self, path: str) -> int:
        """Open a file for reading and writing in place; make it if it is not there."""
        return open_own(path, os.O_RDWR | os.O_CREAT)

    def open(self, path: str) -> int:
        # O_NONBLOCK: a pipe that another program put there must not hang the reader
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def write(self, fd: int, data: Buffer) -> int:
        return os.write(fd, data)

    def write_at(self, fd: int, data: Buffer, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        if _FULL_SYNC:
            fcntl.fcntl(fd, _FULL_SYNC)
        else:
            os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        """Sync content and size; times need not be on the disk."""
        if _FULL_SYNC:
            fcntl.fcntl(fd, _FULL_SYNC)
        else:
            os.fdatasync(fd)

    def sync_folder(self, path: str) -> bool:
        """Sync the folder's names; return False where the file system cannot do that."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno in _NO_SYNC_OF_FOLDERS:
                return False
            raise
        finally:
            os.close(fd)
        return True

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def close(self, fd: int) -> None:
        os.close(fd)

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def read(self, path: str, most: int | None = SMALL) -> bytes:
        """Return all of a regular file, unless it has more bytes than `most`; None: whatever it has."""
        fd = self.open(path)
        try:
            size = regular_size(fd, path)
            if most is not None and size > most:
                raise CheckpointCorrupt(
                    f"{path} has {size} bytes: nothing of that name is that large.", path=path, size=size
                )
            return _whole(fd, size)
        finally:
            self.close(fd)

    def read_filled(self, path: str) -> bytes:
        """Return a regular file up to the last chunk that is not zeros. A hole takes no memory: of a longer
        one than any record `HOLE` bytes are given."""
        fd = self.open(path)
        try:
            size = regular_size(fd, path)
            if os.fstat(fd).st_blocks * 512 >= size:  # no hole: once in memory, where pieces would be twice
                return _whole(fd, size)
            found, zeros = bytearray(), 0
            while chunk := os.read(fd, _CHUNK):
                if chunk.count(0) == len(chunk):
                    zeros += len(chunk)
                    continue
                found += bytes(min(zeros, HOLE))
                found += chunk
                zeros = 0
            return bytes(found)
        finally:
            self.close(fd)


def _whole(fd: int, size: int) -> bytes:
    """Return all that there is, of what had so many bytes when it was looked at."""
    first = os.read(fd, size + 1)
    rest = list(iter(lambda: os.read(fd, _CHUNK), b""))
    return b"".join([first, *rest]) if rest else first  # else it would be in memory twice


def open_own(path: str, flags: int) -> int:
    """Open a file that this package alone may have made: a regular one of this user, never through a link.

    Else a link under a name that can be guessed would lead a write into another file of the user.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise _not_own(path, "is a symbolic link") from error
        raise
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            raise _not_own(path, "is not a regular file")
        if os.geteuid() not in (0, found.st_uid):
            raise _not_own(path, f"belongs to user {found.st_uid}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _not_own(path: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not used: it {why}.",
        hint=f"Find out who made it, then remove it: rm {shlex.quote(path)}",
        path=path,
    )


def anyones(files: Iterable[str], folder: str) -> str | None:
    """Return why every user could have written one of these files of a folder; None if that is not so."""
    for path in files:
        with refusing("look at", path), suppress(FileNotFoundError):
            mode = os.stat(path).st_mode
            if mode & stat.S_IWOTH:
                return f"{path} can be written by everybody (mode {stat.S_IMODE(mode):04o})"
    with suppress(FileNotFoundError):
        return open_to_all(folder)
    return None


def open_to_all(folder: str) -> str | None:
    """Return why every user could put files there, or replace them; None if that is not so."""
    mode = os.stat(folder).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return f"everybody can put files into {folder} (mode {stat.S_IMODE(mode):04o})"
    return None


def regular_size(fd: int, path: str) -> int:
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path} is not a regular file.", hint="Take it away.", path=path)
    return found.st_size


def refusal(error: OSError, doing: str, path: str) -> CheckpointError:
    """Return the error of an operating system that refused: what, of which path, and what a user can do."""
    number = error.errno or 0
    name = errno.errorcode.get(number, "no errno")
    return CheckpointError(
        f"Cannot {doing} {path}: {error.strerror or error} ({name}).",
        hint=_ADVICE.get(number, "Nothing was changed there."),
        path=path,
        errno=number,
    )


@contextmanager
def refusing(doing: str, path: str) -> Iterator[None]:
    """Turn what the operating system says inside the block into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise refusal(error, doing, path) from error


# --- a part as an open file ----------------------------------------------------------------


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


# --- the kind of file system that a path is on ---------------------------------------------


TABLE: Final = Path("/proc/mounts")
_NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs",
    "gfs2", "ocfs2", "orangefs", "fuse.sshfs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse",
    "fuse.juicefs", "fuse.mount-s3",
})  # fmt: skip


def file_system(target: str | os.PathLike[str], table: Path = TABLE) -> str | None:
    """Return the kind of file system that `target` is on, or will be made on; None: not known."""
    try:
        mounts = mounted(table.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return None
    return kind_at(Path(target), mounts)


def network_file_system(target: str | os.PathLike[str], table: Path = TABLE) -> str | None:
    """Return the same, if other hosts can write there, too; else None."""
    kind = file_system(target, table)
    return kind if kind in _NETWORK else None


def mounted(table: str) -> dict[str, str]:
    """Return what is mounted, by its place; the last one of several at one place hides the others."""
    found: dict[str, str] = {}
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) >= 3:
            # Spaces, tabs and newlines of a name are octal.
            found[re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])] = fields[2]
    return found


def kind_at(path: Path, mounts: dict[str, str]) -> str | None:
    """Return the kind of the deepest mount above `path`."""
    here = os.path.realpath(path)  # of what does not exist yet, as far as it does
    while here not in mounts and here != os.path.dirname(here):
        here = os.path.dirname(here)
    return mounts.get(here)
