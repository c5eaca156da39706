"""A driver over SQLite: a batch is one transaction."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag
from graflow_ckpt.stores.drivers.sqlite.file import Database
from graflow_ckpt.stores.files.disk import SMALL

_SMALL = 2048  # bytes that a page of the table of keys may have of one thing
_PAGE = 1000
_MANY = 1 << 62

_DATA = f"CASE WHEN ifnull(length(t.data), length(l.data)) > {SMALL} THEN x'' ELSE ifnull(t.data, l.data) END"
_GET = f"SELECT t.key, {_DATA}, t.tag, t.at FROM things t LEFT JOIN large l ON l.id = t.large WHERE t.key "
_TAG = "SELECT tag FROM things WHERE key = ?"
_NEEDS = "SELECT count(*) FROM things WHERE key IN (SELECT value FROM json_each(?))"
_NEXT = "SELECT ifnull(max(number), 0) + 1 FROM things WHERE number IS NOT NULL"
_INSERT = "INSERT OR IGNORE INTO things VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE = "UPDATE things SET tag = ?, at = ?, size = ?, data = ?, large = ? WHERE key = ?"
_DROP = "DELETE FROM things WHERE key IN (SELECT value FROM json_each(?))"
_DROP_LARGE = (
    "DELETE FROM large WHERE id IN (SELECT large FROM things WHERE large IS NOT NULL "
    "AND key IN (SELECT value FROM json_each(?)))"
)
_LIST = "SELECT key, size, at FROM things WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
_FIND = (
    f"SELECT t.number, t.key, {_DATA} FROM things t {{}} LEFT JOIN large l ON l.id = t.large "
    "WHERE t.number IS NOT NULL AND t.number < ?{} ORDER BY t.number DESC LIMIT ?"
)


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
            if len(keys) == 1:
                rows = connection.execute(f"{_GET}= ?", keys).fetchall()
            else:
                rows = connection.execute(
                    f"{_GET}IN (SELECT value FROM json_each(?))", (json.dumps(keys),)
                ).fetchall()
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
        tag, at = os.urandom(12).hex(), time.time()
        try:
            with self._database.writing(easy=soft) as connection:
                execute = connection.execute
                for key, wanted in (guards or {}).items():
                    row = execute(_TAG, (key,)).fetchone()
                    if (row and row[0]) != wanted:
                        raise _Refused
                if needs and execute(_NEEDS, (json.dumps(needs),)).fetchone()[0] < len(set(needs)):
                    raise _Refused
                for put in puts:
                    _put(execute, put, tag, at)
                if drops:
                    listed = (json.dumps(drops),)
                    execute(_DROP_LARGE, listed)
                    execute(_DROP, listed)
        except _Refused:
            return None
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
        facts = {name: want for name, want in zip(Row._fields, wanted, strict=True) if want}
        where = "".join(f" AND t.{name} = ?" for name in facts)
        # by itself SQLite may choose one that has most rows
        index = "INDEXED BY things_session" if wanted.session else ""
        with self._database.reading() as connection:
            if connection is None:
                return []
            values = (_MANY if below is None else below, *facts.values(), limit)
            return [Hit(*row) for row in connection.execute(_FIND.format(index, where), values)]


class _Refused(Exception):
    """A condition that a batch relied on does not hold."""


# Any: a connection's method.
def _put(execute: Any, put: Put, tag: Tag, at: float) -> None:
    data, size, large = put.data, len(put.data), None
    if not put.fresh:
        row = execute("SELECT large FROM things WHERE key = ?", (put.key,)).fetchone()
        if row is not None:
            large = _aside(execute, data, size, row[0])
            execute(_UPDATE, (tag, at, size, None if large else data, large, put.key))
            return
    large = _aside(execute, data, size, None)
    number = execute(_NEXT).fetchone()[0] if put.row is not None else None
    facts = put.row if put.row is not None else (None, None, None)
    values = (put.key, tag, at, size, None if large else data, large, number, *facts)
    if execute(_INSERT, values).rowcount != 1:
        raise _Refused


def _aside(execute: Any, data: Buffer, size: int, former: int | None) -> int | None:
    """Store what is too large for the table of keys; return its number there."""
    if size <= _SMALL:
        if former is not None:
            execute("DELETE FROM large WHERE id = ?", (former,))
        return None
    if former is not None:
        execute("UPDATE large SET data = ? WHERE id = ?", (data, former))
        return former
    number: int = execute("INSERT INTO large (data) VALUES (?)", (data,)).lastrowid
    return number
