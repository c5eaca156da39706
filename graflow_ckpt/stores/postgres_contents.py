"""Chunks in Postgres: those of the parts of a checkpoint, and those that several checkpoints have in common.

    graflow_ckpt.chunks        put, part, number, data (CHUNK bytes)
    graflow_ckpt.checkpoints   …, pkl, state: of each part the last chunk
    graflow_ckpt.contents      id, name, size, count, good     its chunks: put 'content/ID'
    graflow_ckpt.holds         holder ('c' and the put of a checkpoint, 's' and that of a save), content
    graflow_ckpt.freed         what was let go, until somebody has looked whether anybody still holds it

Promise: what is larger than a chunk is written as it comes, in order; the last chunk is kept for the
commit, so that a small checkpoint is one round trip and one row. A chunk that is gone when it is read is
`CheckpointCorrupt`: a newer checkpoint may have taken its place.

A checkpoint's holds come in the transaction of its commit, and go in the one that takes it away; a
foreign key keeps what somebody holds. What nobody holds goes right after that transaction, or with the next
sweep. What is being written is held by its save, and found by others when it is whole; a save has a row in
`staging` and is swept like any other. Migrations 0003 has the routines.
Not here: what makes chunks visible (postgres_trio.py); digests, and who compares them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from graflow_ckpt.core.errors import CheckpointError, GraflowError, ServerError
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.names import holds_none, lacks
from graflow_ckpt.stores.pieces import ChunkSource
from graflow_ckpt.stores.postgres_link import Connection, Link

CHUNK = 4 << 20
LIFE = 3600  # seconds; what a dead writer without a session has left goes when it is older than this


@dataclass(frozen=True, slots=True)
class Found:
    """A part that a row points at. `last`: what asks for its last chunk, should there be several."""

    put: str
    part: str
    size: int
    count: int
    first: bytes
    last: tuple[str, list[object]]


class PostgresSource(ChunkSource):
    """A part, or a content, in Postgres. The first chunk is already there."""

    __slots__ = ("_found", "_link")

    def __init__(self, link: Link, found: Found, path: str) -> None:
        super().__init__(found.size, found.count, path, found.first)
        self._link, self._found = link, found

    def _read(self, number: int) -> bytes:
        found = self._found
        asked = "select data from graflow_ckpt.chunks where put = %s and part = %s and number = %s"
        args: list[object] = [found.put, found.part, number]
        if number == found.count - 1:
            asked, args = found.last

        def ask(connection: Connection) -> tuple[bytes | None] | None:
            return connection.execute(asked.encode(), args, binary=True).fetchone()

        row = self._link.sure(ask)
        if row is None or row[0] is None:
            raise lacks(self.path, f"chunk {number} of a part", "somebody has deleted rows")
        return row[0]


# --- contents ------------------------------------------------------------------------------


T = TypeVar("T")

_AT_ONCE = 1000  # notes that the routine reads

GONE = "GC002"  # what the routines say when a save, or what it holds, was swept

_HELD = """select contents.id, size, contents.count from graflow_ckpt.checkpoints
    join graflow_ckpt.holds on holder = 'c' || checkpoints.put
    join graflow_ckpt.contents on contents.id = content
    where checkpoints.name = %s and parts -> 'pkl' ->> 'stage' = %s and contents.name = %s"""

_CHUNK = "select data from graflow_ckpt.chunks where put = %s and part = 'content' and number = %s"


class PostgresContents:
    """Those of one store. `link`: looked at when it is used first; `base`: the name that a path means."""

    shares = True

    def __init__(self, link: Callable[[], Link], base: Callable[[str], str]) -> None:
        self._link, self._base = link, base

    def scope(self, path: str, /) -> str:
        return ""

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> PostgresSaving:
        return PostgresSaving(self._link(), path, [lease.session, lease.epoch] if lease else [None, None])

    def open(self, path: str, name: str, stage: str) -> PostgresSource:
        args = [self._base(path), stage, name]
        link, row = self._link(), self._link().sure(lambda c: c.execute(_HELD, args).fetchone())
        first = None
        if row is not None:
            at = [f"content/{row[0]}", 0]
            first = link.sure(lambda c: c.execute(_CHUNK, at, binary=True).fetchone())
        if row is None or first is None:
            raise holds_none(path, name)
        content, size, count = row
        last: list[object] = [f"content/{content}", count - 1]
        place = Found(f"content/{content}", "content", size, count, bytes(first[0]), (_CHUNK, last))
        return PostgresSource(link, place, path)

    def distrust(self, path: str, name: str, stage: str) -> None:
        asked = f"update graflow_ckpt.contents set good = false where id = (select id from ({_HELD}) as one)"
        self._link().run(lambda c: c.execute(asked.encode(), [self._base(path), stage, name]))

    def sweep(self) -> int:
        self._link().run(lambda c: c.execute("select graflow_ckpt.sweep('', 0, %s)", [LIFE]))
        return clear(self._link())


class PostgresSaving:
    """What one save has found and added."""

    def __init__(self, link: Link, path: str, whose: list[object]) -> None:
        self._link, self._path, self._whose = link, path, whose
        self._save = uuid.uuid4().hex
        self._begun = False

    def hold(self, names: Sequence[str], /) -> Collection[str]:
        asked = "select graflow_ckpt.pin(%s, %s::bigint, %s, %s, %s)"
        args = [*self._whose, self._save, not self._begun, list(names)]
        found = self._ask(lambda connection: connection.execute(asked, args).fetchall())
        self._begun = True
        return {name for (name,) in found}

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        if not self._begun:
            self.hold([])
        if size <= CHUNK:
            args = [self._save, name, b"".join(pieces)]
            self._ask(lambda c: c.execute("select graflow_ckpt.add_content(%s, %s, %b)", args))
            return
        count = -(-size // CHUNK)
        begin = "select graflow_ckpt.begin_content(%s, %s, %s, %s)"
        row = self._ask(lambda c: c.execute(begin, [self._save, name, size, count]).fetchone())
        assert row is not None
        content: int = row[0]
        for number, piece in enumerate(pieces):
            if number < count - 1:
                self._chunk(content, number, piece)
            else:
                self._finish(content, number, piece)

    def settle(self) -> None:
        """All of it is in the database; the commit is on the disk only after it."""

    def end(self) -> None:
        if self._begun:
            self._link.run(lambda c: c.execute("select graflow_ckpt.withdraw(%s)", [self._save]))
            clear(self._link)

    def _chunk(self, content: int, number: int, piece: bytes) -> None:
        asked = """insert into graflow_ckpt.chunks select %s, 'content', %s, %b from graflow_ckpt.contents
            where id = %s for key share on conflict do nothing"""  # else a swept one would leave chunks
        self._ask(lambda c: c.execute(asked, [f"content/{content}", number, piece, content]))

    def _finish(self, content: int, number: int, piece: bytes) -> None:
        asked = "select graflow_ckpt.finish_content(%s, %s, %s, %b)"
        self._ask(lambda c: c.execute(asked, [self._save, content, number, piece]))

    def _ask(self, work: Callable[[Connection], T]) -> T:
        try:
            return self._link.sure(work)
        except ServerError as error:
            raise in_our_words(error, self._path) from error


def in_our_words(error: ServerError, path: str) -> GraflowError:
    """What the routines raise, if it is one of theirs."""
    if error.ids.get("code") != GONE:
        return error
    return CheckpointError(
        f"The checkpoint {path} was not written: what it holds is not there (any more).",
        hint=f"Another owner of the session has swept it, writing took more than {LIFE} seconds, or it was "
        "copied without its contents: save it again.",
        path=path,
    )


def clear(link: Link) -> int:
    """Take away what nobody holds any more, in steps."""
    asked, gone = "select graflow_ckpt.clear_contents(), count(*) from graflow_ckpt.freed", 0
    while True:
        row = link.run(lambda c: c.execute(asked).fetchone())
        assert row is not None
        gone += int(row[0])
        if row[1] <= _AT_ONCE:  # notes that there were before this step
            return gone


def clear_quietly(link: Link) -> None:
    """After a commit: what is left is taken away with the next one."""
    with suppress(GraflowError):
        clear(link)
