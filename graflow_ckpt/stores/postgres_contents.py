"""Contents in Postgres: chunks that several checkpoints have in common.

    graflow_ckpt.contents      id, name, size, count, good     its chunks: put 'content/ID'
    graflow_ckpt.holds         holder ('c' and the put of a checkpoint, 's' and that of a save), content
    graflow_ckpt.freed         what was let go, until somebody has looked whether anybody still holds it

Promise: a checkpoint's holds come in the transaction of its commit, and go in the one that takes it away; a
foreign key keeps what somebody holds. What nobody holds goes right after that transaction, or with the next
sweep. What is being written is held by its save, and found by others when it is whole; a save has a row in
`staging` and is swept like any other. Migrations 0003 has the routines.
Not here: digests, and who compares them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, GraflowError, ServerError
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.postgres_chunks import CHUNK, LIFE, ChunkSource, Found
from graflow_ckpt.stores.postgres_link import Connection, Link

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

    def open(self, path: str, name: str, stage: str) -> ChunkSource:
        args = [self._base(path), stage, name]
        link, row = self._link(), self._link().sure(lambda c: c.execute(_HELD, args).fetchone())
        first = None
        if row is not None:
            at = [f"content/{row[0]}", 0]
            first = link.sure(lambda c: c.execute(_CHUNK, at, binary=True).fetchone())
        if row is None or first is None:
            raise CheckpointCorrupt(
                f"The checkpoint {path} holds no content {name}.",
                hint="It was written anew meanwhile, or by something else.",
                path=path,
                part=name,
            )
        content, size, count = row
        last: list[object] = [f"content/{content}", count - 1]
        place = Found(f"content/{content}", "content", size, count, bytes(first[0]), (_CHUNK, last))
        return ChunkSource(link, place, path)

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
