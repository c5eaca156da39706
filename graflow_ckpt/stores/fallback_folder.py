"""The folder of a fallback: checkpoints that wait until their store is back.

    FOLDER/{digest of the store's address}/store       that address, for people
    …/owned      saved by the owner of a session
    …/free       saved without a lease
    …/refused    what could not be handed over, for somebody has gone on meanwhile; kept as evidence

Promise: each is a whole trio in a local folder, on the disk when its save returns, and is taken away only
after the store has confirmed it, so that a process that is killed between the two leaves it there.
Not here: when something is put here or handed over (fallback.py).

The lease of a session whose store may be away for a while.
Promise: the epoch is the store's. While that is away nobody can say whether the session is ours still, so
saves are kept under it in the folder, and checked by the store when they are handed over.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graflow_ckpt.core.errors import CheckpointNotFound, GraflowError
from graflow_ckpt.core.protocols import CheckpointStore, Lease, PartWriter, Sink
from graflow_ckpt.stores.claims import released
from graflow_ckpt.stores.flock import held
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.names import META, PARTS, facts_in
from graflow_ckpt.stores.passing import may_pass

if TYPE_CHECKING:
    from graflow_ckpt.stores.fallback import Fallback


VARIABLE = "GRAFLOW_CKPT_FALLBACK"
_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """One checkpoint in the folder."""

    store: LocalStore
    path: str
    raw: bytes
    epoch: int
    sequence: int
    stage: str
    session: str

    @property
    def base(self) -> str:
        return os.path.basename(self.path)

    def parts(self) -> list[tuple[str, PartWriter]]:
        """As they are put elsewhere, byte by byte."""

        def copy(part: str) -> PartWriter:
            def write(sink: Sink) -> None:
                source = self.store.open(self.path, part, self.stage)
                try:
                    buffer = memoryview(bytearray(min(_PIECE, max(1, source.size))))
                    while count := source.readinto(buffer):
                        sink.write(buffer[:count])
                finally:
                    source.close()

            return write

        def meta(sink: Sink) -> None:
            sink.write(self.raw)

        return [*((part, copy(part)) for part in PARTS if part != META), (META, meta)]


class Folder:
    """What waits for one store."""

    def __init__(self, root: str, url: str) -> None:
        name = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
        self.where = Path(root or default_root()).absolute() / name
        self.owned = LocalStore(self.where / "owned")
        self.free = LocalStore(self.where / "free")
        self.refused = LocalStore(self.where / "refused")
        self._url = url

    def settle(self) -> None:
        """Make it, and say in it what it is for."""
        if not self.where.exists():
            for folder in (self.where.parent, self.where):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError), (self.where / "store").open("x", encoding="utf-8") as file:
                file.write(f"{self._url}\n")

    def alone(self) -> AbstractContextManager[bool]:
        """While what has no owner is put here or handed over: several processes may do it."""
        self.settle()
        return held(str(self.where / ".lock"))

    def of_owners(self) -> list[Waiting]:
        return list(entries(self.owned))

    def of_nobody(self) -> list[Waiting]:
        return list(entries(self.free))

    def waiting(self, session: str | None = None) -> list[Waiting]:
        """The newest of a session first."""
        found = [e for e in (*self.of_owners(), *self.of_nobody()) if session in (None, e.session)]
        return sorted(found, key=lambda entry: (entry.epoch, entry.sequence), reverse=True)

    def holder(self, base: str) -> LocalStore | None:
        """Where a checkpoint of that name waits; None if none does."""
        for store in (self.owned, self.free):
            if Path(store.folder).is_dir():
                try:
                    store.meta(f"{store.folder}/{base}")
                except CheckpointNotFound:
                    continue
                return store
        return None

    def set_aside(self, entry: Waiting) -> None:
        """It is not handed over, and nothing of it is lost: it may be damaged, so its files are moved."""
        target = Path(self.refused.folder)
        target.mkdir(mode=0o700, exist_ok=True)
        base = entry.path.removesuffix(".pkl")
        for part in reversed(PARTS):  # meta first: without it the others are nothing
            for ending in (part, f"{entry.stage}.{part}.tmp"):
                if os.path.exists(found := f"{base}.{ending}"):
                    os.replace(found, target / os.path.basename(found))


def entries(store: LocalStore) -> Iterator[Waiting]:
    """The checkpoints of one of the three. What cannot be read has no epoch, and is the oldest."""
    if not Path(store.folder).is_dir():
        return
    for path, raw in store.list():
        facts = facts_in(raw)
        epoch, sequence = (
            value if type(value := facts.get(name)) is int else -1 for name in ("epoch", "sequence")
        )
        stage, session = (str(facts.get(name, "")) for name in ("stage", "session_id"))
        yield Waiting(store, path, raw, epoch, sequence, stage, session)


def highest_epoch(store: CheckpointStore, session: str, without: int) -> int:
    """Under which others have written something of a session; 0: nobody has."""
    found = [facts_in(raw).get("epoch") for _, raw in store.list(session)]
    found += [epoch for epoch, _, raw in store.segments(session) if raw]
    return max((epoch for epoch in found if type(epoch) is int and epoch != without), default=0)


def default_root() -> str:
    """Beside the key: it has to outlive the process."""
    if named := os.environ.get(VARIABLE, "").strip():
        return named
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "graflow_ckpt", "fallback")


log = logging.getLogger("graflow_ckpt.stores")


class FallbackLease:
    """The remote store's lease, and the folder's from the first save on that goes there."""

    def __init__(self, store: Fallback, remote: Lease) -> None:
        self.session = remote.session
        self.epoch = remote.epoch
        self.taken_from = remote.taken_from
        self.remote = remote
        self.store = store
        self.has_put_aside = False  # since it was last handed over
        self._mutex = threading.Lock()
        self._local: Lease | None = None
        self._released = False
        self._process = os.getpid()

    def check(self) -> None:
        """While the store is away nobody can be asked; what waits is checked when it is handed over."""
        self.not_released()
        try:
            self.store.asked(self.remote.check)
        except (GraflowError, OSError) as error:
            if not may_pass(error):
                raise

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise released(self.session, self.epoch)

    def local(self) -> Lease:
        """That of the folder: one process keeps and hands over what is saved of a session."""
        with self._mutex:
            if self._local is None:
                self._local = self.store.waits.owned.acquire(self.session)
            return self._local

    def release(self) -> None:
        if self._released or self._process != os.getpid():
            return
        try:
            self.store.hand_over_now(self)
        except (GraflowError, OSError) as error:
            log.warning(
                "session %s ends while checkpoints of it wait in %s: %s",
                self.session,
                self.store.waits.where,
                error,
                extra={"session": self.session},
            )
        self.let_go()

    def let_go(self) -> None:
        """Without a look at what waits."""
        self._released = True
        self.remote.release()
        if self._local is not None:
            self._local.release()
