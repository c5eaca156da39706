"""Metered: a store that counts what is asked of it, how long that takes, and how many bytes go by.

    metered+retry+s3://bucket/runs        with what retries cost
    retry+metered+s3://bucket/runs        each try by itself

Promise: a call costs a lock and some additions more. The figures are kept per kind of store for as long as
the process lives; who reads them is the observer's matter (interfaces/observers/prometheus.py). Times of
`put` have the writers in them: they stream.
Not here: sessions and tasks; those are told to observers as events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from graflow_ckpt.core.protocols import (
    Buffer,
    CheckpointStore,
    Journal,
    Lease,
    Line,
    Owner,
    PartWriter,
    Sink,
    Source,
)
from graflow_ckpt.stores.prefixes import unwrapped
from graflow_ckpt.stores.wrapping import Wrapper


@dataclass(slots=True)
class Cost:
    """Of one kind of call: how many there were, how many failed, seconds, bytes written or read."""

    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Meter:
    """What calls have cost, by backend and operation; errors by their type, too."""

    def __init__(self) -> None:
        self._costs: dict[tuple[str, str], Cost] = {}
        self._errors: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()

    def add(self, backend: str, operation: str, seconds: float, moved: int, error: str) -> None:
        with self._lock:
            cost = self._costs.setdefault((backend, operation), Cost())
            cost.calls += 1
            cost.seconds += seconds
            cost.bytes += moved
            if error:
                cost.failed += 1
                key = (backend, operation, error)
                self._errors[key] = self._errors.get(key, 0) + 1

    def costs(self) -> dict[tuple[str, str], Cost]:
        """A copy, as of one moment."""
        with self._lock:
            return {
                key: Cost(cost.calls, cost.failed, cost.seconds, cost.bytes)
                for key, cost in self._costs.items()
            }

    def errors(self) -> dict[tuple[str, str, str], int]:
        with self._lock:
            return dict(self._errors)


METER = Meter()
"""That of this process, which stores go by that an address has asked for."""


class Metered(Wrapper):
    """The store, and what it costs."""

    word = "metered"
    passes = "all"

    def __init__(self, inner: CheckpointStore, argument: str = "", *, meter: Meter = METER) -> None:
        super().__init__(inner, argument)
        self._meter = meter
        self._backend = unwrapped(inner.url).partition(":")[0].partition("+")[0].lower()

    @contextmanager
    def timed(self, operation: str) -> Iterator[Callable[[int], None]]:
        """Adds one call; what is yielded is told of bytes."""
        moved, error, began = 0, "", perf_counter()

        def move(count: int) -> None:
            nonlocal moved
            moved += count

        try:
            yield move
        except GeneratorExit:
            raise  # who lists has seen enough: nothing has failed
        except BaseException as found:
            error = type(found).__name__
            raise
        finally:
            self._meter.add(self._backend, operation, perf_counter() - began, moved, error)

    # --- each call ---------------------------------------------------------------------

    def probe(self) -> None:
        with self.timed("probe"):
            super().probe()

    def acquire(self, session: str, *, take_over: bool = False) -> Lease:
        with self.timed("acquire"):
            return super().acquire(session, take_over=take_over)

    def owner(self, session: str) -> Owner | None:
        with self.timed("owner"):
            return super().owner(session)

    def lines(self, session: str) -> tuple[Line, ...]:
        with self.timed("lines"):
            return super().lines(session)

    def rewound(self, lease: Lease, sequence: int) -> None:
        with self.timed("rewound"):
            super().rewound(lease, sequence)

    def put(
        self, path: str, parts: Sequence[tuple[str, PartWriter]], *, lease: Lease | None, stage: str
    ) -> None:
        with self.timed("put") as move:
            super().put(
                path, [(part, _counted(write, move)) for part, write in parts], lease=lease, stage=stage
            )

    def open(self, path: str, part: str, stage: str) -> Source:
        with self.timed("open"):
            return _CountedSource(super().open(path, part, stage), self)

    def meta(self, path: str) -> bytes:
        with self.timed("meta") as move:
            found = super().meta(path)
            move(len(found))
            return found

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        with self.timed("list") as move:
            for path, raw in super().list(session, pattern):
                move(len(raw))
                yield path, raw

    def delete(self, path: str) -> bool:
        with self.timed("delete"):
            return super().delete(path)

    def newest(
        self,
        limit: int,
        *,
        session: str | None = None,
        workflow: str | None = None,
        status: str | None = None,
    ) -> Sequence[tuple[str, bytes]]:
        with self.timed("newest") as move:
            found = super().newest(limit, session=session, workflow=workflow, status=status)
            move(sum(len(raw) for _, raw in found))
            return found

    def delete_many(self, paths: Iterable[str]) -> int:
        with self.timed("delete_many"):
            return super().delete_many(paths)

    def journal(self, lease: Lease, after: int) -> Journal:
        with self.timed("journal"):
            return _CountedJournal(super().journal(lease, after), self)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        with self.timed("segments") as move:
            for epoch, after, raw in super().segments(session):
                move(len(raw))
                yield epoch, after, raw

    def drop_segments(self, session: str, before: int) -> None:
        with self.timed("drop_segments"):
            super().drop_segments(session, before)


class _CountedSource:
    def __init__(self, source: Source, store: Metered) -> None:
        self._source = source
        self._store = store

    @property
    def size(self) -> int:
        return self._source.size

    def readinto(self, buffer: memoryview, /) -> int:
        with self._store.timed("read") as move:
            count = self._source.readinto(buffer)
            move(count)
            return count

    def close(self) -> None:
        self._source.close()


class _CountedJournal:
    def __init__(self, journal: Journal, store: Metered) -> None:
        self._journal = journal
        self._store = store

    def append(self, frame: bytes, /) -> None:
        with self._store.timed("append") as move:
            self._journal.append(frame)
            move(len(frame))

    def close(self) -> None:
        self._journal.close()


def _counted(write: PartWriter, move: Callable[[int], None]) -> PartWriter:
    return lambda sink: write(_CountedSink(sink, move))


class _CountedSink:
    __slots__ = ("_move", "_sink")

    def __init__(self, sink: Sink, move: Callable[[int], None]) -> None:
        self._sink = sink
        self._move = move

    def write(self, data: Buffer, /) -> int:
        self._move(memoryview(data).nbytes)
        return self._sink.write(data)
