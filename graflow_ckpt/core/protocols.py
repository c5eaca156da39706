"""The protocols that the layers ask of each other.

A store moves parts, leases and journal bytes; it knows nothing of codecs, seals or plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Sink(Protocol):
    """The target of a part that is written."""

    def write(self, data: Buffer, /) -> int: ...


PartWriter = Callable[[Sink], object]
Parts = Sequence[tuple[str, PartWriter]]
"""Parts of a trio by their names, and what writes each; the meta comes last."""


class Source(Protocol):
    """The source that a part is read from."""

    @property
    def size(self) -> int: ...

    def readinto(self, buffer: memoryview, /) -> int: ...

    def close(self) -> None: ...


class Journal(Protocol):
    """One open segment. An append is durable when it returns."""

    def append(self, frame: bytes, /) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a session: enough to distinguish a live process from a reused pid."""

    pid: int
    started: str
    boot: str
    pid_ns: str
    host: str
    argv: str
    since: str


@dataclass(frozen=True, slots=True)
class Line:
    """The start of `epoch`, for which history was rewound to `sequence` on purpose."""

    epoch: int
    sequence: int


class Lease(Protocol):
    """The right to write a session, under an epoch that only grows."""

    @property
    def session(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def taken_from(self) -> Owner | None: ...

    def check(self) -> None: ...

    def release(self) -> None: ...


class Saving(Protocol):
    """The contents of one save. What it has found or added stays until `end`, whatever others delete."""

    def hold(self, names: Sequence[str], /) -> Collection[str]: ...  # those that are there

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None: ...

    def settle(self) -> None: ...  # before the commit: from here on they are as safe as the parts

    def end(self) -> None: ...  # after the commit, or without one


class Contents(Protocol):
    """Values that several checkpoints of a store have in common, each stored once, under a name that
    follows from its bytes. A checkpoint holds those that its meta names: a `put` commits only if all are
    there, and what no checkpoint and no save holds goes with the last one that did."""

    @property
    def shares(self) -> bool: ...  # whether saves are to put large values here

    def scope(self, path: str, /) -> str: ...  # checkpoints share within one; "" is all of the store

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> Saving: ...

    def open(self, path: str, name: str, stage: str) -> Source: ...

    def distrust(self, path: str, name: str, stage: str) -> None: ...  # damaged: no save is to hold it again

    def sweep(self) -> int: ...  # what dead processes have left; how many went


class Readable(Protocol):
    """The part of a store that is needed to read from it."""

    @property
    def url(self) -> str: ...

    @property
    def shared(self) -> bool: ...  # whether others can write there: its seals need a key that all have

    @property
    def contents(self) -> Contents | None: ...  # None: each checkpoint has all of its bytes for itself

    @property
    def encoding(self) -> tuple[str, ...]: ...  # what is done to new checkpoints before it has them

    @property
    def keys(
        self,
    ) -> Mapping[str, bytes]: ...  # that its program has given it: the first encrypts, all decrypt

    def owner(self, session: str) -> Owner | None: ...

    def open(self, path: str, part: str, stage: str) -> Source: ...

    def meta(self, path: str) -> bytes: ...

    def unsafe(self, path: str) -> str | None: ...  # why it could be of any writer

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]: ...

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]: ...


Drops = Callable[[], Iterable[str]]
"""What goes with a commit; asked when all parts are written."""


class CheckpointStore(Readable, Protocol):
    """The store of trios and journals. Blocking; all parts of a trio appear at once."""

    @property
    def folder(self) -> str: ...  # what a path of its own starts with; "" if paths have none

    @property
    def synced(self) -> bool: ...  # whether what was put is on the disk, or only accepted

    def takes(self, path: str) -> str | None: ...  # the path as it is written here; None: another store's

    def probe(self) -> None: ...

    def acquire(self, session: str, *, take_over: bool = False) -> Lease: ...

    @property
    def drops_along(self) -> bool: ...  # whether `put` can

    # drops: paths of the lease's session, which go with the same commit
    def put(
        self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple
    ) -> None: ...

    def newest(  # the last accepted first, between sessions, too; nothing but metas is read
        self,
        limit: int,
        *,
        session: str | None = None,
        workflow: str | None = None,
        status: str | None = None,
    ) -> Sequence[tuple[str, bytes]]: ...

    def delete(self, path: str) -> bool: ...

    def delete_many(self, paths: Iterable[str]) -> int: ...  # in that order; how many there were

    def journal(self, lease: Lease, after: int) -> Journal: ...

    def drop_segments(self, session: str, before: int) -> None: ...
