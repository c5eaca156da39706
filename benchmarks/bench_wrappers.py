"""What do seals, encryption, compression and tenants add to the save of a checkpoint of 1 MB?

Method: `archive.save` of a session whose values pickle to 1 MB of noise, in a folder, synced. "of a save":
two sessions save in turns, one save each; wall time, and the figure is the median of the ratios of
neighbours, for a disk is another one a second later. "CPU": CPU time of this process alone, where syncs do
not count and what is added weighs more. Sealed is held against the same save in which neither a part is
digested nor a meta sealed; encrypted, compressed and a tenant's against the plain store with seals. Loads
and appends to a journal (400 bytes) likewise. Unit: ms, µs, bare ratios. The floor is the same without what
is asked about.
A regression: a second pass over the bytes, a copy of them, or a second request to the store for one save.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Self
from unittest.mock import patch

from benchmarks.harness import AtMost, Case, Ratio, Run
from graflow_ckpt.checkpoint import archive, journal
from graflow_ckpt.checkpoint.archive import metadata_of
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program.program import Program, current_tasks, describe, pack_code
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.checkpoint.values.digest import Digest
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import Buffer, CheckpointStore, Sink
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import Task
from graflow_ckpt.stores.around.encoded import Compressed, Encrypted
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.files.store import LocalStore

NAME = "wrappers"
SIZE = 1_000_000
RING = Keyring({"bench": bytes(range(32))})

Side = Callable[[], AbstractContextManager[None]]
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
        metadata = metadata_of(
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def nothing_sealed() -> Iterator[None]:
    with (
        patch.object(archive, "DigestingSink", _Passing),
        patch.object(archive, "sealed_bytes", lambda meta, keyring, path: json.dumps(meta).encode()),
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
    count, payload = run.size(200, smoke=20), journal.pack(1, 1.0, [("put", "v", os.urandom(400), 0)])
    segment = work.store.journal(work.lease, 0)
    writer = journal.Writer(RING, "s", work.lease.epoch, 0, work.store.encoding)
    segment.append(writer.head)
    with run.timed(per=count):
        for _ in range(count):
            segment.append(writer.frame(payload))
    segment.close()
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


def in_turns(one: Side, wrap: Wrap) -> Callable[[Run], None]:
    """The median of what a save takes here beside its neighbour there."""

    def measure(run: Run) -> None:
        works = Work(run.folder / "one", wrap), Work(run.folder / "other", plain)
        ratios = []
        for turn in range(run.size(16, smoke=3)):
            took = [0.0, 0.0]
            for side in (0, 1) if turn % 2 else (1, 0):
                with one() if side else nullcontext():
                    began = perf_counter()
                    works[side].save()
                    took[side] = perf_counter() - began
            ratios.append(took[0] / took[1])
        for work in works:
            work.lease.release()
        run.report(median(ratios))

    return measure


CASES = [
    Case("sealed, of a save of 1 MB", in_turns(nothing_sealed, plain), None, AtMost(1.15, ""), unit=""),
    Case("encrypted, of a save of 1 MB", in_turns(nullcontext, encrypted), None, AtMost(1.4, ""), unit=""),
    Case("compressed (noise), of a save", in_turns(nullcontext, Compressed), None, AtMost(1.4, ""), unit=""),
    Case("a tenant's, of a save of 1 MB", in_turns(nullcontext, tenant), None, AtMost(1.15, ""), unit=""),
    Case("save 1 MB, sealed, CPU", plain_save, unsealed_save, Ratio(1.3), clock="cpu"),
    Case("save 1 MB, encrypted, CPU", of(saves, encrypted), plain_save, Ratio(1.4), clock="cpu"),
    Case("save 1 MB, compressed (noise), CPU", of(saves, Compressed), plain_save, Ratio(1.4), clock="cpu"),
    Case("load 1 MB, encrypted, CPU", of(loads, encrypted), plain_load, Ratio(2.0), clock="cpu"),
    Case("load 1 MB, compressed (noise), CPU", of(loads, Compressed), plain_load, Ratio(2.0), clock="cpu"),
    Case("journal append, encrypted", of(appends, encrypted), plain_append, Ratio(1.6), unit="µs"),
]
