"""Measuring: what a trio and a journal record cost on one disk, beside what the disk itself costs.

Done with the real store and the real journal, under a session of its own in a folder that is
taken away again. Median of several, in ms.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from graflow_ckpt.checkpoint import archive, journal
from graflow_ckpt.checkpoint.describing import metadata_of
from graflow_ckpt.checkpoint.program import Program
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.protocols import Journal, Lease
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.stores.local import LocalStore

TIMES = 9
SIZE = 30_000
RECORD = 200
_SESSION = "doctor"


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds: the median of `TIMES`, from the fastest to the slowest."""

    middle: float
    best: float
    worst: float

    def text(self) -> str:
        return f"{self.middle:.3g} ms ({self.best:.3g} to {self.worst:.3g})"


def costs(beside: str) -> dict[str, Cost]:
    """On the disk of the folder `beside`."""
    folder = tempfile.mkdtemp(prefix=".graflow-doctor-", dir=beside)
    try:
        return {
            f"fsync of {SIZE // 1000} kB": _measured(lambda number: _bare(folder, number)),
            f"checkpoint of {SIZE // 1000} kB": _checkpoints(folder),
            "journal record": _records(folder),
        }
    finally:
        shutil.rmtree(folder)


def _measured(once: Callable[[int], None]) -> Cost:
    taken = []
    for number in range(TIMES + 1):
        began = perf_counter()
        once(number)
        taken.append((perf_counter() - began) * 1000)
    del taken[0]  # the first one makes folders and warms up
    return Cost(median(taken), min(taken), max(taken))


def _bare(folder: str, number: int) -> None:
    fd = os.open(f"{folder}/bare.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, b"\0" * SIZE)
        os.fsync(fd)
    finally:
        os.close(fd)


def _checkpoints(folder: str) -> Cost:
    store, keyring = LocalStore(f"{folder}/checkpoints"), Keyring.load()
    state = SessionState(_SESSION)
    state.values = {"value": (os.urandom(SIZE), 0)}
    program = Program({"tasks": {}, "digest": ""}, b"")
    lease: Lease = store.acquire(_SESSION)

    def once(number: int) -> None:
        snapshot = capture(state)
        path = archive.auto_path(store, _SESSION, number, number + 1)
        metadata = metadata_of(snapshot, program, path=path, sequence=number + 1, cause="doctor", user={})
        archive.save(store, keyring, lease, snapshot, program, metadata)

    try:
        return _measured(once)
    finally:
        lease.release()


def _records(folder: str) -> Cost:
    store, keyring = LocalStore(f"{folder}/journal"), Keyring.load()
    lease = store.acquire(_SESSION)
    segment: Journal = store.journal(lease, 0)
    writer = journal.Writer(keyring, _SESSION, lease.epoch, 0)
    segment.append(writer.head)
    payload = journal.pack(1, 0.0, [("put", "value", b"\0" * RECORD, -1)])
    try:
        return _measured(lambda number: segment.append(writer.frame(payload)))
    finally:
        segment.close()
        lease.release()
