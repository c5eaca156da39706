"""What do seals, encryption, compression and tenants add to the save of a checkpoint of 1 MB?

Method: wall time of `archive.save` of a session whose values pickle to 1 MB of noise, in a folder, synced.
With a seal, beside the same save in which neither a part is digested nor a meta sealed; encrypted,
compressed, and as a tenant's, each beside the plain store with seals. Loads of the same checkpoint
likewise, and the journal's append of 400 bytes. Unit: ms, µs. The floor is the save (load, append) without
what is asked about, in the same folder, so that the figure is what it adds.
A regression: a second pass over the bytes, a copy of them, or a second request to the store for one save.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks.harness import Case, Ratio, Run
from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.digest import Digest
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program import Program, current_tasks, describe, pack_code
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import Buffer, CheckpointStore, Sink
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import Task
from graflow_ckpt.core.values import Live
from graflow_ckpt.stores.compressed import Compressed
from graflow_ckpt.stores.encrypted import Encrypted
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.tenant import Tenant

NAME = "wrappers"
SIZE = 1_000_000
RING = Keyring({"bench": bytes(range(32))})

Wrap = Callable[[CheckpointStore], CheckpointStore]


def plain(inner: CheckpointStore) -> CheckpointStore:
    return inner


def encrypted(inner: CheckpointStore) -> CheckpointStore:
    return Encrypted(inner, RING)


def tenant(inner: CheckpointStore) -> CheckpointStore:
    return Tenant(inner, "acme")


def step() -> int:
    return 1


class Work:
    """A session of 1 MB and a place to save it."""

    def __init__(self, folder: Path, wrap: Wrap) -> None:
        self.store = wrap(LocalStore(folder / "checkpoints"))
        self.lease = self.store.acquire("s")
        graph = TaskGraph()
        graph.add(Task("step", step))
        graph.compile(["step"])
        self.program = Program(
            describe(graph, current_tasks(graph)), pack_code(graph), "b.py", ("b.py",), "bench"
        )
        self.state = SessionState("s", ("step",))
        apply(self.state, [("put", "noise", Live(os.urandom(SIZE)), -1)], 0.0)
        self.sequence = 0

    def save(self) -> CheckpointMetadata:
        self.sequence += 1
        snapshot = capture(self.state)
        snapshot.facts["epoch"] = self.lease.epoch
        path = archive.auto_path(self.store, "s", 1, self.sequence)
        metadata = archive.describe(
            snapshot, self.program, path=path, sequence=self.sequence, cause="request", user=None
        )
        return archive.save(self.store, RING, self.lease, snapshot, self.program, metadata)


class _Passing:
    """Stands where a part is digested, and does nothing."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: Buffer, /) -> int:
        return self._sink.write(data)

    def finish(self) -> Digest:
        return Digest(0, ())


@contextmanager
def nothing_sealed() -> Iterator[None]:
    with (
        patch.object(archive, "DigestingSink", _Passing),
        patch.object(archive, "seal", lambda document, keyring: document),
    ):
        yield


def saves(run: Run, wrap: Wrap) -> None:
    work = Work(run.folder, wrap)
    count = run.size(20, smoke=2)
    work.save()
    with run.timed(per=count):
        for _ in range(count):
            work.save()
    work.lease.release()


def loads(run: Run, wrap: Wrap) -> None:
    work = Work(run.folder, wrap)
    count = run.size(30, smoke=2)
    path = work.save().path
    archive.load(work.store, RING, path)
    with run.timed(per=count):
        for _ in range(count):
            archive.load(work.store, RING, path)
    work.lease.release()


def appends(run: Run, wrap: Wrap) -> None:
    work = Work(run.folder, wrap)
    count, frame = run.size(200, smoke=20), os.urandom(400)
    journal = work.store.journal(work.lease, 0)
    journal.append(frame)
    with run.timed(per=count):
        for _ in range(count):
            journal.append(frame)
    journal.close()
    work.lease.release()


def unsealed_save(run: Run) -> None:
    with nothing_sealed():
        saves(run, plain)


def plain_save(run: Run) -> None:
    saves(run, plain)


def plain_load(run: Run) -> None:
    loads(run, plain)


def plain_append(run: Run) -> None:
    appends(run, plain)


def of(what: Callable[[Run, Wrap], None], wrap: Wrap) -> Callable[[Run], None]:
    return lambda run: what(run, wrap)


CASES = [
    Case("save 1 MB, sealed", plain_save, unsealed_save, Ratio(1.15), disk=True),
    Case("save 1 MB, encrypted", of(saves, encrypted), plain_save, Ratio(1.4), disk=True),
    Case("save 1 MB of noise, compressed", of(saves, Compressed), plain_save, Ratio(1.4), disk=True),
    Case("save 1 MB, a tenant's", of(saves, tenant), plain_save, Ratio(1.15), disk=True),
    Case("load 1 MB, encrypted", of(loads, encrypted), plain_load, Ratio(2.0)),
    Case("load 1 MB of noise, compressed", of(loads, Compressed), plain_load, Ratio(2.0)),
    Case(
        "journal append, encrypted", of(appends, encrypted), plain_append, Ratio(1.15), unit="µs", disk=True
    ),
]
