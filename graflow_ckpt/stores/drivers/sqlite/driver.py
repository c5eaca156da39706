"""A driver over SQLite: a batch is one transaction.

What a batch costs is the pages that it changes: each goes into the log, and from there into the file. So what
is put takes the place of what the same batch drops, and one tree has the facts of all metas.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag, facts_of
from graflow_ckpt.stores.drivers.sqlite.file import Database
from graflow_ckpt.stores.files.disk import SMALL

_SMALL = 800  # bytes that are put beside their key: a row with more would need a page of its own
_PAGE = 1000
_MANY = 1 << 62
_AT_ONCE = 30_000  # keys that one statement may name

_CAPPED = f"CASE WHEN length({{0}}) > {SMALL} THEN x'' ELSE {{0}} END"
_GET = (
    f"SELECT t.key, {_CAPPED.format('coalesce(t.data, l.data, m.data)')}, t.tag, t.at FROM things t "
    "LEFT JOIN large l ON l.id = t.large LEFT JOIN metas m ON m.id = t.meta WHERE t.key IN ({})"
)
_TAGS = "SELECT key, tag FROM things WHERE key IN ({})"
_LIST = "SELECT key, size, at FROM things WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
_FIND = (
    f"SELECT f.number, m.key, {_CAPPED.format('m.data')} FROM facts f JOIN metas m ON m.id = f.meta "
    "WHERE f.fact = ? AND f.number < ?{} ORDER BY f.number DESC LIMIT ?"
)
_ALSO = " AND EXISTS (SELECT 1 FROM facts WHERE fact = ? AND number = f.number)"

_DROP = "DELETE FROM things WHERE key IN ({}) RETURNING size, large, meta, number, facts"
_LAST = "SELECT ifnull(max(number), 0) FROM facts WHERE fact = ':'"
_NEW = {
    "large": "INSERT INTO large (data) VALUES (?)",
    "metas": "INSERT INTO metas (data, key) VALUES (?, ?)",
}
_OVER = {
    "large": "UPDATE large SET data = ? WHERE id = ?",
    "metas": "UPDATE metas SET data = ?, key = ? WHERE id = ?",
}


class SqliteDriver:
    """One database."""

    atomic = True
    inline = 0
    chunk = 1 << 20

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> float:
        return time.time()

    def get(self, *keys: str) -> Sequence[Stored | None]:
        with self._database.reading() as connection:
            if connection is None:
                return [None] * len(keys)
            rows = _rows(connection.execute, _GET, keys)
        found = {key: Stored(data, tag, at) for key, data, tag, at in rows}
        return [found.get(key) for key in keys]

    def read(self, key: str, start: int, length: int) -> Buffer | None:
        (found,) = self.get(key)
        if found is None or len(found.data) < start + length:
            return None
        return memoryview(found.data)[start : start + length]

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        needs: Sequence[str] = (),
        soft: bool = False,
    ) -> BatchDone | None:
        tags = dict(guards or {})
        tags |= {put.key: None for put in puts if put.fresh}
        steps = _Steps()
        with self._database.writing(easy=soft) as connection:
            there = dict(_rows(connection.execute, _TAGS, [*tags, *needs]))
            missing = any(key not in there for key in needs)
            if missing or any(there.get(key) != wanted for key, wanted in tags.items()):
                return None
            steps.drop(connection, [*drops, *(put.key for put in puts if not put.fresh)])
            steps.put(connection, puts)
        return BatchDone(steps.tag)

    def keys(self, prefix: str) -> Iterator[Entry]:
        last, end = prefix, f"{prefix}\U0010ffff"
        while True:
            with self._database.reading() as connection:
                if connection is None:
                    return
                rows = connection.execute(_LIST, (last, end, _PAGE)).fetchall()
            yield from (Entry(*row) for row in rows)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        fact, *others = facts_of(wanted)[::-1]
        values = (fact, _MANY if below is None else below, *others, limit)
        with self._database.reading() as connection:
            if connection is None:
                return []
            return [Hit(*row) for row in connection.execute(_FIND.format(_ALSO * len(others)), values)]


class _Steps:
    """The steps of one batch. `free`: places of what it has dropped, by table and size in pages."""

    def __init__(self) -> None:
        self.tag, self._at = os.urandom(12).hex(), time.time()
        self._free: dict[tuple[str, int], list[int]] = {}
        self._last = 0  # the highest number that was dropped: it is not given twice

    def drop(self, connection: sqlite3.Connection, keys: Sequence[str]) -> None:
        gone: list[tuple[str, int]] = []
        for size, large, meta, number, facts in _rows(connection.execute, _DROP, keys):
            if large is not None:
                self._free.setdefault(("large", size >> 12), []).append(large)
            if meta is not None:
                self._free.setdefault(("metas", size >> 12), []).append(meta)
                gone += [(fact, number) for fact in facts.split("\n")]
                self._last = max(self._last, number)
        if gone:
            connection.executemany("DELETE FROM facts WHERE fact = ? AND number = ?", gone)

    def put(self, connection: sqlite3.Connection, puts: Sequence[Put]) -> None:
        new: list[tuple[object, ...]] = []
        said: list[tuple[str, int, int | None]] = []
        for put in puts:
            data, size = put.data, len(put.data)
            own = large = meta = number = facts = None
            if put.row is not None:
                meta, facts = self._place(connection, "metas", size, data, put.key), facts_of(put.row)
                number = self._last = 1 + max(self._last, *connection.execute(_LAST).fetchone())
                said += [(fact, number, meta) for fact in facts]
            elif size > _SMALL:
                large = self._place(connection, "large", size, data)
            else:
                own = data
            new.append(
                (put.key, self.tag, self._at, size, own, large, meta, number, facts and "\n".join(facts))
            )
        if said:
            connection.executemany("INSERT INTO facts VALUES (?, ?, ?)", said)
        if new:
            connection.executemany("INSERT INTO things VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", new)
        for (table, _), left in self._free.items():
            if left:
                connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(place,) for place in left])

    def _place(self, connection: sqlite3.Connection, table: str, size: int, *values: object) -> int | None:
        """Put it in the place of what was dropped: so no page is given away and another one taken."""
        if not (free := self._free.get((table, size >> 12))):
            return connection.execute(_NEW[table], values).lastrowid
        connection.execute(_OVER[table], (*values, free[-1]))
        return free.pop()


# Any: what SQLite gives.
def _rows(execute: Callable[..., Any], statement: str, keys: Sequence[str]) -> list[Any]:
    """Return the rows of a statement about these keys."""
    rows: list[Any] = []
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        rows += execute(statement.format(",".join("?" * len(some))), some).fetchall()
    return rows
