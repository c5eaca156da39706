"""A driver over SQLite: a batch is one transaction.

What a batch costs is the pages that it changes: each goes into the log, and from there into the file. So what
is put takes the place of what the same batch drops, and the facts that metas are found by are entered into
their tree for many metas at once: `find` looks at those above the last one that was entered itself.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag, facts_of
from graflow_ckpt.stores.drivers.sqlite.file import Database
from graflow_ckpt.stores.files.disk import SMALL

_SMALL = 800  # bytes that are put beside their key: a row with more would need a page of its own
_PAGE = 1000
_MANY = 1 << 62
_AT_ONCE = 30_000  # keys that one statement may name
_ENTERED = 64  # metas whose facts are entered at once

_CAPPED = f"CASE WHEN length({{0}}) > {SMALL} THEN x'' ELSE {{0}} END"
_ASKED = "FROM (VALUES {}) asked CROSS JOIN things t ON t.key = asked.column1"
_GET = (
    f"SELECT t.key, t.tag, t.at, {_CAPPED.format('coalesce(t.data, l.data, m.data)')}, "
    f"{_CAPPED.format('m.rest')} {_ASKED} "
    "LEFT JOIN large l ON l.id = t.large LEFT JOIN metas m ON m.number = t.meta"
)
_THERE = f"SELECT t.key, t.tag, t.size, t.large, t.meta {_ASKED}"
_NOTHING = (None, None, 0, None, None)
_LIST = "SELECT key, size, at FROM things WHERE key > ? AND key < ? ORDER BY key LIMIT ?"

_FOUND = f"SELECT m.number, m.key, {_CAPPED.format('m.data')} FROM"
_NEWEST = f"{_FOUND} metas m WHERE m.number > ? AND m.number < ?{{}} ORDER BY m.number DESC LIMIT ?"
_OLDER = (
    f"{_FOUND} facts f JOIN metas m ON m.number = f.number "
    "WHERE f.fact = ? AND f.number < ?{} ORDER BY f.number DESC LIMIT ?"
)
_ALSO = " AND EXISTS (SELECT 1 FROM facts WHERE fact = ? AND number = f.number)"

_LAST = (
    "SELECT ifnull((SELECT max(number) FROM metas), 0), "
    "ifnull((SELECT max(number) FROM facts WHERE fact = ''), 0)"
)
_FACTS = "SELECT number, session, workflow, status FROM metas WHERE number "


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
            rows = _rows(connection, _GET, keys)
        found = {key: Stored(data + rest if rest else data, tag, at) for key, tag, at, data, rest in rows}
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
        tag, wanted = os.urandom(12).hex(), guards or {}
        asked = [*{*wanted, *needs, *drops, *[put.key for put in puts]}]
        with self._database.writing(easy=soft) as connection:
            there = {row[0]: row for row in _rows(connection, _THERE, asked)}
            for key, known in wanted.items():
                if there.get(key, _NOTHING)[1] != known:
                    return None
            if any(put.key in there for put in puts if put.fresh) or not there.keys() >= {*needs}:
                return None
            steps = _Steps(connection, there)
            steps.drop(drops)
            steps.put(puts, tag)
        return BatchDone(tag)

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
        most, facts = _MANY if below is None else below, facts_of(wanted)[1:]
        has = {name: fact for name, fact in zip(Row._fields, wanted, strict=True) if fact}
        newest = _NEWEST.format("".join([f" AND m.{name} = ?" for name in has]))
        with self._database.reading() as connection:
            if connection is None:
                return []
            _, entered = connection.execute(_LAST).fetchone() if has else (0, 0)
            rows = connection.execute(newest, (entered, most, *has.values(), limit)).fetchall()
            if entered and len(rows) < limit:
                older = _OLDER.format(_ALSO * (len(facts) - 1))
                values = (facts[0], min(most, entered + 1), *facts[1:], limit - len(rows))
                rows += connection.execute(older, values).fetchall()
        return [Hit(*row) for row in rows]


# Any: what SQLite gives.
class _Steps:
    """The steps of one batch. `there`: what is there of all that it is about."""

    def __init__(self, connection: sqlite3.Connection, there: dict[str, Any]) -> None:
        self._connection, self._there = connection, there
        self._execute, self._each = connection.execute, connection.executemany
        self._free: dict[int, list[int]] = {}  # places in `large` of what goes, by their size in pages
        self._last = -1  # number of a meta, also of one that goes; -1: not looked up yet
        self._entered = 0  # the last number whose facts are entered

    def drop(self, keys: Sequence[str]) -> None:
        gone = [self._there.pop(key) for key in keys if key in self._there]
        if not gone:
            return
        self._each("DELETE FROM things WHERE key = ?", [row[:1] for row in gone])
        for _, _, size, large, _ in gone:
            if large is not None:
                self._free.setdefault(size >> 12, []).append(large)
        if metas := [row[4:] for row in gone if row[4] is not None]:
            self._look()
            entered = [number for (number,) in metas if number <= self._entered]
            rows = _rows(self._connection, f"{_FACTS} IN (VALUES {{}})", entered)
            self._each("DELETE FROM facts WHERE fact = ? AND number = ?", _entries(rows))
            self._each("DELETE FROM metas WHERE number = ?", metas)

    def put(self, puts: Sequence[Put], tag: Tag) -> None:
        at, new = time.time(), []
        for key, data, _, row, listed in puts:
            size, own, large, meta = len(data), None, self._there.get(key, _NOTHING)[3], None
            if large is not None:
                self._free.setdefault(self._there[key][2] >> 12, []).append(large)
                large = None
            if row is not None:
                self._look()
                meta = self._last = self._last + 1
                both = (data, b"") if listed is None else (data[:listed], data[listed:])
                self._execute("INSERT INTO metas VALUES (?, ?, ?, ?, ?, ?, ?)", (meta, key, *row, *both))
            elif size <= _SMALL:
                own = data
            elif free := self._free.get(size >> 12):
                large = free.pop()
                self._execute("UPDATE large SET data = ? WHERE id = ?", (data, large))
            else:
                large = self._execute("INSERT INTO large (data) VALUES (?)", (data,)).lastrowid
            new.append((key, tag, at, size, own, large, meta))
        if new:
            self._each("INSERT OR REPLACE INTO things VALUES (?, ?, ?, ?, ?, ?, ?)", new)
        if left := [(place,) for places in self._free.values() for place in places]:
            self._each("DELETE FROM large WHERE id = ?", left)
        if self._last >= self._entered + _ENTERED:
            rows = self._execute(f"{_FACTS} > ?", (self._entered,)).fetchall()
            self._each("INSERT INTO facts VALUES (?, ?)", [*_entries(rows), ("", self._last)])
            self._execute("DELETE FROM facts WHERE fact = '' AND number < ?", (self._last,))

    def _look(self) -> None:
        if self._last < 0:
            last, self._entered = self._execute(_LAST).fetchone()
            self._last = max(last, self._entered)


# Any: what SQLite gives.
def _entries(rows: Iterable[Any]) -> list[tuple[str, int]]:
    """Return the facts of these metas, in the order of their tree."""
    return sorted([(fact, number) for number, *row in rows for fact in facts_of(Row(*row))[1:]])


def _rows(connection: sqlite3.Connection, statement: str, keys: Sequence[str | int]) -> list[Any]:
    """Return the rows of a statement about these keys, or numbers."""
    rows: list[Any] = []
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        rows += connection.execute(_about(statement, len(some)), some).fetchall()
    return rows


@lru_cache
def _about(statement: str, count: int) -> str:
    return statement.format(",".join(["(?)"] * count))
