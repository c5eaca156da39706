"""The six calls that a keyed store makes to the place that keeps its bytes.

    head/{s}                        the owner of a session, and which checkpoints it has: changed in place
    lease/{s}/{claim}               touched by the owner as long as it lives
    data/{s}/{mark}/m               a meta, and a small stream behind it; has a row
    data/{s}/{mark}/{n}             its parts as one stream, in chunks; {mark} is never used twice
    data/{s}/{mark}/{content}/{n}   a content, by the save that wrote it
    journal/{s}/{segment}/{n}       one record

`{s}` is a session, or `@NAME` for a checkpoint that a user has named. Keys are of letters, digits, slashes
and `.-_~@=`; those that differ in case are different.

Promise of the store: every key but `head/…` and `lease/…` is written once and never changes, and whatever
must not happen after a session was lost is a change of its head. So all that a driver has to do right is
`batch`. Not here: what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from graflow_ckpt.core.protocols import Buffer

Tag = str
"""One state of a key. Never used twice, also not after the place was put back to an older state."""


class Stored(NamedTuple):
    """The bytes under a key; `at`: since when, by the clock of `now`."""

    data: bytes
    tag: Tag
    at: float


class Entry(NamedTuple):
    """A key as it is listed."""

    key: str
    size: int
    at: float


class Row(NamedTuple):
    """The facts that a meta is found by: ASCII in one line. Empty: any, or none that is known."""

    session: str = ""
    workflow: str = ""
    status: str = ""


def facts_of(row: Row) -> list[str]:
    """Return a line for each fact that is known. The first one is that of all rows."""
    return [":", *[f":{name}:{fact}" for name, fact in zip(Row._fields, row, strict=True) if fact]]


class Hit(NamedTuple):
    """A meta that was found. `number`: of its commit, and higher than that of any before it; `data`: as many
    of its bytes as are listed."""

    number: int
    key: str
    data: bytes


class Put(NamedTuple):
    """`fresh`: nothing may be under the key yet. `row`: goes with the key, which is a fresh one; where
    batches are not atomic it may be there already, as it is. `listed`: how many of the bytes `find` gives, if
    there is a row; None: all."""

    key: str
    data: Buffer
    fresh: bool = True
    row: Row | None = None
    listed: int | None = None

    @property
    def shown(self) -> int:
        """How many of the bytes `find` gives."""
        return len(self.data) if self.listed is None else self.listed


class BatchDone(NamedTuple):
    """A batch that was carried out. `synced`: it is on the disk."""

    tag: Tag
    synced: bool = True


class Driver(Protocol):
    """Threads may call it at once. What goes wrong is a ServerError, or an OSError of a file."""

    @property
    def atomic(self) -> bool:
        """Return whether a batch is carried out as a whole. If not, each of the store's has one put with a
        guard, or puts of fresh keys, or drops."""
        ...

    @property
    def inline(self) -> int:
        """Bytes of a checkpoint's stream, and of its meta, up to which they are put into the head."""
        ...

    @property
    def chunk(self) -> int:
        """Bytes under one key of a stream. It is part of the layout: it never changes."""
        ...

    def now(self) -> float:
        """Return the place's own clock, in seconds: for leases, never for fences."""
        ...

    def get(self, *keys: str) -> Sequence[Stored | None]:
        """Get in one round trip, as of one moment."""
        ...

    def read(self, key: str, start: int, length: int) -> Buffer | None:
        """Return a piece of what is there; None if it is not there, or shorter."""
        ...

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        needs: Sequence[str] = (),
        soft: bool = False,
    ) -> BatchDone | None:
        """Carry out all of it, or nothing: then it returns None. All puts get one tag.

        `guards`: keys with the tags that they must have; None: must not be there. `needs`: keys that must be
        there. `soft`: it may reach the disk with the next batch that is not, but what a server has confirmed
        outlasts the server. To drop what is not there is no error. Without a reply, look: the guard
        has another tag, or a fresh key its bytes.
        """
        ...

    def keys(self, prefix: str) -> Iterator[Entry]:
        """Yield the keys that begin so, in order. A prefix ends with a slash."""
        ...

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit] | None:
        """Return the newest with these facts, the last put first; `below`: of lower numbers only.

        None: rows are not kept, and the store has to look at all heads.
        """
        ...
