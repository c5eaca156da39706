"""Stores on a disk that are wrong about other processes, and about processes that end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.journal import Segment
from graflow_ckpt.stores.files.ownership import LocalLease
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.lease import KeyedLease
from graflow_ckpt.stores.names import META, PARTS
from tests.conformance.broken.trios import Parts, written
from tests.trios import writer


class WritesBehind(LocalStore):
    """Confirms a put, and writes it when the process next looks at the store, or at its end."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._waiting: list[Callable[[], None]] = []

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        kept = [(part, writer(written(write))) for part, write in parts]
        self._waiting.append(lambda: super(WritesBehind, self).put(path, kept, lease=lease, stage=stage))

    def meta(self, path: str) -> bytes:
        while self._waiting:
            self._waiting.pop(0)()
        return super().meta(path)


class WritesOverFiles(LocalStore):
    """Opens the files under their names and writes: what stood there is gone when the first byte comes."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        target = self._target(path)
        self._settle(target.folder)
        if lease is not None:
            lease.check()
        for part, write in parts:
            with open(target.final(part), "wb", buffering=0) as file:
                write(file)


class ForgetsDurableFrames(LocalStore):
    """Frames wait in the process until a segment is closed."""

    def journal(self, lease: Lease, after: int) -> Segment:
        sound, waiting = super().journal(lease, after), []

        class Waiting(Segment):
            __slots__ = ()

            def __init__(self) -> None:
                self.path = sound.path

            def append(self, frame: bytes, /) -> None:
                waiting.append(frame)

            def close(self) -> None:
                for frame in waiting:
                    sound.append(frame)
                waiting.clear()
                sound.close()

        return Waiting()


class KnowsItsOwnEpochs(SqliteStore):
    """Fences by what this process knows: a take-over in another one is not seen."""

    _newest: dict[str, int] = {}  # noqa: RUF012

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        lease = super().acquire(session, take_over=take_over)
        self._newest[session] = lease.epoch
        return lease

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if lease is not None and self._newest[lease.session] != lease.epoch:
            raise Fenced("Taken over.", hint="End.", session=lease.session)
        super().put(path, parts, lease=None, stage=stage)


class HoldsForEver(LocalStore):
    """A session is owned while there is a file that says so, and the dead remove none."""

    def acquire(self, session: str, *, take_over: bool = False) -> LocalLease:
        held = Path(self.folder, f".{session}.held")
        if held.exists():
            raise SessionBusy(f"{session} is held.", hint="Wait.", owner=self.owner(session))
        lease = super().acquire(session, take_over=take_over)
        held.touch()
        release = lease.release

        class Held(LocalLease):
            def release(self) -> None:
                held.unlink(missing_ok=True)
                release()

        lease.__class__ = Held
        return lease


class LastsThroughForks(LocalStore):
    """A forked child goes on with the lease of its parent."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if lease is not None and os.getpid() == self._ownership_of(lease):
            lease.check()
        super().put(path, parts, lease=None, stage=stage)

    def _ownership_of(self, lease: Lease) -> int:
        owner = self.owner(lease.session)
        return owner.pid if owner else 0


class DeletesInTheWrongOrder(LocalStore):
    """The parts go first: whoever is killed then leaves a meta that points to nothing."""

    def delete(self, path: str) -> bool:
        target = self._target(path)
        if not os.path.exists(target.final(META)):
            return False
        for part in PARTS[:-1]:
            Path(target.final(part)).unlink(missing_ok=True)
        time.sleep(0.01)  # as a slow disk would
        return super().delete(path)
