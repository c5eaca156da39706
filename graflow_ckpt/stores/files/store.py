"""Checkpoints in a folder of a local disk.

Promise: that of trio.py for every checkpoint and of ownership.py for every session. Two processes
that write one path do it one after the other; a writer that has lost its session commits nothing.

Paths: the session's own ones (`session_{id}_step_{n}_{time}-{sequence}.pkl` in the folder) are
unique, so they are staged without a lock, and only the commit is under the session's. Any other
path may be written by any program, and is locked (`.{base}.pkl.lock`) for the whole write. A relative
path whose folder is the store's means the store's also after a `chdir`.
Not here: what a checkpoint contains, and whether it can be trusted.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial

from graflow_ckpt.core.errors import CheckpointError, UnsafeCheckpoint
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Drops, Lease, Line, Owner, Parts
from graflow_ckpt.stores.files import journal as segments
from graflow_ckpt.stores.files import trio
from graflow_ckpt.stores.files.disk import Disk, FileSource, anyones, open_to_all, refusing
from graflow_ckpt.stores.files.lock import held
from graflow_ckpt.stores.files.ownership import LocalLease, Ownership
from graflow_ckpt.stores.names import META, PARTS, base_of, check_own, facts_in, session_in, without_scheme
from graflow_ckpt.stores.owners import clearing, no_take_over
from graflow_ckpt.stores.store import Store

_logger = logging.getLogger(__name__)
_OWN_NAME = re.compile(r"session_(?P<session>[A-Za-z0-9_-]{1,64})_step_\d+_\d+-(?P<sequence>\d+)\Z")


class LocalStore(Store[LocalLease]):
    """The folder is made at the first write, not before. Each .pkl is complete by itself."""

    own = LocalLease
    shared = False
    contents = None

    def __init__(self, folder: str | os.PathLike[str] = "checkpoints", *, disk: Disk | None = None) -> None:
        text = without_scheme(os.fspath(folder))
        if text.endswith("?share=true"):
            raise CheckpointError(
                f"{text} asks for values that checkpoints of a folder share, which folders do not have.",
                hint="Each checkpoint of a folder is complete by itself. For shared values: sqlite:///FILE.",
            )
        if not text.strip():
            raise CheckpointError("The path for the checkpoints is empty: no folder.", hint="Give a folder.")
        self.folder = text.rstrip("/") or "/"
        self.synced = True  # False once the file system has refused to sync a folder: saves are `accepted`
        self._root = os.path.abspath(self.folder)
        self._disk = disk or Disk()
        self._ownership = Ownership(self._disk, self._root)
        self._settled: set[str] = set()

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def probe(self) -> None:
        """Do once what saving will do, and delete it again."""
        made = not os.path.isdir(self._root)
        self._settle(self._root)
        self._check_folder()
        path = f"{self._root}/.probe.{os.getpid()}.tmp"
        with refusing("write into", self._root), held(f"{path}.lock"):
            with suppress(FileNotFoundError):
                self._disk.unlink(path)
            fd = self._disk.create(path)
            try:
                self._disk.write(fd, b"probe")
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)
                self._disk.unlink(path)
            self.synced = self._disk.sync_folder(self._root)
        if made:  # git clean and git add pass over it
            with suppress(OSError), open(f"{self._root}/.gitignore", "x", encoding="utf-8") as file:
                file.write("*\n")

    @property
    def _home(self) -> str:
        return self._root

    def takes(self, path: str) -> str | None:
        """Return the path, if it is one of files; None if it leads to another store."""
        return path if "://" not in without_scheme(path) else None

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> LocalLease:
        check_session_id(session)
        if take_over:
            raise no_take_over(session, self.url)
        self._settle(self._root)
        lease = self._ownership.acquire(session, partial(self._highest_epoch, session))
        with clearing(lease), lease.locked():
            lease.check()
            trio.sweep(self._disk, self._root, partial(self._left_by, session))
        return lease

    def owner(self, session: str) -> Owner | None:
        return self._ownership.owner(check_session_id(session))

    def former_lines(self, session: str) -> tuple[Line, ...]:
        """Return what earlier commits noted of rewinds beside the checkpoints; now their metas list it."""
        return self._ownership.read(check_session_id(session)).lines

    # --- checkpoints -------------------------------------------------------------------

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        target = self._target(path)
        mine = self._own(lease) if lease is not None else None
        its = self._session_of(target)
        if mine is not None:
            check_own(path, its, mine.session)
        own = mine is not None and its is not None
        guard = partial(self._committing, target, mine, own, stage if len(parts) == 1 else "")
        first = target.folder not in self._settled
        self._settle(target.folder)
        with ExitStack() as locks:
            if own:
                untidy = os.path.lexists(target.final(META))
            else:
                with refusing("lock", target.lock):
                    # a writer that is killed leaves its lock file beside what it has staged
                    untidy = first or os.path.lexists(target.lock)
                    locks.enter_context(held(target.lock))
            self.synced &= trio.write(self._disk, target, parts, stage, guard)
            if untidy:
                self._tidy(target)

    def open(self, path: str, part: str, stage: str) -> FileSource:
        return trio.open_part(self._disk, self._target(path), part, stage)

    def meta(self, path: str) -> bytes:
        return trio.read_meta(self._disk, self._target(path))

    def unsafe(self, path: str) -> str | None:
        """Return why every user could have written that checkpoint; None if that is not so."""
        target = self._target(path)
        return anyones(map(target.final, PARTS), target.folder)

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield whatever has a meta: damaged ones with their bytes, unreadable ones with none at all.

        The newest of a session first, by the sequence in its name: times of files say less.
        `session`: its own paths, and those in the folder under other names whose meta names it.
        `pattern`: a glob of paths, with or without the suffix, instead of the folder.
        """
        for path in sorted(self._paths(pattern), key=_age, reverse=True):
            target = self._target(path)
            named = _OWN_NAME.match(target.base)
            if session is not None and named and named["session"] != session:
                continue
            try:
                raw = self._disk.read(target.final(META))
            except FileNotFoundError:
                continue  # deleted meanwhile
            except (OSError, CheckpointError):
                raw = b""
            if session is None or named or session_in(raw) == session:
                yield path, raw

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete one after the other; return how many there were."""
        gone = [target for target in list(map(self._target, paths)) if self._delete(target)]
        for session in {self._session_of(target) for target in gone} - {None}:
            self._ownership.forget(str(session))
        return len(gone)

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> segments.Segment:
        return segments.open_segment(self._disk, self._root, self._own(lease), after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return segments.read_segments(self._disk, self._root, check_session_id(session))

    def drop_segments(self, session: str, before: int) -> None:
        segments.drop_segments(self._disk, self._root, check_session_id(session), before)

    # --- within ------------------------------------------------------------------------

    def _target(self, path: str) -> trio.Target:
        text = base_of(without_scheme(os.fspath(path)))
        folder, base = os.path.split(text)
        if not base or base in (".", "..") or "\0" in text:
            raise CheckpointError(
                f"{path!r} names a folder, not a checkpoint.", hint="Add the name of a file.", path=path
            )
        return trio.Target(self._root if folder == self.folder else os.path.abspath(folder), base)

    @contextmanager
    def _committing(
        self, target: trio.Target, lease: LocalLease | None, own: bool, alone: str
    ) -> Iterator[None]:
        """Take what a commit needs, or refuse it. `alone`: the stage of a meta that is put alone."""
        with ExitStack() as locks:
            if lease is not None:
                locks.enter_context(lease.locked())
                lease.check()
            # where there is none yet, there is nothing that another process deletes
            if own and os.path.lexists(target.final(META)):
                locks.enter_context(held(target.lock))
            if alone:
                trio.check_stands(self._disk, target, alone)
            yield

    def _session_of(self, target: trio.Target) -> str | None:
        """Return the session whose own path this is."""
        named = _OWN_NAME.match(target.base)
        return named["session"] if named and target.folder == self._root else None

    def _delete(self, target: trio.Target) -> bool:
        with ExitStack() as locks:
            with refusing("lock", target.lock):
                if not os.path.lexists(target.final(META)):
                    return False
                locks.enter_context(held(target.lock))
            return trio.delete(self._disk, target)

    def _check_folder(self) -> None:
        """Check as a reader does, before anything is written that no reader would open."""
        if (why := open_to_all(self._root)) is not None:
            own = f"{self._root}/{os.environ.get('USER') or 'own'}"
            raise UnsafeCheckpoint(
                f"The folder {self._root} is not used: {why}, so nothing in it could be trusted.",
                hint=f"Take that permission away: chmod o-w {shlex.quote(self._root)}. Where you may not, as "
                f"in a volume of a container, name a folder in it: {own} is made with mode 0700.",
                path=self._root,
            )

    def _settle(self, folder: str) -> None:
        if folder in self._settled and os.path.isdir(folder):
            return
        trio.make_folders(self._disk, folder)
        self._settled.add(folder)

    @contextmanager
    def _left_by(self, session: str, target: trio.Target) -> Iterator[bool]:
        if self._session_of(target) not in (session, None):  # a writer of any other name has its lock
            yield False
            return
        with held(target.lock, wait=False) as ours:  # else a save without a lease writes there now
            yield ours

    def _tidy(self, target: trio.Target) -> None:
        try:
            trio.sweep(self._disk, target.folder, lambda found: nullcontext(found == target))
        except OSError as error:
            _logger.warning("leftovers of %s stay: %s", target.base, error, extra={"path": target.base})

    def _paths(self, pattern: str | None) -> Iterator[str]:
        ending = f".{META}"
        if pattern is not None:
            glob_of = without_scheme(pattern).removesuffix(".pkl").removesuffix(ending)
            found = glob.iglob(glob_of + ending)
        else:
            found = (f"{self.folder}/{name}" for name in self._names() if name.endswith(ending))
        for path in found:
            yield path.removesuffix(ending) + ".pkl"

    def _names(self) -> Sequence[str]:
        with refusing("look into", self._root):
            try:
                return self._disk.names(self._root)
            except FileNotFoundError:
                return []

    def _highest_epoch(self, session: str) -> int:
        """Return the highest one under which anything of the session was written."""
        said = [facts_in(raw).get("epoch") for _, raw in self.list(session)]
        said += segments.epochs(self._disk, self._root, session)
        return max((epoch for epoch in said if type(epoch) is int), default=0)


def _age(path: str) -> tuple[str, int, str]:
    base = os.path.basename(path).removesuffix(".pkl")
    named = _OWN_NAME.match(base)
    return (named["session"], int(named["sequence"]), base) if named else ("", 0, base)
