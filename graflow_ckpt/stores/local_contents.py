"""Contents in a folder: files that several checkpoints have in common, each under a name of its own in all.

    .contents/{name}                        which there are: looked at by who saves
    {base}.{stage}.contents/{name}          the same file once more (a hard link): what a checkpoint holds

Promise: a checkpoint is complete by itself, whatever happens to others: the file system counts the names of a
file, in every crash. Nothing is ever locked: who finds that only `.contents` still names a file takes that
name away, and if somebody links it in that moment, he has it (the next one who saves it stores it once more).
Before the commit the files and their names in the checkpoint's own folder are on the disk; those in
`.contents` need not be.
Where links cannot be made (another file system's rules, too many of them), a checkpoint has its own copy.
Not here: the commit (trio.py), digests (above).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError
from graflow_ckpt.core.protocols import Buffer, Lease, PartWriter, Sink
from graflow_ckpt.stores.disk import Disk, refusing
from graflow_ckpt.stores.files import FileSink, FileSource
from graflow_ckpt.stores.hard_links import INDEX, forget, take_away
from graflow_ckpt.stores.names import contents_in, gone, is_content
from graflow_ckpt.stores.trio import META, Target, stage_of


class LocalContents:
    """Those of a folder. `share`: begin with it; where it was begun once it goes on.

    `target`: where the trio of a path stands; `settle`: makes a folder.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        target: Callable[[str], Target],
        settle: Callable[[str], None],
        *,
        share: bool,
    ) -> None:
        self._disk, self._root, self._target, self._settle = disk, root, target, settle
        self._share = share

    @property
    def shares(self) -> bool:
        return self._share or os.path.isdir(f"{self._root}/{INDEX}")

    def scope(self, path: str, /) -> str:
        return ""

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> LocalSaving:
        target = self._target(path)
        return LocalSaving(self._disk, self._settle, target, stage)

    def open(self, path: str, name: str, stage: str) -> FileSource:
        target = self._target(path)
        file = f"{target.contents(stage)}/{name}"
        if is_content(name) and "/" not in stage:
            with refusing("open", file), suppress(FileNotFoundError, NotADirectoryError):
                return FileSource(self._disk.open(file), file)
        raise CheckpointCorrupt(
            f"The checkpoint {target.final('pkl')} lacks its content {name[:64]}.",
            hint="The folder that is called like it belongs to it: copy or move them together.",
            path=target.final("pkl"),
            part=name[:64],
        )

    def checked(self, target: Target, stage: str, part: str, writer: PartWriter) -> tuple[str, PartWriter]:
        """The part with the meta; its writer raises if contents are named that are not there."""

        def write(sink: Sink) -> None:
            seen = _Seen(sink)
            writer(seen)
            if names := contents_in(bytes(seen.data)):
                with suppress(FileNotFoundError):
                    names -= set(self._disk.names(target.contents(stage)))
                if names:
                    raise gone(target.final("pkl"), names)

        return part, write

    def distrust(self, path: str, name: str, stage: str) -> None:
        target = self._target(path)
        own, entry = f"{target.contents(stage)}/{name}", f"{target.folder}/{INDEX}/{name}"
        with suppress(FileNotFoundError):
            if os.path.samefile(own, entry):
                self._disk.unlink(entry)

    def sweep(self) -> int:
        index, count = f"{self._root}/{INDEX}", 0
        with suppress(FileNotFoundError):
            for name in self._disk.names(index):
                count += forget(self._disk, f"{index}/{name}")
        return count


class LocalSaving:
    """What one save has found and added, in the folder of its stage."""

    def __init__(self, disk: Disk, settle: Callable[[str], None], target: Target, stage: str) -> None:
        self._disk, self._settle, self._target, self._stage = disk, settle, target, stage
        self._folder = target.contents(stage)
        self._index = f"{target.folder}/{INDEX}"
        self._added: list[str] = []
        self._made = False

    def hold(self, names: Sequence[str], /) -> Collection[str]:
        self._make()
        there = []
        for name in names:
            try:
                self._disk.link(f"{self._index}/{name}", f"{self._folder}/{name}")
            except FileExistsError:
                pass  # found before
            except FileNotFoundError:
                self._check()
                continue
            except OSError:
                continue  # it has as many names as it can have, or may have none of ours: a copy will do
            there.append(name)
        return there

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        self._make()
        path = f"{self._folder}/{name}"
        with refusing("create", path):
            with suppress(FileNotFoundError):
                self._disk.unlink(path)
            fd = self._disk.create(path)
        try:
            sink = FileSink(self._disk, fd, path)
            for piece in pieces:
                sink.write(piece)
            sink.flush()
        except BaseException:
            self._disk.unlink(path)
            raise
        finally:
            self._disk.close(fd)
        self._added.append(name)

    def settle(self) -> None:
        for name in self._added:
            path = f"{self._folder}/{name}"
            with refusing("sync", path):
                fd = self._disk.open(path)
                try:
                    self._disk.sync(fd)  # before others can find it: they would not sync it again
                finally:
                    self._disk.close(fd)
            self._tell(name)
        self._added.clear()
        with refusing("sync the folder", self._folder):
            self._disk.sync_folder(self._folder)

    def end(self) -> None:
        """What was not committed goes. Where nobody can tell, it stays for a sweep."""
        if not self._made:
            return
        try:
            committed = stage_of(self._disk.read(self._target.final(META)))
        except FileNotFoundError:
            committed = ""
        if committed not in (None, self._stage):
            take_away(self._disk, self._folder)

    def _make(self) -> None:
        if self._made:
            return
        self._settle(self._target.folder)
        for folder in (self._folder, self._index):
            with refusing("make the folder", folder), suppress(FileExistsError):
                self._disk.make_folder(folder)
        self._made = True

    def _tell(self, name: str) -> None:
        entry = f"{self._index}/{name}"
        with suppress(OSError):  # then nobody will share it
            try:
                self._disk.link(f"{self._folder}/{name}", entry)
            except FileExistsError:  # one that `hold` could not use, or another's of this moment
                self._disk.unlink(entry)
                self._disk.link(f"{self._folder}/{name}", entry)

    def _check(self) -> None:
        if not os.path.isdir(self._folder):
            raise CheckpointError(
                "The checkpoint was not written: what it holds was cleared away as a dead writer's.",
                hint="Another owner of the session did so.",
                path=self._folder,
            )


class _Seen:
    """A sink that passes on what it sees: a meta, which is small."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.data = bytearray()

    def write(self, data: Buffer, /) -> int:
        self.data += data
        return self._sink.write(data)
