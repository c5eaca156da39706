"""Crash states: everything that a disk may hold after the power went at any moment.

A `RecordingDisk` notes the calls of the real writer, which runs on a real folder. `crash_states`
takes each prefix of that list and lays out what may be on the disk then. Two models of names:

    ordered   a prefix of the changes of names has reached the disk (journalling file systems)
    subset    any subset of those that no sync of their folder made safe (what POSIX allows)

and one of contents: what was synced is there; of each write since then nothing is, or half of it,
or half and then zeros, or all. Names and contents are independent of each other.
A rename is one step (its two halves are not told apart; no journalling file system does).
Not here: what a state should be read as; the tests say that.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.files.disk import Disk

Model = Literal["ordered", "subset"]
MODELS: tuple[Model, ...] = ("ordered", "subset")


class MakeFolder(NamedTuple):
    path: str


class Create(NamedTuple):
    path: str
    file: int


class Rename(NamedTuple):
    source: str
    target: str


class Unlink(NamedTuple):
    path: str


class Write(NamedTuple):
    file: int
    offset: int
    data: bytes


class Sync(NamedTuple):
    file: int


class SyncFolder(NamedTuple):
    path: str


class Note(NamedTuple):
    """Not a call: from here on, `what` has been promised to somebody."""

    what: object


Call = MakeFolder | Create | Rename | Unlink | Write | Sync | SyncFolder | Note


class Killed(BaseException):
    """Stands for SIGKILL: no call after it reaches the disk, also not those of a cleanup."""


class RecordingDisk(Disk):
    """The real disk under `root`, writing down what changes it; it dies before the call that `dies` names."""

    __slots__ = ("_ends", "_files", "_since", "calls", "dies", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self.calls: list[Call] = []
        self.dies: Callable[[Call, Sequence[Call]], bool] | None = None  # (this call, those before it)
        self._since = 0
        self._files: dict[int, int] = {}  # open file -> number of the file
        self._ends: dict[int, int] = {}

    def promise(self, what: object) -> None:
        self.calls.append(Note(what))

    @contextmanager
    def dying(self, dies: Callable[[Call, Sequence[Call]], bool]) -> Iterator[None]:
        """The block is a process that is killed there."""
        self._since, self.dies = len(self.calls), dies
        try:
            yield
        except Killed:
            pass
        else:
            raise AssertionError("it lived")
        finally:
            self.dies = None

    def _note(self, call: Call) -> None:
        if self.dies and self.dies(call, self.calls[self._since :]):
            raise Killed
        self.calls.append(call)

    def _at(self, path: str) -> str:
        return path.removeprefix(self.root)

    def create(self, path: str) -> int:
        number = len(self.calls)
        self._note(Create(self._at(path), number))
        fd = super().create(path)
        self._files[fd], self._ends[fd] = number, 0
        return fd

    def write(self, fd: int, data: Buffer) -> int:
        self._note(Write(self._files[fd], self._ends[fd], bytes(data)))
        size = super().write(fd, data)
        self._ends[fd] += size
        return size

    def write_at(self, fd: int, data: Buffer, offset: int) -> int:
        self._note(Write(self._file(fd), offset, bytes(data)))
        return super().write_at(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._note(Sync(self._file(fd)))
        super().sync(fd)

    def sync_data(self, fd: int) -> None:
        self._note(Sync(self._file(fd)))
        super().sync_data(fd)

    def sync_folder(self, path: str) -> bool:
        self._note(SyncFolder(self._at(path)))
        return super().sync_folder(path)

    def rename(self, source: str, target: str) -> None:
        if os.path.lexists(source):
            self._note(Rename(self._at(source), self._at(target)))
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        if os.path.lexists(path):
            self._note(Unlink(self._at(path)))
        super().unlink(path)

    def make_folder(self, path: str) -> None:
        if not os.path.lexists(path):
            self._note(MakeFolder(self._at(path)))
        super().make_folder(path)

    def close(self, fd: int) -> None:
        self._files.pop(fd, None)
        super().close(fd)

    def _file(self, fd: int) -> int:
        """Lock files are opened by their locks, not through the disk: known by their inode."""
        if fd in self._files:
            return self._files[fd]
        number = -os.fstat(fd).st_ino
        if all(not isinstance(call, Create) or call.file != number for call in self.calls):
            self._note(Create(self._at(os.readlink(f"/proc/self/fd/{fd}")), number))
        return number


@dataclass(frozen=True)
class Tree:
    """What is on a disk below its root (""): folders, and files with their contents."""

    folders: frozenset[str]
    files: frozenset[tuple[str, bytes]]

    @staticmethod
    def of(root: str) -> Tree:
        folders, files = set(), set()
        for here, _, names in os.walk(root):
            folders.add(here.removeprefix(root))
            for name in names:
                path = os.path.join(here, name)
                with open(path, "rb") as file:
                    files.add((path.removeprefix(root), file.read()))
        return Tree(frozenset(folders), frozenset(files))

    def lay_out(self, root: str) -> None:
        for folder in sorted(self.folders):
            os.makedirs(root + folder, exist_ok=True)
        for path, content in self.files:
            fd = os.open(root + path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, content)
            os.close(fd)


@dataclass(frozen=True)
class _Change:
    """What one call does to the names: in which folder, and what goes and comes."""

    folder: str
    made: str | None = None
    gone: str | None = None
    put: tuple[str, _FileId] | None = None


_FileId = int | str  # of a file that was there before: its path then
_Names = tuple[frozenset[str], dict[str, _FileId]]
_Contents = dict[_FileId, list[bytes]]  # what each file may contain


def crash_states(before: Tree, calls: list[Call], model: Model) -> Iterator[tuple[object, Tree]]:
    """(what had been promised last, tree) for every state, each pair once.

    `before` is safe on the disk. A promise is looked at from the moment it was made.
    """
    history = _History(before, calls)
    seen: set[tuple[object, Tree]] = set()
    for end in range(len(calls) + 1):
        promised = next((call.what for call in reversed(calls[:end]) if isinstance(call, Note)), None)
        contents = history.contents(end)
        for names in history.names(end, model):
            for tree in _trees(names, contents):
                if (promised, tree) not in seen:
                    seen.add((promised, tree))
                    yield promised, tree


class _History:
    def __init__(self, before: Tree, calls: list[Call]) -> None:
        self._before = before
        self._calls = calls
        self._same: dict[int, _FileId] = {}  # files that were there before they were opened
        self._changes: list[_Change | None] = []
        names: dict[str, _FileId] = {path: path for path, _ in before.files}
        for call in calls:
            change = self._change(call, names)
            self._changes.append(change)
            if change and change.gone:
                names.pop(change.gone, None)
            if change and change.put:
                names[change.put[0]] = change.put[1]

    def _change(self, call: Call, names: dict[str, _FileId]) -> _Change | None:
        match call:
            case MakeFolder(path):
                return _Change(_above(path), made=path)
            case Create(path, file):
                self._same[file] = names.get(path, file)
                return None if path in names else _Change(_above(path), put=(path, file))
            case Unlink(path):
                return _Change(_above(path), gone=path)
            case Rename(source, target):
                # what is moved is what the source was when it was called, whether or not its name was safe
                return _Change(_above(target), gone=source, put=(target, names[source]))
            case _:
                return None

    def names(self, end: int, model: Model) -> Iterator[_Names]:
        """What the folders may list: some of the changes have reached the disk."""
        syncs = [(at, call.path) for at, call in enumerate(self._calls[:end]) if isinstance(call, SyncFolder)]
        changes = [(at, change) for at, change in enumerate(self._changes[:end]) if change]
        safe = [
            any(at < when and change.folder == folder for when, folder in syncs) for at, change in changes
        ]
        chosen: Iterator[tuple[bool, ...]]
        if model == "ordered":
            least = max((index + 1 for index, is_safe in enumerate(safe) if is_safe), default=0)
            chosen = (tuple(at < size for at in range(len(safe))) for size in range(least, len(safe) + 1))
        else:
            chosen = itertools.product(*[(True,) if is_safe else (False, True) for is_safe in safe])
        for taken in chosen:
            yield self._listing([change for (_, change), take in zip(changes, taken, strict=True) if take])

    def _listing(self, changes: list[_Change]) -> _Names:
        folders = set(self._before.folders)
        files: dict[str, _FileId] = {path: path for path, _ in self._before.files}
        for change in changes:
            if change.made:
                folders.add(change.made)
            if change.gone:
                files.pop(change.gone, None)
            if change.put:
                files[change.put[0]] = change.put[1]
        kept = frozenset(folder for folder in folders if _reachable(folder, folders))
        return kept, {path: file for path, file in files.items() if _above(path) in kept}

    def contents(self, end: int) -> _Contents:
        synced: dict[_FileId, bytes] = dict(self._before.files)
        pending: dict[_FileId, list[Write]] = {}
        for call in self._calls[:end]:
            match call:
                case Create(_, file):
                    synced.setdefault(self._same[file], b"")
                case Write(file):
                    pending.setdefault(self._same[file], []).append(call)
                case Sync(file):
                    for write in pending.pop(self._same[file], []):
                        known = self._same[file]
                        synced[known] = _overwrite(synced[known], write.offset, write.data)
                case _:
                    pass
        return {file: _variants(content, pending.get(file, [])) for file, content in synced.items()}


def _reachable(folder: str, folders: set[str]) -> bool:
    while folder in folders and folder:
        folder = _above(folder)
    return not folder


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _variants(content: bytes, pending: list[Write]) -> list[bytes]:
    """Each write since the last sync: nothing of it, half, half and zeros, all. Independently."""
    found = [content]
    for write in pending:
        half = write.data[: len(write.data) // 2]
        torn = (half, half + bytes(len(write.data) - len(half)), write.data)
        found += [_overwrite(known, write.offset, data) for known in found for data in torn]
    return list(dict.fromkeys(found))


def _overwrite(content: bytes, offset: int, data: bytes) -> bytes:
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


def _trees(names: _Names, contents: _Contents) -> Iterator[Tree]:
    folders, files = names
    for chosen in itertools.product(*[contents[file] for file in files.values()]):
        yield Tree(folders, frozenset(zip(files, chosen, strict=True)))
