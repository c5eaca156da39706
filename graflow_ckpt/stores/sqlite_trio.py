"""The trio in a SQLite store: a row that a reader believes, and a body of chunks.

    checkpoints   id, name, session, workflow, status, epoch, stage, body, size, parts, meta
                  parts: {"pkl": [offset, size], "state.json": [offset, size]} in the body

    W1 what is large goes ahead (sqlite_chunks.py)   W2 commit: the epoch is checked, the row of the former
    checkpoint goes, the new one comes, with what is left of the body

A meta that is put alone, for the stage that is there, takes the place of the former meta and of nothing else:
what is sealed anew is no newer than it was.

Promise: before W2 a reader finds the previous checkpoint, after it this one, whole. A reader whose chunks
go while it reads finds out, and that meta has changed. What is listed and counted is read from rows alone.
Not here: who may write (sqlite_lease.py), and what a path names (sqlite_names.py).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from graflow_ckpt.core.errors import CheckpointNotFound, GraflowError, SaveOutcomeUnknown
from graflow_ckpt.core.protocols import PartWriter
from graflow_ckpt.stores import batches, sqlite_chunks
from graflow_ckpt.stores.disk import SMALL
from graflow_ckpt.stores.names import (
    Collected,
    check_parts,
    facts_in,
    not_found,
    not_its,
    path_of,
    replaced,
    session_of,
)
from graflow_ckpt.stores.sqlite_chunks import Body, ChunkSource, first_chunk
from graflow_ckpt.stores.sqlite_file import PAUSE, Database
from graflow_ckpt.stores.sqlite_lease import SqliteLease

_PAGE = 200  # metas that are read at once
_TURN = 0.015  # seconds for which deleting many keeps writers out; each turn has to be written, too
_FIRST = 1000  # rows of the newest that are looked through before an index that is in another order
_INSERT = (
    "INSERT INTO checkpoints (id, name, session, workflow, status, epoch, stage, body, size, parts, meta) "
    "VALUES (1 + max((SELECT ifnull(max(id), 0) FROM checkpoints), (SELECT ifnull(max(id), 0) FROM gone)), "
    "?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RESEAL = (
    "UPDATE checkpoints SET session = ?, workflow = ?, status = ?, epoch = ?, meta = ? "
    "WHERE name = ? AND stage = ? RETURNING id"
)
_META = f"CASE WHEN length(meta) <= {SMALL} THEN meta ELSE x'' END"  # no meta is that large


@dataclass(frozen=True, slots=True)
class Put:
    """One write: of what, by whom, under which staging id."""

    base: str
    lease: SqliteLease | None
    stage: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a meta claims that is looked for."""

    session: str
    workflow: str
    status: str
    epoch: int


class Trios:
    """The checkpoints of one database. `folder`: what their paths start with."""

    def __init__(self, database: Database, folder: str) -> None:
        self._database = database
        self._folder = folder

    # --- writing -----------------------------------------------------------------------

    def write(self, put: Put, parts: Sequence[tuple[str, PartWriter]]) -> None:
        """Write a trio; the last of `parts` is its meta."""
        names = [part for part, _ in parts]
        check_parts(names)
        body = Body(self._database, put.lease)
        try:
            placed: dict[str, tuple[int, int]] = {}
            for part, writer in parts[:-1]:
                began = body.begin_part()
                writer(body)
                placed[part] = (began, body.size - began)
            meta = Collected()
            parts[-1][1](meta)
            former = self._commit(put, body, placed, bytes(meta.data))
        except SaveOutcomeUnknown:
            raise  # it may stand: nothing of it is to be taken away
        except BaseException:
            with suppress(GraflowError):
                body.withdraw()
            raise
        for loose in former:
            self._clear(loose)

    def _commit(
        self, put: Put, body: Body, placed: dict[str, tuple[int, int]], meta: bytes
    ) -> list[int | None]:
        """W2. If there was a former checkpoint: its body, if it is too large to go within the transaction."""
        facts = _facts_in(meta, put.base)
        with self._database.writing() as connection:
            if put.lease is not None:
                put.lease.hold(connection)
            claimed = (facts.session, facts.workflow, facts.status, facts.epoch)
            path = path_of(self._folder, put.base)
            if not placed:
                sealed = connection.execute(_RESEAL, (*claimed, meta, put.base, put.stage)).fetchall()
                if sealed:
                    sqlite_chunks.hold(connection, path, sealed[0][0], meta, sealed[0][0])
                    return []
                its = "SELECT 1 FROM checkpoints WHERE name = ? AND parts <> '{}'"
                if connection.execute(its, (put.base,)).fetchone():
                    raise replaced(path)
            former = _removed(connection, put.base)
            stored = (put.stage, body.id, body.size, json.dumps(placed), meta)
            checkpoint = connection.execute(_INSERT, (put.base, *claimed, *stored)).lastrowid
            assert checkpoint is not None
            sqlite_chunks.hold(connection, path, checkpoint, meta, former.id if former else 0)
            body.settle(connection, checkpoint)
            if former is None:
                return []
            sqlite_chunks.let_go(connection, former.id)
            return [sqlite_chunks.forget(connection, former.body, former.size)]

    def delete(self, base: str) -> bool:
        with self._database.writing("delete from") as connection:
            gone = _removed(connection, base)
            if gone is None:
                return False
            sqlite_chunks.let_go(connection, gone.id)
            loose = sqlite_chunks.forget(connection, gone.body, gone.size)
        self._clear(loose)
        return True

    def delete_many(self, bases: Iterable[str]) -> int:
        """How many there were. Others get to write in between; each is deleted whole or not at all.

        In the order in which they were written, so that one transaction goes to few pages. All but the
        last are not synced: that one covers them.
        """
        left, count, loose = self._in_order(bases), 0, list[int]()
        while left:
            with self._database.writing("delete from", easy=True) as connection:
                end = time.perf_counter() + _TURN
                while left and time.perf_counter() < end:
                    if (gone := _removed(connection, left.pop())) is not None:
                        count += 1
                        sqlite_chunks.let_go(connection, gone.id)
                        one = sqlite_chunks.forget(connection, gone.body, gone.size)
                        loose += [one] if one is not None else []
            time.sleep(PAUSE)
        if count:
            with self._database.writing("delete from") as connection:
                connection.execute("INSERT INTO chunks VALUES (-1, x'')")  # any commit that is synced
                connection.execute("DELETE FROM chunks WHERE id = -1")
        for one in [*loose, None]:
            self._clear(one)
        return count

    def _in_order(self, bases: Iterable[str]) -> list[str]:
        """Those that are there, the oldest last."""
        with self._database.reading() as connection:
            if connection is None:
                return []
            select, found = "SELECT id FROM checkpoints WHERE name = ?", []
            for base in bases:
                if (row := connection.execute(select, (base,)).fetchone()) is not None:
                    found.append((row[0], base))
        return [base for _, base in sorted(found, reverse=True)]

    def _clear(self, loose: int | None) -> None:
        """A body that was made loose, and contents that nobody holds any more."""
        with suppress(GraflowError):  # the checkpoint is gone; the next owner clears what is left of it
            if loose is not None:
                sqlite_chunks.clear(self._database, loose)
            sqlite_chunks.clear_contents(self._database)

    # --- reading -----------------------------------------------------------------------

    def open_part(self, base: str, part: str, stage: str) -> ChunkSource:
        path = path_of(self._folder, base)
        select = "SELECT id, body, stage, parts FROM checkpoints WHERE name = ?"
        found = self._row(select, base)
        if found is None:
            raise self._not_found(base)
        checkpoint, body, its_stage, said = found
        place = _place_in(said, part) if its_stage == stage else None
        if place is None:
            raise not_its(path, part)
        return ChunkSource(self._database, first_chunk(checkpoint, body), *place, path)

    def meta(self, base: str) -> bytes:
        found = self._row(f"SELECT {_META} FROM checkpoints WHERE name = ?", base)
        if found is None:
            raise self._not_found(base)
        meta: bytes = found[0]
        return meta

    def metas(self, session: str | None = None, glob: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Names and metas, the last committed first, of all that were there when it began.

        Who looks at a page pays for a page. Who goes on gets all names at once: one page after the other, a
        checkpoint that is written anew meanwhile would move out of sight.
        """
        given, its = ((), "") if session is None else ((session,), " AND session = ?")
        newest = f"WHERE TRUE{its} ORDER BY id DESC"
        page = self._rows(f"SELECT name, {_META} FROM checkpoints {newest} LIMIT {_PAGE}", given)
        yield from _matching(page, glob)
        if len(page) < _PAGE:
            return
        index = "" if session is not None else "INDEXED BY checkpoints_name "  # it has all that is asked
        names = self._rows(f"SELECT name FROM checkpoints {index}{newest}", given)
        seen = {name for name, _ in page}
        left = [name for (name,) in names if name not in seen]
        while left:
            some, left = left[:_PAGE], left[_PAGE:]
            marks = ",".join("?" * len(some))
            by_name = f"name IN ({marks}){' AND +session = ?' if given else ''}"
            select = f"SELECT name, {_META} FROM checkpoints WHERE {by_name}"
            found = dict(self._rows(select, (*some, *given)))
            yield from _matching([(name, found[name]) for name in some if name in found], glob)

    def newest(self, limit: int, wanted: batches.Filters) -> list[tuple[str, bytes]]:
        """The same for a few of those that fit; looks at no more than the indexes for the others."""
        session = wanted.get("session")
        named = {column: wanted.get(column) for column in ("session", "workflow", "status")}
        given = {column: _column(str(value)) for column, value in named.items() if value is not None}
        where = " AND ".join(f"{column} = :{column}" for column in given) or "TRUE"
        values = {**given, "limit": batches.within(limit)}
        with self._database.reading() as connection:
            if connection is None:
                return []
            if len(given) == 1 and session is None and limit <= _FIRST // 10:
                # no index has these in the order of commits: all of a common status would be sorted
                newest = f"SELECT * FROM checkpoints ORDER BY id DESC LIMIT {_FIRST}"
                select = f"SELECT name, {_META} FROM ({newest}) WHERE {where} LIMIT :limit"
                if len(found := connection.execute(select, values).fetchall()) == limit:
                    return found
            index = "session" if session is not None else "facts"
            by = f"INDEXED BY checkpoints_{index}" if given else ""
            ids = f"SELECT id FROM checkpoints {by} WHERE {where} ORDER BY id DESC LIMIT :limit"
            select = f"SELECT name, {_META} FROM checkpoints WHERE id IN ({ids}) ORDER BY id DESC"
            return connection.execute(select, values).fetchall()

    # --- within ------------------------------------------------------------------------

    def _row(self, select: str, base: str) -> Any:  # what SQLite gives
        with self._database.reading() as connection:
            if connection is None:
                return None
            return connection.execute(select, (base,)).fetchone()

    def _rows(self, select: str, values: tuple[object, ...]) -> list[Any]:
        with self._database.reading() as connection:
            return [] if connection is None else connection.execute(select, values).fetchall()

    def _not_found(self, base: str) -> CheckpointNotFound:
        return not_found(path_of(self._folder, base))


@dataclass(frozen=True, slots=True)
class _Row:
    """What a checkpoint was that goes."""

    id: int
    body: int
    size: int


def _removed(connection: sqlite3.Connection, base: str) -> _Row | None:
    """The row goes, and its body is still there; None if there is no such checkpoint."""
    delete = "DELETE FROM checkpoints WHERE name = ? RETURNING id, coalesce(body, id), size"
    found = connection.execute(delete, (base,)).fetchall()
    if not found:
        return None
    checkpoint, body, size = found[0]
    (newest,) = connection.execute("SELECT max(id) FROM checkpoints").fetchone()
    if newest is None or newest < checkpoint:
        connection.execute("INSERT OR IGNORE INTO gone VALUES (?)", (checkpoint,))
        connection.execute("DELETE FROM gone WHERE id < (SELECT max(id) FROM gone)")
    return _Row(checkpoint, body, size)


def _matching(found: list[tuple[str, bytes]], glob: str | None) -> Iterator[tuple[str, bytes]]:
    return (each for each in found if glob is None or fnmatchcase(each[0], glob))


def _facts_in(meta: bytes, base: str) -> Facts:
    """As an unverified meta claims them: for looking only. An own name says the session by itself."""
    said = facts_in(meta)
    text = {name: _column(value) for name, value in said.items() if isinstance(value, str)}
    epoch = said.get("epoch")
    return Facts(
        session=session_of(base) or text.get("session_id", ""),
        workflow=text.get("workflow", ""),
        status=text.get("status", ""),
        epoch=epoch if type(epoch) is int and 0 <= epoch < 1 << 62 else 0,
    )


def _column(value: str) -> str:
    """As it can stand in a column: a text may hold what has no encoding, such as part of a file name."""
    return value.encode(errors="backslashreplace").decode()


def _place_in(said: object, part: str) -> tuple[int, int] | None:
    try:
        offset, size = json.loads(str(said))[part]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (offset, size) if type(offset) is type(size) is int and offset >= 0 and size >= 0 else None
