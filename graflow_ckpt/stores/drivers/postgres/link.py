"""The link to a Postgres server: the one door to psycopg, its connections, its errors in our words.

Promise: what may pass (not reachable, lost, starting, too many clients) is a `ServerGone`, and nothing
else is; no message holds a password. `run` asks once. `sure` asks again for some seconds when the server
was lost, so it is for what may be carried out twice. Each process has connections of its own: what a
fork has copied is never used.

Statements of the hot path (`Prepared`) are sent without a cursor, which is made, its query read, and each
value adapted again for every execution; beside a save of some kilobytes that is a quarter of the time. A
statement is prepared once per connection, and its values are texts, bytes, whole numbers or None. Waiting
for the server can be interrupted, and errors are psycopg's, as with a cursor. A connection that does not
know the statement any more (DISCARD, a pooler) says so, which passes: it is prepared again.
Not here: statements.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar
from weakref import WeakSet

from graflow_ckpt.core.errors import (
    BadAddress,
    SchemaUnsupported,
    ServerError,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    ServerRefuses,
    not_installed,
)
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.drivers.postgres.names import PostgresAddress
from graflow_ckpt.stores.lease import ServerWait

try:
    import psycopg
    from psycopg import generators, waiting
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus, TransactionStatus
    from psycopg.pq.abc import PGresult
except ImportError as missing:  # also psycopg without libpq
    raise not_installed(missing, "Checkpoints cannot be kept in Postgres", "postgres") from missing

Rollback = psycopg.Rollback

T = TypeVar("T")

_CONNECTIONS = 8  # that are used at once, and kept for the next caller
_WAIT = 2.0  # seconds for one of those to be free, before another one is made
_IDLE = 600.0  # seconds after which an idle one is closed
_CONNECT = 5  # seconds for the server to answer
_PASSING = "It may pass: try again in a moment."
_REFUSED = (
    "Check user and password of the address, and what the server allows that user (GRANT, pg_hba.conf)."
)
# What a server says before it has sent a code, or rather what libpq keeps of it.
_REFUSALS = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|role \".*\" (?:does not exist|is not permitted)"
    r"|permission denied"
)
_NO_DATABASE = re.compile(r"database \"(.*)\" does not exist")
_GONE = ("08", "57P", "53300", "40001", "40P01", "55P03", "25P03", "26000")
_CHANGING = re.compile(r"cache lookup failed|could not open relation with OID|tuple concurrently")
_MISSING = ("42P01", "3F000", "42883", "42703")


class Connection(psycopg.Connection[tuple[Any, ...]]):  # Any: rows are as the statements make them
    """Hangs up where a wait is interrupted: to cancel, as psycopg does, may never end on a silent server.

    Plans are kept: one that was made while a table was small would read all of it when it is large, and to
    make one anew for each commit takes a tenth of it.
    """

    _pool = None  # psycopg warns of what is not closed and has no such name: a fork leaves copies behind

    prepared: set[bytes]  # statements that it knows
    ready: select.poll  # says that something can be read

    @classmethod
    def connect(cls, *args: Any, **more: Any) -> Connection:
        made = super().connect(*args, **more)
        made.prepared, made.ready = set(), select.poll()
        made.ready.register(made.pgconn.socket, select.POLLIN)
        try:
            # not among the options: poolers refuse those
            made.execute("set enable_seqscan = off; set plan_cache_mode = force_generic_plan")
        except BaseException:
            made.close()
            raise
        return made

    def wait(self, gen: Any, interval: float = 0.1, *args: Any, **more: Any) -> Any:
        """Run the steps of what was sent until its answer is there, and look for signals at each interval."""
        try:
            return waiting.wait(gen, self.pgconn.socket, interval, *args, **more)
        except (KeyboardInterrupt, SystemExit):
            self.pgconn.finish()
            raise


class Link:
    """Connects at the first use. `options`: more of libpq's."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = str(address)
        self._address = address
        self._connections: _Connections | None = None

    def run(self, work: Callable[[Connection], T]) -> T:
        """Ask once. Without context managers of ours: they would be the most of what it costs here."""
        try:
            return self._opened().run(work)
        except psycopg.Error as error:
            raise in_our_words(error, self.address) from error

    def sure(self, work: Callable[[Connection], T]) -> T:
        """Ask again while the server cannot be reached, for some seconds."""
        patience = ServerWait()
        while True:
            try:
                return self.run(work)
            except ServerGone:
                if patience.over():
                    raise
            if self._connections is not None:
                self._connections.close()  # those from before the server came back are of no use

    def close(self) -> None:
        """Leave the connections. They stay while another link of this process goes to the same place."""
        left, self._connections = self._connections, None
        if left is not None:
            left.links.discard(self)
            if not left.links:
                left.close()

    # --- within ------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments as psycopg takes them."""
        own = {"connect_timeout": str(_CONNECT), "application_name": "graflow-ckpt", "keepalives_idle": "30"}
        given = self._address.with_credentials().arguments()
        return {**own, **given, "autocommit": True}

    def _opened(self) -> _Connections:
        found = self._connections
        if found is None or found.process != os.getpid():
            found = _connections_to(self._arguments())
            found.run(lambda connection: None)  # says what is wrong
            self._address.remember()
            found.links.add(self)
            self._connections = found
        return found


# --- connections -----------------------------------------------------------------------


class _Connections:
    """The connections of this process to one place, for all links that go there. Threads may ask at once.

    A server has so and so many for all: a thousand stores of one place share a few. Those of links that were
    not closed are closed when garbage is collected, at whatever moment that is.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.process = os.getpid()
        self.links: WeakSet[Link] = WeakSet()
        self._arguments = arguments
        self._idle: list[tuple[Connection, float]] = []  # and since when; the last used at the end
        self._lent = 0
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        weakref.finalize(self, _hang_up, self._idle, self.process)

    def run(self, work: Callable[[Connection], T]) -> T:
        lent, connection = 0, None  # a Ctrl-C comes at any time
        try:
            with self._lock:
                if self._lent >= _CONNECTIONS:
                    self._turn.wait_for(lambda: self._lent < _CONNECTIONS, _WAIT)
                self._lent += 1
                lent = 1
            connection = self._fresh() or Connection.connect(**self._arguments)
            return work(connection)
        finally:
            with self._lock:
                self._lent -= lent
                self._turn.notify()
                kept = connection is None or self._keeps(connection)
            if not kept and connection is not None:
                connection.close()

    def close(self) -> None:
        """Close those that are idle."""
        _hang_up(self._idle, self.process)

    def _fresh(self) -> Connection | None:
        """Return one that the server has not hung up on."""
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                connection, _ = self._idle.pop()
                if not _is_closed(connection):
                    return connection
                connection.close()
        return None

    def _keeps(self, connection: Connection) -> bool:
        now = time.monotonic()
        while self._idle and self._idle[0][1] < now - _IDLE:
            self._idle.pop(0)[0].close()
        if connection.pgconn.transaction_status != TransactionStatus.IDLE or len(self._idle) >= _CONNECTIONS:
            return False
        self._idle.append((connection, now))
        return True


_known: weakref.WeakValueDictionary[tuple[int, tuple[tuple[str, Any], ...]], _Connections]
_known = weakref.WeakValueDictionary()
"""By process, and what they connect with."""


def _connections_to(arguments: dict[str, Any]) -> _Connections:
    place = os.getpid(), tuple(sorted(arguments.items()))
    return _known.setdefault(place, _known.get(place) or _Connections(arguments))


def _is_closed(connection: Connection) -> bool:
    """Return whether the server has hung up since, without asking it: that can be read by now."""
    with suppress(psycopg.Error):
        while connection.ready.poll(0):  # before it hangs up it may say why
            connection.pgconn.consume_input()  # raises if it has
        return False
    return True


def _hang_up(idle: list[tuple[Connection, float]], process: int) -> None:
    """Close them; not in a forked child, whose parent goes on with them."""
    while idle and process == os.getpid():
        with suppress(IndexError):
            idle.pop()[0].close()


def upgrade_hint(address: str) -> str:
    return f"Make it fit with: graflow-ckpt db upgrade --store {address}"


# --- errors ----------------------------------------------------------------------------


def in_our_words(error: psycopg.Error, address: str) -> ServerError | SchemaUnsupported:
    """Return the error to raise instead of one that psycopg has raised."""
    code = error.sqlstate or ""
    text = (error.diag.message_primary or str(error)).strip().replace("\n", " ").rstrip(".")
    if code.startswith("28") or code == "42501" or (not code and _REFUSALS.search(text)):
        return ServerRefuses(f"{address} refuses: {text}.", hint=_REFUSED, address=address)
    if code == "3D000" or (not code and _NO_DATABASE.search(text)):
        return ServerError(
            f"{address} has no such database.", hint="Make it first (CREATE DATABASE).", address=address
        )
    if code == "25006":
        return ServerReadOnly(
            f"{address} takes no writes: {text}.",
            hint="Name its primary, or all hosts and ?target_session_attrs=read-write.",
            address=address,
        )
    if code in ("53100", "53200", "58030", "54000"):
        return ServerFull(
            f"{address} has no room or cannot write: {text}.",
            hint="Look at its disk and its log; nothing was changed.",
            address=address,
        )
    if code in _MISSING:
        return SchemaUnsupported(
            f"{address} lacks what this version needs: {text}.", hint=upgrade_hint(address), store=address
        )
    if code == "XX000" and _CHANGING.search(text):  # an upgrade: what it was about to use is made again
        return ServerGone(f"{address} changes its tables just now: {text}.", hint=_PASSING, address=address)
    if code.startswith(_GONE):
        return ServerGone(f"{address} cannot do that now: {text}.", hint=_PASSING, address=address)
    if not code and isinstance(error, psycopg.OperationalError):
        return ServerGone(
            f"{address} cannot be reached, or was lost: {text}.", hint=_PASSING, address=address
        )
    if not code and isinstance(error, psycopg.ProgrammingError):
        return BadAddress(f"{address} cannot be used: {text}.", address=address)
    return ServerError(f"{address} answers with an error: {text}.", address=address, code=code, text=text)


# --- statements of the hot path ------------------------------------------------------------


TRUE = b"\x01"
_FORGOTTEN = "26000"
Value = str | Buffer | int | None


class Prepared:
    """`text`: with %s or %b for each value, as elsewhere. Gives at most one row."""

    def __init__(self, name: str, text: str) -> None:
        numbers = count(1)
        numbered = re.sub("%[sb]", lambda _: f"${next(numbers)}", text)
        self._name, self._text = f"graflow_ckpt_{name}".encode(), numbered.encode()
        self._binary = [found == "%b" for found in re.findall("%[sb]", text)]

    def row(self, connection: Connection, values: Sequence[Value]) -> list[bytes | None] | None:
        """Return the columns of the row as the server sends them in its binary form."""
        sent = [
            one.encode() if isinstance(one, str) else b"%d" % one if isinstance(one, int) else one
            for one in values
        ]
        if self._name not in connection.prepared:
            connection.pgconn.send_prepare(self._name, self._text)
            self._finished(connection)
            connection.prepared.add(self._name)
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
            connection.prepared.discard(self._name)
        raise error
