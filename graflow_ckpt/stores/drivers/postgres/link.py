"""The link to a Postgres server: the one door to psycopg, a pool of connections, its errors in our words.

Promise: what may pass (not reachable, lost, starting, too many clients) is a `ServerGone`, and nothing
else is; no message holds a password. `run` asks once. `sure` asks again for some seconds when the server
was lost, so it is for what may be carried out twice. Each process has a pool of its own: what a fork
has copied is never used.

The pool waits longer and longer between attempts to connect, and says only that it has waited. So the
first connection, and those after a loss, are made here: they come at once, and say what is wrong.

Statements of the hot path (`Prepared`) are sent without a cursor, which is made, its query read, and each
value adapted again for every execution; beside a save of some kilobytes that is a quarter of the time. A
statement is prepared once per connection, and its values are texts, bytes, whole numbers or None. Waiting
for the server can be interrupted, and errors are psycopg's, as with a cursor. A connection that does not
know the statement any more (DISCARD, a pooler) says so, which passes: it is prepared again.
Not here: statements.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import select
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
    import psycopg_pool
    from psycopg import generators, waiting
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus
    from psycopg.pq.abc import PGresult
except ImportError as missing:  # also psycopg without libpq
    raise not_installed(missing, "Checkpoints cannot be kept in Postgres", "postgres") from missing

Rollback = psycopg.Rollback

T = TypeVar("T")

# What the pool warns of is raised here: it is needed a second time only in logs that were asked for.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())

_CONNECTIONS = 8
_WAIT = 2.0  # seconds for a connection of the pool, before one is made beside it
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

    A plan is kept: one that was made while a table was small would read all of it when it is large.
    """

    @classmethod
    def connect(cls, *args: Any, **more: Any) -> Connection:
        made = super().connect(*args, **more)
        try:
            made.execute("set enable_seqscan = off")  # not among the options: poolers refuse those
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
        self._mutex = threading.Lock()
        self._pool: psycopg_pool.ConnectionPool[Connection] | None = None
        self._leave: weakref.finalize[[_Place], Link] | None = None
        self._place: _Place = (0, ())
        self._process = 0
        _links.add(self)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Ask once. Without context managers of ours: they would be the most of what it costs here."""
        try:
            pool = self._own_pool()
            try:
                connection = pool.getconn(timeout=_WAIT)
            except psycopg_pool.PoolTimeout:
                with self._beside() as other:
                    return work(other)
            try:
                return work(connection)
            finally:
                pool.putconn(connection)
        except psycopg.Error as error:
            raise in_our_words(error, self.address) from error

    def sure(self, work: Callable[[Connection], T]) -> T:
        """Ask again while the server cannot be reached, for some seconds."""
        patience, ask = ServerWait(), self.run
        while True:
            try:
                return ask(work)
            except ServerGone:
                if patience.over():
                    raise
            ask = self._anew

    def close(self) -> None:
        """Leave the pool. Its connections stay while another link of this process goes to the same place."""
        with self._mutex:
            if self._leave is not None and self._leave.detach() and self._process == os.getpid():
                _left(self._place)
            self._pool = self._leave = None

    # --- within ------------------------------------------------------------------------

    def _anew(self, work: Callable[[Connection], T]) -> T:
        """Ask over a connection that is made now: those from before the server came back are of no use."""
        with translated(self.address), self._beside() as connection:
            done = work(connection)
        pool = self._pool
        if pool is not None and self._process == os.getpid():
            with suppress(psycopg.Error):
                pool.check()
        return done

    @contextmanager
    def _beside(self) -> Iterator[Connection]:
        """Make a connection now, for one use."""
        connection = self._connect()
        try:
            yield connection
        finally:
            connection.close()

    def _connect(self) -> Connection:
        return Connection.connect(**self._arguments())

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments as psycopg takes them."""
        own = {"connect_timeout": str(_CONNECT), "application_name": "graflow-ckpt", "keepalives_idle": "30"}
        given = self._address.with_credentials().arguments()
        return {**own, **given, "autocommit": True}

    def _own_pool(self) -> psycopg_pool.ConnectionPool[Connection]:
        with self._mutex:
            if self._pool is None or self._process != os.getpid():
                if self._leave is not None:
                    self._leave.detach()  # of a parent: to close its pool would hang up on it
                self._place = _place_of(self._arguments())
                if self._place not in _pools:
                    self._connect().close()  # says at once what is wrong
                self._address.remember()
                self._pool = _joined(self._place)
                self._process = os.getpid()
                self._leave = weakref.finalize(self, _forgotten.append, self._place)
                self._leave.atexit = False
            return self._pool


# --- pools -----------------------------------------------------------------------------

_Place = tuple[int, tuple[tuple[str, Any], ...]]  # a process, and what it connects with


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_pools: dict[_Place, psycopg_pool.ConnectionPool[Connection]] = {}
"""A server has so and so many connections for all: a thousand stores of one place share a few."""

_users: Counter[_Place] = Counter()  # links that have the pool
_forgotten: deque[_Place] = deque()
"""By links that were not closed. Garbage is collected at any moment, also within these functions: it only
leaves a note, which is read by the next link that comes."""

_sharing = threading.Lock()


def _place_of(arguments: dict[str, Any]) -> _Place:
    return os.getpid(), tuple(sorted(arguments.items()))


def _joined(place: _Place) -> psycopg_pool.ConnectionPool[Connection]:
    with _sharing:
        if place not in _pools:
            _pools[place] = psycopg_pool.ConnectionPool(
                connection_class=Connection,
                kwargs=dict(place[1]),
                min_size=0,
                max_size=_CONNECTIONS,
                num_workers=1,
                open=True,
                name="graflow-ckpt",
                check=_check,
            )
        _users[place] += 1
        joined = _pools[place]
    while _forgotten:
        with suppress(IndexError):  # another thread was faster
            _left(_forgotten.popleft())
    return joined


def _check(connection: Connection) -> None:
    """Raise if the server has hung up since, without asking it: that can be read by now."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    while poll.poll(0):  # before it hangs up it may say why
        connection.pgconn.consume_input()  # raises if it has


def _left(place: _Place) -> None:
    """Leave a pool; the last link closes it."""
    if place[0] != os.getpid():
        return
    with _sharing:
        _users[place] -= 1
        if _users[place]:
            return
        pool = _pools.pop(place)
    pool.close()


@atexit.register
def _close() -> None:
    """Close the pools while their threads can still be ended."""
    for place, pool in list(_pools.items()):
        if place[0] == os.getpid():
            pool.close()


def _unlocked() -> None:
    """Replace the locks in a forked child, whose parent may have held them; the parent's pools stay."""
    global _sharing
    _sharing = threading.Lock()
    for link in list(_links):
        link._mutex = threading.Lock()  # it is held while a server is waited for


os.register_at_fork(after_in_child=_unlocked)


def upgrade_hint(address: str) -> str:
    return f"Make it fit with: graflow-ckpt db upgrade --store {address}"


# --- errors ----------------------------------------------------------------------------


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Translate the errors of psycopg calls."""
    try:
        yield
    except psycopg.Error as error:
        raise in_our_words(error, address) from error


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
        self._known: WeakSet[Connection] = WeakSet()

    def row(self, connection: Connection, values: Sequence[Value]) -> list[bytes | None] | None:
        """Return the columns of the row as the server sends them in its binary form."""
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
