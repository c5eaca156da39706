"""Wrapping: a store around another one, which does one thing more and leaves the rest to it.

Every call is passed to `inner`. The address and the paths are those of the inner store with the word of
the wrapper before them (prefixes.py), and `_inner` and `_outer` translate; a wrapper that changes names
as well changes these two. A relative folder becomes an absolute one: `encrypted+file:///srv/runs`.

    class Shouting(Wrapper):
        word = "shouting"           in prefixes.WRAPPERS, too, if an address may ask for it

Leases are the inner store's, so that its fence holds here, too. What is not part of every store (sharing of
contents) goes through only where the wrapper says so (`reads_shared`), and for reading alone, unless it says
`shares`: one whose calls are repeated leaves saves whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, Self, TypeVar, Unpack

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import (
    CheckpointStore,
    Contents,
    Drops,
    Journal,
    Lease,
    Owner,
    Parts,
    Saving,
    Source,
)
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.stores.prefixes import Layer
from graflow_ckpt.stores.store import Filters

T = TypeVar("T")


class Wrapper:
    """The same store, under another address. `argument`: what follows the word, after a dot."""

    word: ClassVar[str]
    argued: ClassVar[bool] = False  # whether an argument may follow the word
    reads_shared: ClassVar[bool] = False  # what the inner store has stored once for several checkpoints
    shares: ClassVar[bool] = False  # so do saves through it

    def __init__(self, inner: CheckpointStore, argument: str = "") -> None:
        self.inner = inner
        self.prefix = str(Layer(self.word, argument))

    @classmethod
    def of(cls, inner: CheckpointStore, argument: str) -> Self:
        """Return the wrapper that an address asks for."""
        if argument and not cls.argued:
            raise CheckpointError(
                f"{cls.word}+ takes nothing behind a dot, and {argument!r} stands there.",
                hint=f"Write {cls.word}+{masked(inner.url)}.",
                store=masked(inner.url),
            )
        return cls(inner, argument) if cls.argued else cls(inner)

    @property
    def url(self) -> str:
        return self.prefix + self.inner.url

    @property
    def folder(self) -> str:
        return self.prefix + self._stem

    @property
    def synced(self) -> bool:
        return self.inner.synced

    @property
    def shared(self) -> bool:
        return self.inner.shared

    @property
    def encoding(self) -> tuple[str, ...]:
        return self.inner.encoding

    @property
    def keys(self) -> Mapping[str, bytes]:
        return self.inner.keys

    @property
    def contents(self) -> Contents | None:
        inner = self.inner.contents if self.reads_shared else None
        return None if inner is None else Through(inner, self._inner, shares=self.shares)

    def takes(self, path: str) -> str | None:
        """Return the path as it is written here; None if it leads to another store."""
        if (rest := self._unprefixed(path)) is None:
            if "://" in path:
                return None
            rest = path  # it names no store: this one is meant
        taken = self.inner.takes(rest)
        return None if taken is None else self._outer(taken)

    def asked(self, call: Callable[[], T]) -> T:
        """Call the inner store. A wrapper may call again, or not at all."""
        return call()

    def probe(self) -> None:
        self.asked(self.inner.probe)

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> Lease:
        return self.asked(lambda: self.inner.acquire(session, take_over=take_over))

    def owner(self, session: str) -> Owner | None:
        return self.asked(lambda: self.inner.owner(session))

    # --- checkpoints -------------------------------------------------------------------

    @property
    def drops_along(self) -> bool:
        return self.inner.drops_along

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        along = partial(self._drops, drops)
        self.inner.put(self._inner(path), parts, lease=lease, stage=stage, drops=along)

    def _drops(self, drops: Drops) -> list[str]:
        return [self._inner(path) for path in drops()]

    def open(self, path: str, part: str, stage: str) -> Source:
        return self.inner.open(self._inner(path), part, stage)

    def meta(self, path: str) -> bytes:
        return self.asked(lambda: self.inner.meta(self._inner(path)))

    def unsafe(self, path: str) -> str | None:
        return self.asked(lambda: self.inner.unsafe(self._inner(path)))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        for path, raw in self.inner.list(session, None if pattern is None else self._inner(pattern)):
            yield self._outer(path), raw

    def newest(self, limit: int, **wanted: Unpack[Filters]) -> Sequence[tuple[str, bytes]]:
        found = self.asked(lambda: self.inner.newest(limit, **wanted))
        return [(self._outer(path), raw) for path, raw in found]

    def delete(self, path: str) -> bool:
        return self.delete_many([path]) > 0

    def delete_many(self, paths: Iterable[str]) -> int:
        wanted = [self._inner(path) for path in paths]
        return self.asked(lambda: self.inner.delete_many(wanted))

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> Journal:
        return self.inner.journal(lease, after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return self.inner.segments(session)

    def drop_segments(self, session: str, before: int) -> None:
        self.asked(lambda: self.inner.drop_segments(session, before))

    # --- names -------------------------------------------------------------------------

    @property
    def _stem(self) -> str:
        """The start of the inner store's paths, if they are written with an address."""
        return self.inner.folder if "://" in self.inner.folder else self.inner.url

    def _inner(self, path: str) -> str:
        """Return the path (or the pattern) as the inner store has it."""
        rest = self._unprefixed(path)
        if rest is None and "://" in path:
            raise CheckpointError(
                f"{masked(path)} is not in {self.folder}.",
                hint=f"Its checkpoints are called {self.folder}/NAME.",
                path=masked(path),
            )
        return path if rest is None else rest

    def _outer(self, path: str) -> str:
        """Return the inner store's path as it is written here."""
        folder = self.inner.folder
        if folder and path.startswith(f"{folder}/"):
            return f"{self.prefix}{self._stem}{path[len(folder) :]}"
        return self.prefix + (path if "://" in path else f"file://{os.path.abspath(path)}")

    def _unprefixed(self, path: str) -> str | None:
        size = len(self.prefix)
        return path[size:] if path[:size].lower() == self.prefix.lower() else None


class Through:
    """The inner store's contents, under the paths of the wrapper. `shares`: whether saves share there."""

    def __init__(self, inner: Contents, path: Callable[[str], str], *, shares: bool) -> None:
        self._inner, self._path = inner, path
        self.shares = shares and inner.shares

    def scope(self, path: str, /) -> str:
        return self._inner.scope(self._path(path))

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> Saving:
        return self._inner.saving(self._path(path), lease=lease, stage=stage)

    def open(self, path: str, name: str, stage: str) -> Source:
        return self._inner.open(self._path(path), name, stage)

    def distrust(self, path: str, name: str, stage: str) -> None:
        self._inner.distrust(self._path(path), name, stage)

    def sweep(self) -> int:
        return self._inner.sweep()


def layers(store: CheckpointStore) -> Iterator[CheckpointStore]:
    """Yield the wrappers, the outermost first, and the store that they are around."""
    while isinstance(store, Wrapper):
        yield store
        store = store.inner
    yield store
