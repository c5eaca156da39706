"""A driver over Postgres: a batch is one statement, and one round trip."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graflow_ckpt.core.errors import ServerError
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag
from graflow_ckpt.stores.drivers.postgres.link import TRUE, Connection, Link, Prepared, Value

_PAGE = 1000
_NOT_FRESH = "23505"
_NO_ROW = (None, None, None)
_BATCH = "select graflow_ckpt.batch(%b, %s, %b, %s, %b, %s, %s, %s, %s, %s, %b, %s, %s)"
_GET = "select key, data, tag, at from graflow_ckpt.things where key = any(%s)"
_READ = "select substring(data from %s for %s) from graflow_ckpt.things where key = %s"
_LIST = """select key, octet_length(data), at from graflow_ckpt.things
    where key > %s and key < %s order by key limit %s"""
_FIND = "select * from graflow_ckpt.find(%s::text, %s::text, %s::text, %s::bigint, %s::bigint)"


_THINGS = "graflow_ckpt.things (key, tag, at, data, listed, number, session, workflow, status)"
_ROW = "(%s::text, %b::bytea, %s::int, %s::text, %s::text, %s::text)"
_COMMITS = [
    Prepared(
        f"commit_{count}",
        f"""with held as (update graflow_ckpt.things set tag = %b, at = graflow_ckpt.now(), data = %b
            where key = %s and tag = %b returning 1),
        put as (insert into {_THINGS}
            select k, %b::bytea, graflow_ckpt.now(), d, l,
                case when l is not null then nextval('graflow_ckpt.numbers') end, s, w, t
            from held, (values {", ".join([_ROW] * count)}) as new(k, d, l, s, w, t)),
        gone as (delete from graflow_ckpt.things using held where key = any(%s::text[]))
        select graflow_ckpt.durable() from held""",
    )
    for count in range(1, 7)
]


_AHEAD = [
    Prepared(
        f"ahead_{count}",
        f"""insert into graflow_ckpt.things (key, tag, at, data)
            select k, %b::bytea, graflow_ckpt.now(), d
            from (values {", ".join(["(%s::text, %b::bytea)"] * count)}) as new(k, d)
            returning graflow_ckpt.durable()""",
    )
    for count in range(1, 7)
]
_ONE = Prepared("one", "select data, tag, at from graflow_ckpt.things where key = %s")


class PostgresDriver:
    """One database. `link`: that has been checked."""

    atomic = True
    inline = 0
    chunk = 1 << 20

    def __init__(self, link: Callable[[], Link]) -> None:
        self._open = link

    def now(self) -> float:
        return float(self._rows("select graflow_ckpt.now()", [])[0][0])

    def get(self, *keys: str) -> Sequence[Stored | None]:
        if len(keys) == 1:
            row = self._open().sure(lambda connection: _ONE.row(connection, keys))
            return [None if row is None else _found(*row)]
        found = {
            key: Stored(bytes(data), tag.hex(), at) for key, data, tag, at in self._rows(_GET, [list(keys)])
        }
        return [found.get(key) for key in keys]

    def read(self, key: str, start: int, length: int) -> Buffer | None:
        rows = self._rows(_READ, [start + 1, length, key])
        return rows[0][0] if rows and len(rows[0][0]) == length else None

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        needs: Sequence[str] = (),
        soft: bool = False,
    ) -> BatchDone | None:
        if guards and not needs and 2 <= len(puts) <= 1 + len(_COMMITS) and puts[0].key in guards:
            ((key, known), *others) = guards.items()
            if known is not None and not others and all(put.fresh for put in puts[1:]):
                return self._commit(puts, drops, key, known)
        bare = not (guards or needs or drops) and all(put.fresh and put.row is None for put in puts)
        if bare and 0 < len(puts) <= len(_AHEAD):
            return self._ahead(puts)
        tag, asked = (
            os.urandom(12),
            {key: wanted for key, wanted in (guards or {}).items() if wanted is not None},
        )
        absent = (guards or {}).keys() - asked.keys()
        fresh = [put for put in puts if put.fresh or put.key in absent]
        over = [put for put in puts if not put.fresh and put.key not in absent]
        rows = [_NO_ROW if put.row is None else put.row for put in fresh]
        values = [
            tag,
            list(asked),
            [bytes.fromhex(wanted) for wanted in asked.values()],
            [put.key for put in fresh],
            [put.data for put in fresh],
            [None if put.row is None else put.shown for put in fresh],
            *([row[at] for row in rows] for at in range(3)),
            [put.key for put in over],
            [put.data for put in over],
            list(drops),
            list(dict.fromkeys(needs)),
        ]
        try:
            ((synced,),) = self._open().run(lambda connection: _asked(connection, _BATCH, values))
        except ServerError as error:
            if error.ids.get("code") != _NOT_FRESH:
                raise
            return None
        return None if synced is None else BatchDone(tag.hex(), synced)

    def _commit(self, puts: Sequence[Put], drops: Sequence[str], key: str, known: Tag) -> BatchDone | None:
        """Commit the batch of most saves: a head, and a few fresh keys. It costs half of the function."""
        tag, (head, *fresh) = os.urandom(12), puts
        values: list[Value] = [tag, head.data, key, bytes.fromhex(known), tag]
        for put in fresh:
            facts = _NO_ROW if put.row is None else put.row
            values += [put.key, put.data, None if put.row is None else put.shown, *facts]
        values.append(f"{{{','.join(drops)}}}")  # of names that need no quotes
        row = self._row(_COMMITS[len(fresh) - 1], values)
        return BatchDone(tag.hex(), row[0] == TRUE) if row else None

    def _ahead(self, puts: Sequence[Put]) -> BatchDone | None:
        """Put the chunks of a large save, without the copies that arrays of them would be."""
        tag = os.urandom(12)
        values = [tag, *(value for put in puts for value in (put.key, put.data))]
        row = self._row(_AHEAD[len(puts) - 1], values)
        return BatchDone(tag.hex(), row[0] == TRUE) if row else None

    def _row(self, statement: Prepared, values: Sequence[Value]) -> Sequence[bytes | None] | None:
        """Return the first row; None if there is none, or if a key that is to be fresh is not."""
        try:
            return self._open().run(lambda connection: statement.row(connection, values))
        except ServerError as error:
            if error.ids.get("code") != _NOT_FRESH:
                raise
            return None

    def keys(self, prefix: str) -> Iterator[Entry]:
        last = prefix
        while True:
            rows = self._rows(_LIST, [last, f"{prefix}\x7f", _PAGE])
            yield from (Entry(*row) for row in rows)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        rows = self._rows(_FIND, [*wanted, 1 << 62 if below is None else below, limit])
        return [Hit(number, key, bytes(data)) for number, key, data in rows]

    # Any: columns are as the statements make them.
    def _rows(self, statement: str, values: Sequence[object]) -> Sequence[tuple[Any, ...]]:
        """Read; again, if the server is lost meanwhile."""
        return self._open().sure(lambda connection: _asked(connection, statement, values))


# Any: likewise.
def _asked(connection: Connection, statement: str, values: Sequence[object]) -> Sequence[tuple[Any, ...]]:
    return connection.execute(statement.encode(), values, binary=True).fetchall()


def _found(data: bytes | None, tag: bytes | None, at: bytes | None) -> Stored:
    """Return the `Stored` of columns as the server sends them; none of them is null."""
    when: float = struct.unpack("!d", at or bytes(8))[0]
    return Stored(data or b"", (tag or b"").hex(), when)
