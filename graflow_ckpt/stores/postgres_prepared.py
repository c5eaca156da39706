"""Statements of the hot path, sent to the server without a cursor.

A cursor is made, its query read, and each value adapted anew for every execution; beside a save of some
kilobytes that is a quarter of the time. Here a statement is prepared once per connection, and its values are
texts, bytes, whole numbers or None.

Promise: waiting for the server can be interrupted, and errors are psycopg's, as with a cursor. A connection
that does not know the statement any more (DISCARD, a pooler) says so, which passes: it is prepared anew.

What a meta says of a checkpoint that rows in Postgres are listed by.
Promise: it can stand in a column, whatever the meta holds. Nobody believes it: what counts is sealed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import count
from weakref import WeakSet

from psycopg import generators
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from graflow_ckpt.stores.postgres_link import Connection
from graflow_ckpt.stores.postgres_names import session_of

TRUE = b"\x01"
_FORGOTTEN = "26000"
Value = str | bytes | bytearray | int | None


class Prepared:
    """`text`: with %s or %b for each value, as elsewhere. Gives at most one row."""

    def __init__(self, name: str, text: str) -> None:
        numbers = count(1)
        numbered = re.sub("%[sb]", lambda _: f"${next(numbers)}", text)
        self._name, self._text = f"graflow_ckpt_{name}".encode(), numbered.encode()
        self._binary = [found == "%b" for found in re.findall("%[sb]", text)]
        self._known: WeakSet[Connection] = WeakSet()

    def row(self, connection: Connection, values: Sequence[Value]) -> list[bytes | None] | None:
        """The columns of the row as the server sends them in its binary form."""
        sent = [
            one.encode() if isinstance(one, str) else b"%d" % one if isinstance(one, int) else one
            for one in values
        ]
        if connection not in self._known:
            connection.pgconn.send_prepare(self._name, self._text)
            self._finished(connection)
            self._known.add(connection)
        connection.pgconn.send_query_prepared(self._name, sent, self._binary, 1)
        found = self._finished(connection)
        return [found.get_value(0, at) for at in range(found.nfields)] if found.ntuples else None

    def _finished(self, connection: Connection) -> PGresult:
        found: PGresult
        (found,) = connection.wait(generators.execute(connection.pgconn))
        if found.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return found
        error = error_from_result(found, connection.info.encoding)
        if error.sqlstate == _FORGOTTEN:
            self._known.discard(connection)
        raise error


_FIELD = 200  # characters of a field that is listed by


def field_in(raw: bytes, name: str) -> object:
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return meta.get(name) if isinstance(meta, dict) else None


def listed_by(value: object) -> str | None:
    """A field as it stands in its column; None if it can stand in none."""
    if not isinstance(value, str) or "\0" in value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value[:_FIELD]


def fields_of(base: str, raw: bytes) -> list[str | None]:
    """Session, workflow and status; a session's own path is its own whatever the meta says."""
    try:
        meta = json.loads(raw.decode())  # of bytes it would guess the encoding
    except (ValueError, RecursionError):
        meta = {}
    if not isinstance(meta, dict):
        meta = {}
    session = session_of(base) or listed_by(meta.get("session_id"))
    return [session, listed_by(meta.get("workflow")), listed_by(meta.get("status"))]
