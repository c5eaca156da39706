"""The trio: three files that appear as one.

Promise: after a crash at any system call a reader finds the previous checkpoint or this one, whole;
when `write` has returned it is this one. `delete` leaves all of a checkpoint or none of it.

    {base}.{stage}.pkl.tmp  {base}.{stage}.state.json.tmp  {base}.{stage}.meta.json.tmp     staged
    {base}.pkl              {base}.state.json              {base}.meta.json                 final

    W1 write all three under staged names   W2 sync each      W3 sync the folder
    W4 rename meta: the commit              W5 sync the folder: durable
    W6 rename the other two: housekeeping   W7 unlink what earlier writers left behind

Meta names the staging id. Between W4 and W6 it is alone under its final name, so a reader looks
for the other two under their staged names first. Readers never rename: one that completes W6 without
the lock could put old files over new ones. Which locks are held meanwhile is the caller's (store.py).
Not here: what is in the files (the digests that prove that they belong together are above).
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound, SaveOutcomeUnknown
from graflow_ckpt.core.protocols import Parts
from graflow_ckpt.stores.files.disk import Disk, FileSink, FileSource, refusal, refusing
from graflow_ckpt.stores.names import META, PARTS, check_parts, document_in, not_found, replaced

_logger = logging.getLogger(__name__)
_STAGE = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
STAGED = re.compile(r"(?P<base>.+)\.(?P<stage>[A-Za-z0-9_-]+)\.(?P<part>pkl|state\.json|meta\.json)\.tmp\Z")
_DELETED = "deleted"  # the staging id that a meta gets when its checkpoint is being deleted


@dataclass(frozen=True, slots=True)
class Target:
    """The place of a trio: a folder and the name that its three files share."""

    folder: str
    base: str

    def final(self, part: str) -> str:
        return f"{self.folder}/{self.base}.{part}"

    def staged(self, part: str, stage: str) -> str:
        return f"{self.folder}/{self.base}.{stage}.{part}.tmp"

    @property
    def lock(self) -> str:
        # with ".pkl": a session may be called like the base, and its lock is `.{session}.lock`
        return f"{self.folder}/.{self.base}.pkl.lock"


# --- writing ---------------------------------------------------------------------------


def write(
    disk: Disk, target: Target, parts: Parts, stage: str, guard: Callable[[], AbstractContextManager[None]]
) -> bool:
    """Write a trio; the last of `parts` is its meta. False if the file system cannot sync folders.

    `guard` is entered for the commit: it takes the lock, and raises if this writer may not commit.
    """
    _check(target, parts, stage)
    commit, rest = parts[-1][0], [part for part, _ in parts[:-1]]
    made: list[str] = []
    try:
        synced = _stage(disk, target, parts, stage, made)
        with guard():
            with refusing("put the new meta at", target.final(commit)):
                disk.rename(target.staged(commit, stage), target.final(commit))  # W4: the commit
            try:
                # W5, before W6: without it a power cut can keep W6's names and the old meta
                disk.sync_folder(target.folder)
            except OSError as error:
                raise _unknown(error, target) from error
            roll_forward(disk, target, rest, stage)
    except BaseException:
        _withdraw(disk, made)
        raise
    return synced


def _check(target: Target, parts: Parts, stage: str) -> None:
    if not _STAGE.match(stage) or stage == _DELETED:
        raise ValueError(f"{stage!r} is not a staging id")
    check_parts([part for part, _ in parts])
    for part, _ in parts:
        if os.path.isdir(target.final(part)):  # W6 would find out, when it is too late
            error = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            raise refusal(error, "write", target.final(part))


def check_stands(disk: Disk, target: Target, stage: str) -> None:
    """Refuse a meta alone that is not for the parts that are there, unless there are none."""
    try:
        current = stage_of(disk.read(target.final(META)))
    except FileNotFoundError:
        return
    if current and current != stage:  # one that names no stage was written by something else
        its = target.final(PARTS[0]), target.staged(PARTS[0], current)
        if any(map(os.path.lexists, its)):
            raise replaced(target.final("pkl"))


def _stage(disk: Disk, target: Target, parts: Parts, stage: str, made: list[str]) -> bool:
    """Do W1 to W3. What was created is added to `made`, in order."""
    fds: list[int] = []
    try:
        for part, writer in parts:
            path = target.staged(part, stage)
            with refusing("create", path):
                fds.append(disk.create(path))
            made.append(path)
            sink = FileSink(disk, fds[-1], path)
            writer(sink)
            sink.flush()
        for fd, path in zip(fds, made, strict=True):
            with refusing("sync", path):
                disk.sync(fd)  # W2: without it the commit can point to empty files
        with refusing("sync the folder", target.folder):
            # W3: without it a power cut can keep meta and lose the names that it points to
            synced = disk.sync_folder(target.folder)
    finally:
        for fd in fds:
            disk.close(fd)
    return synced


def _unknown(error: OSError, target: Target) -> SaveOutcomeUnknown:
    return SaveOutcomeUnknown(
        f"The checkpoint {target.final('pkl')} was put in place, but the disk did not confirm it: "
        f"{error.strerror or error}.",
        hint="After a power cut it is there or its predecessor is. Look at the disk before you go on.",
        path=target.final("pkl"),
        errno=error.errno,
    )


def _withdraw(disk: Disk, made: Sequence[str]) -> None:
    """Delete what a failed write has staged, meta first.

    A staged meta that has gone was renamed: the checkpoint is committed, and the rest belongs to it.
    """
    for path in reversed(made):
        try:
            disk.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            _logger.warning("cannot take away %s: %s", path, error, extra={"path": path})


def roll_forward(disk: Disk, target: Target, rest: Iterable[str], stage: str) -> None:
    """Do W6. Readers find the staged names just as well, so a failure here is only logged."""
    for part in rest:
        try:
            disk.rename(target.staged(part, stage), target.final(part))
        except FileNotFoundError:
            continue  # done before
        except OSError as error:
            _logger.warning("%s keeps its staged name: %s", target.final(part), error, extra={"path": part})


def make_folders(disk: Disk, folder: str) -> None:
    """Make the folder and those above it, each synced in its parent before anything is put into it."""
    missing = []
    here = folder
    while not os.path.isdir(here):
        if os.path.lexists(here) and not os.path.isdir(here):  # asked again: it may just have been made
            error = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            raise refusal(error, "make the folder", here)
        missing.append(here)
        here = os.path.dirname(here)
    for path in reversed(missing):
        with refusing("make the folder", path), suppress(FileExistsError):
            disk.make_folder(path)
    for path in reversed(missing or [folder]):
        # also of a folder that was there: its maker may have died before this call
        with refusing("sync the folder above", path), suppress(PermissionError):
            disk.sync_folder(os.path.dirname(path))


# --- reading ---------------------------------------------------------------------------


def open_part(disk: Disk, target: Target, part: str, stage: str) -> FileSource:
    """Open the part under its staged name, its final one, and the staged one once more.

    Once more, because a writer may have committed again between the looks. A trio without a staging
    id was written by something else and has final names only.
    """
    staged, final = target.staged(part, stage), target.final(part)
    # a stage that no writer can have chosen is not looked for: it would be the name of another file
    for path in (staged, final, staged) if _STAGE.match(stage) else (final,):
        with refusing("open", path):
            try:
                return FileSource(disk.open(path), path)
            except FileNotFoundError:
                continue
    if not os.path.lexists(target.final(META)):
        raise not_found(target.final("pkl"))
    raise CheckpointCorrupt(
        f"The checkpoint {target.final('pkl')} lacks its companion {target.base}.{part}.",
        hint="All three files belong together: copy or rename them as one, or use another checkpoint.",
        path=target.final("pkl"),
        part=part,
    )


def read_meta(disk: Disk, target: Target) -> bytes:
    path = target.final(META)
    with refusing("read", path):
        try:
            return disk.read(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
    alone = os.path.lexists(target.final("pkl"))
    raise CheckpointNotFound(
        f"Checkpoint {target.final('pkl')} not found. It may have expired or been deleted"
        + (f": the file is there, its companion {target.base}.{META} is not." if alone else "."),
        hint="All three files belong together: copy or rename them as one." if alone else "",
        path=target.final("pkl"),
    )


def stage_of(meta: bytes) -> str | None:
    """Return the staging id that a meta names: "" if it names none, None if it cannot be read."""
    found = document_in(meta)
    stage = found.get("stage", "") if found is not None else None
    return stage if isinstance(stage, str) and (not stage or _STAGE.match(stage)) else None


# --- deleting and housekeeping (under the locks that writers take) ----------------------


def delete(disk: Disk, target: Target) -> bool:
    """Delete all of it, meta first. Return False if there is no meta (then nothing is touched)."""
    marker = target.staged(META, _DELETED)
    with refusing("delete", target.final("pkl")):
        try:
            stage = stage_of(disk.read(target.final(META)))
            disk.rename(target.final(META), marker)  # from here on there is no checkpoint
        except FileNotFoundError:
            return False
        # without it a power cut can bring meta back and not what it points to
        disk.sync_folder(target.folder)
        _delete_rest(disk, target, stage)
    return True


def _delete_rest(disk: Disk, target: Target, stage: str | None) -> None:
    for part in PARTS[:-1]:
        names = (target.staged(part, stage), target.final(part)) if stage else (target.final(part),)
        for name in names:
            with suppress(FileNotFoundError):
                disk.unlink(name)
    with suppress(FileNotFoundError):
        disk.unlink(target.staged(META, _DELETED))  # last: it says that there is a rest to delete


def sweep(disk: Disk, folder: str, entered: Callable[[Target], AbstractContextManager[bool]]) -> None:
    """Finish what dead writers and deleters began, for the targets where `entered` gives True.

    It does so only where no other process can write meanwhile. A staged file that its meta refers to gets
    its final name, one that no meta refers to is deleted. If the meta cannot be read, everything stays: it
    may be needed to find out what happened.
    """
    staged: dict[str, list[tuple[str, str]]] = {}
    for name in disk.names(folder):
        if match := STAGED.match(name):
            staged.setdefault(match["base"], []).append((match["stage"], match["part"]))
    for base, found in staged.items():
        target = Target(folder, base)
        with entered(target) as ours:
            if ours:
                _sweep_one(disk, target, found)


def _sweep_one(disk: Disk, target: Target, found: Sequence[tuple[str, str]]) -> None:
    # A writer may have been killed right after its commit: what is read as the newest meta here must
    # be on the disk before what an older one needs is deleted.
    disk.sync_folder(target.folder)
    try:
        current = stage_of(disk.read(target.final(META)))
    except FileNotFoundError:
        current = ""
        if (_DELETED, META) in found:
            _delete_rest(disk, target, None)
    if current is None:
        return
    if current:
        ours = [part for stage, part in found if stage == current]
        roll_forward(disk, target, ours, current)
    for stage, part in found:
        if stage != current:
            with suppress(FileNotFoundError):
                disk.unlink(target.staged(part, stage))  # W7
