"""A store that goes away when it is told to: a file says so, so that other processes hear it, too.

It is a real store; only the way to it is blocked. `after`: the call is made, and its reply is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.core.protocols import CheckpointStore, Drops, Journal, Lease, Owner, Parts, Source
from graflow_ckpt.stores.around.wrapper import Wrapper

T = TypeVar("T")


class Cable:
    """A way to a store. It is cut while its file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def cut(self) -> None:
        self.file.touch()

    def mend(self) -> None:
        self.file.unlink(missing_ok=True)

    @property
    def is_cut(self) -> bool:
        return os.path.exists(self.file)


class Far(Wrapper):
    """A store at the end of a cable. It has its own address: it is no wrapper that anybody asks for."""

    word = "far"
    shared = True

    def __init__(self, inner: CheckpointStore, cable: Cable) -> None:
        super().__init__(inner)
        self.cable = cable
        self.calls: list[str] = []
        self.fails: list[tuple[str, bool]] = []  # the next calls of that name; whether they are made first

    def over(self, name: str, call: Callable[[], T]) -> T:
        self.calls.append(name)
        if self.cable.is_cut:
            raise ServerGone("far:// cannot be reached.", address="far://")
        for at, (wanted, after) in enumerate(self.fails):
            if wanted == name:
                del self.fails[at]
                if after:
                    call()
                raise ServerGone(f"far:// was lost in {name}.", address="far://")
        return call()

    def probe(self) -> None:
        self.over("probe", super().probe)

    def acquire(self, session: str, *, take_over: bool = False) -> Lease:
        return self.over("acquire", lambda: self.inner.acquire(session, take_over=take_over))

    def owner(self, session: str) -> Owner | None:
        return self.over("owner", lambda: self.inner.owner(session))

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        self.over("put", lambda: super(Far, self).put(path, parts, lease=lease, stage=stage, drops=drops))

    def open(self, path: str, part: str, stage: str) -> Source:
        return _FarSource(self.over("open", lambda: self.inner.open(self._inner(path), part, stage)), self)

    def meta(self, path: str) -> bytes:
        return self.over("meta", lambda: self.inner.meta(self._inner(path)))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        listing = self.over("list", lambda: super(Far, self).list(session, pattern))
        while (found := self.over("next", lambda: next(listing, None))) is not None:
            yield found

    def delete(self, path: str) -> bool:
        return self.over("delete", lambda: self.inner.delete(self._inner(path)))

    def delete_many(self, paths: Iterable[str]) -> int:
        return self.over("delete_many", lambda: super(Far, self).delete_many(paths))

    def journal(self, lease: Lease, after: int) -> Journal:
        return _FarJournal(self.over("journal", lambda: self.inner.journal(lease, after)), self)


class _FarJournal:
    def __init__(self, journal: Journal, store: Far) -> None:
        self._journal = journal
        self._store = store

    def append(self, frame: bytes, /) -> None:
        self._store.over("append", lambda: self._journal.append(frame))

    def close(self) -> None:
        self._journal.close()


class _FarSource:
    def __init__(self, source: Source, store: Far) -> None:
        self._source = source
        self._store = store

    @property
    def size(self) -> int:
        return self._source.size

    def readinto(self, buffer: memoryview, /) -> int:
        return self._store.over("read", lambda: self._source.readinto(buffer))

    def close(self) -> None:
        self._source.close()
