"""Ownership: one living owner per session, under an epoch that only grows.

    .{session}.lock      locked (`flock`) by the owner for as long as it lives; empty, and never replaced
    .{session}.owner     {"epoch": 3, "owner": {pid, started, boot, …}, "lines": [[3, 17], …]}

Promise: of several that acquire a session at once exactly one gets it, and it keeps the session until it
releases it or ends, however it ends: nothing takes a lock from a living process. An epoch is on the disk
before anything is written under it, and is above all that was ever written of the session. Before a commit
`check` makes sure that this is the process that took the lock (a forked child inherits the object, not the
lock), and that the path still names the file that is locked.

The lock file is empty, so nothing can tear it. The record is written aside, synced and renamed.
A damaged record is no obstacle: epochs of checkpoints and of journal segments are looked at as well.
On a network file system a lock may not reach other hosts: there `check` reads the record, too.
Not here: what a commit is; how a living owner is ended (`--take-over`: cli/run/launch.py).
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from graflow_ckpt.core.errors import CheckpointCorrupt, Fenced, SessionBusy
from graflow_ckpt.core.protocols import Line, Owner
from graflow_ckpt.links.processes import holders, is_gone, myself, named
from graflow_ckpt.stores import owners
from graflow_ckpt.stores.files.disk import Disk, network_file_system, refusing
from graflow_ckpt.stores.files.lock import Flock, is_held, locked

_logger = logging.getLogger(__name__)
_PATIENCE = 0.2  # seconds: a look at the lock holds it for a moment, and so does a child until its `exec`


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The fields that are written of the owner. Epoch 0: nothing is."""

    epoch: int = 0
    owner: Owner | None = None
    lines: tuple[Line, ...] = ()

    def encode(self) -> bytes:
        said = {
            "epoch": self.epoch,
            "owner": asdict(self.owner) if self.owner else None,
            "lines": [[line.epoch, line.sequence] for line in self.lines],
        }
        return json.dumps(said, separators=(",", ":")).encode()


class LocalLease(owners.HeldLease):
    """One in a folder: no other process can fence it, but it ends with its lock file."""

    def __init__(
        self, ownership: Ownership, session: str, record: OwnerRecord, lock: Flock, taken_from: Owner | None
    ) -> None:
        self._record, self._ownership, self._lock = record, ownership, lock
        self._began_empty = ownership.is_empty(session)
        self._mutex = threading.Lock()
        super().__init__(ownership.folder, session, record.epoch, "", taken_from)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other threads of this process out."""
        self.not_released()
        with self._mutex:
            self.not_released()
            yield

    def check(self) -> None:
        self.not_released()
        if not self._lock.is_in_place():
            self._lost()
        if self._ownership.is_remote and self._ownership.read(self.session) != self._record:
            self._lost()

    def _let_go(self) -> None:
        try:
            with self.locked():
                self.check()
                if self._began_empty or not self._ownership.is_empty(self.session):
                    self._ownership.write(self.session, replace(self._record, owner=None))
                else:
                    self._ownership.delete(self.session)  # what it had was deleted, and so is this
        finally:
            self._released = True  # first: no thread is to ask a lock that is closed
            self._lock.close()

    def _lost(self) -> None:
        if not os.path.lexists(self._lock.path):
            raise Fenced(
                f"The lock file of session {self.session!r} has been removed: {self._lock.path}.",
                hint=owners.NO_MORE,
                session=self.session,
                epoch=self.epoch,
            )
        found = self._ownership.read(self.session)
        raise owners.lost(self.session, self.epoch, found.epoch, found.owner)


class Ownership:
    """The locks and records of the sessions in one folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.folder = folder
        self.is_remote = False  # known from the first `acquire` on

    def acquire(self, session: str, written: Callable[[], int]) -> LocalLease:
        """Become the owner. `written`: the highest epoch under which anything of the session was written."""
        self._look_at_mount()
        path = self._lock_path(session)
        with refusing("lock", path):
            lock = locked(path, patience=_PATIENCE)
        if lock is None:
            raise self._busy(session)
        try:
            self._leave_former_files(session)
            found = self.read(session)
            record = OwnerRecord(max(found.epoch, written()) + 1, myself(), found.lines)
            self.write(session, record)
        except BaseException:
            lock.close()
            raise
        return LocalLease(self, session, record, lock, found.owner)

    def owner(self, session: str) -> Owner | None:
        """Return the living owner. Take nothing and write nothing."""
        path = self._lock_path(session)
        with refusing("look at", path):
            return self.read(session).owner if is_held(path) else None

    def read(self, session: str) -> OwnerRecord:
        """Return the record; an empty one if there is none, or none that can be read."""
        for path, decode in ((self._record_path(session), _decode), (self._lock_path(session), _of_slots)):
            with refusing("read", path):
                try:
                    raw = self._disk.read(path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
            try:
                return decode(raw)
            except CheckpointCorrupt as error:
                _logger.warning("%s says nothing: %s", path, error, extra={"session": session})
        return OwnerRecord()

    def write(self, session: str, record: OwnerRecord) -> None:
        """Write; durable on return, and whole whatever happens meanwhile."""
        path = self._record_path(session)
        aside = f"{path}.tmp"
        with refusing("write", path):
            try:
                fd = self._disk.create(aside)
            except FileExistsError:  # of a process that was killed in the middle of this
                self._disk.unlink(aside)
                fd = self._disk.create(aside)
            try:
                data = memoryview(record.encode())
                while data:
                    data = data[self._disk.write(fd, data) :]
                self._disk.sync(fd)  # before the rename: else a power cut can leave an empty record
            finally:
                self._disk.close(fd)
            self._disk.rename(aside, path)
            self._disk.sync_folder(self.folder)  # else a power cut can bring back an epoch that was used

    def forget(self, session: str) -> None:
        """Delete the files of a session that has nothing any more; a living owner keeps them."""
        path = self._lock_path(session)
        with refusing("delete", path):
            lock = locked(path, patience=0, create=False)
            if lock is None:
                return
            try:
                if self.is_empty(session):
                    self.delete(session)
            finally:
                lock.close()

    def is_empty(self, session: str) -> bool:
        """Return True if nothing was ever saved of the session, or nothing is left."""
        saved = self._named(rf"session_{re.escape(session)}_step_\d+_\d+-\d+\.")
        return not saved and not any(map(os.path.getsize, self._journals(session)))

    def delete(self, session: str) -> None:
        """Delete under the lock: a process that waits for it finds its file gone, and makes another one."""
        paths = (*self._journals(session), self._record_path(session), self._lock_path(session))
        for path in paths:
            with suppress(FileNotFoundError):
                self._disk.unlink(path)

    # --- within ------------------------------------------------------------------------

    def _look_at_mount(self) -> None:
        kind = network_file_system(self.folder)
        if kind is not None and not self.is_remote:
            _logger.warning(
                "%s is on a network file system (%s), where a lock may not be seen by other hosts: run each "
                "session on one host at a time, or use a store on a server.",
                self.folder,
                kind,
            )
        self.is_remote = kind is not None

    def _leave_former_files(self, session: str) -> None:
        """Remove files of earlier commits: one more for each epoch, whose lock lived as long as the owner."""
        for path in self._named(rf"\.{re.escape(session)}\.\d+\.alive\Z"):
            if is_held(path):
                raise owners.busy(session, None)
            self._disk.unlink(path)

    def _journals(self, session: str) -> list[str]:
        return self._named(rf"\.{re.escape(session)}\.\d+\.\d+\.journal\Z")

    def _named(self, pattern: str) -> list[str]:
        found = re.compile(pattern)
        return [f"{self.folder}/{name}" for name in self._disk.names(self.folder) if found.match(name)]

    def _busy(self, session: str) -> SessionBusy:
        owner = self.read(session).owner
        if owner is None or not is_gone(owner):
            return owners.busy(session, owner)
        others = ", ".join(named(found) for found in holders(self._lock_path(session)))
        return SessionBusy(
            f"Session {session!r} is locked although its owner, {named(owner)}, has ended: "
            f"{others or 'a process that it started'} keeps the lock.",
            hint="End that process, then run again.",
            session=session,
            owner=owner,
        )

    def _lock_path(self, session: str) -> str:
        return f"{self.folder}/.{session}.lock"

    def _record_path(self, session: str) -> str:
        return f"{self.folder}/.{session}.owner"


def _decode(raw: bytes) -> OwnerRecord:
    where = "the record of an owner"
    found = owners.parsed(raw, where)
    try:
        epoch, owner, lines = found["epoch"], found["owner"], found["lines"]
    except (TypeError, LookupError) as error:
        raise owners.nonsense(where) from error
    return OwnerRecord(
        owners.number(epoch, where),
        owners.owner_of(owner, where) if owner else None,
        owners.lines_of(lines, where),
    )


def _of_slots(raw: bytes) -> OwnerRecord:
    """Return the record as earlier commits wrote it: into the lock file, in two slots with a CRC each."""
    slots = [line.split(b" ", 1) for line in re.findall(rb"[0-9a-f]{8} \{[^\n]*(?=\n)", raw)]
    sound = [body for crc, body in slots if int(crc, 16) == zlib.crc32(body)]
    found = max(
        (owners.parsed(body, "a lock file") for body in sound), key=lambda said: said["turn"], default=None
    )
    return OwnerRecord() if found is None else replace(_decode(json.dumps(found).encode()), owner=None)
