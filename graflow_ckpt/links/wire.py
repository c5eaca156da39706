"""One bare connection for a hot loop: a script call is packed, sent and read, and nothing else.

No pool and no retry. After a `ServerGone` the last call may or may not have been carried out, and
the wire stays closed until `reconnect`; a caller must be able to send the same call again.
`send` and `receive` are the halves of `call`, for a caller that has something to do in between.
A `BareLine` is the socket and hiredis alone, at two system calls for a round trip where redis-py needs four
and as much Python again. Where it cannot be had (TLS, sentinels, no hiredis) a `SlowLine` asks redis-py. A
wire belongs to one thread, and to the process that opened it: a forked child has to reconnect.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, NoReturn

from graflow_ckpt.core.errors import ServerGone, ServerReadOnly
from graflow_ckpt.links.complaints import (
    Key,
    code_of,
    hiredis,
    in_our_words,
    redis,
    taken,
    theirs,
    translated,
)

Argument = bytes | str | int | float | bytearray | memoryview
Step = tuple["Script | None", Sequence[Key], Sequence[Argument]]  # a call; without a script, plain words


class Script:
    """A Lua script that a server runs: sent by its digest, loaded where it is not known.

    Call it with keys and arguments. A call is sent once; it is sent again only where the server has certainly
    not run it (it did not know the script). `together` is for what may be run twice.

    `types`: what each key holds (`hash`, `zset` …), so that one that something else uses can be named.
    """

    __slots__ = ("_address", "_client", "sha", "source", "types")

    def __init__(self, client: redis.Redis, address: str, source: str, types: Sequence[str] = ()) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self.types = tuple(types)
        self._client = client
        self._address = address

    def __call__(self, keys: Sequence[Key], args: Sequence[Argument] = ()) -> Any:
        try:
            return self._run(keys, args)
        except redis.RedisError as error:
            raise _said(error, (self, keys, args), self._address, self._client) from error

    def words(self, keys: Sequence[Key], args: Sequence[Argument], *, whole: bool) -> list[Argument]:
        """Return the call as a command; `whole`: with the text of the script."""
        head: list[Argument] = ["EVAL", self.source] if whole else ["EVALSHA", self.sha]
        return [*head, len(keys), *keys, *args]

    def _run(self, keys: Sequence[Key], args: Sequence[Argument]) -> Any:
        try:
            return self._client.execute_command(*self.words(keys, args, whole=False))
        except theirs.NoScriptError:
            # not SCRIPT LOAD and then the call: between the two it could be forgotten again
            return self._client.execute_command(*self.words(keys, args, whole=True))

    def __repr__(self) -> str:
        return f"Script({self.sha[:8]})"


def together(client: redis.Redis, address: str, steps: Sequence[Step]) -> list[Any]:
    """Return the results of the steps, in one round trip.

    All of them are sent again if the server does not know a script, so each has to be one that may be run
    twice. An error of one step is in its place, in our words; the others are run.
    """
    for whole in (False, True):
        line = client.pipeline(transaction=False)
        for script, keys, args in steps:
            line.execute_command(*(args if script is None else script.words(keys, args, whole=whole)))
        try:
            replies: list[Any] = line.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise in_our_words(error, address) from error
        if not any(isinstance(reply, theirs.NoScriptError) for reply in replies):
            break
    return [
        _said(reply, step, address, client) if isinstance(reply, redis.RedisError) else reply
        for reply, step in zip(replies, steps, strict=True)
    ]


def _said(error: redis.RedisError, step: Step, address: str, client: redis.Redis) -> Exception:
    said = _complaint(error, step, address, client.type)
    leave_former(said, client)
    return said


def leave_former(error: Exception, client: redis.Redis) -> None:
    """Open connections again if that server is a replica: a failover leads the address to another one, and
    those that are open to the former master."""
    if isinstance(error, ServerReadOnly):
        client.connection_pool.disconnect(False)


def _complaint(error: redis.RedisError, step: Step, address: str, type_of: Any) -> Exception:
    script, keys, _ = step
    if script is not None and code_of(error) == "WRONGTYPE":
        return taken(address, dict(zip_longest(keys, script.types[: len(keys)], fillvalue="")), type_of)
    return in_our_words(error, address, keys)


# --- lines -----------------------------------------------------------------------------

_NOT_YET = object()
_CHUNK = 1 << 16


def line_of(connection: Any) -> BareLine | SlowLine:
    """Return the quickest way to speak over a connection of redis-py that is open."""
    sock = getattr(connection, "_sock", None)
    as_usual = (
        type(connection).read_response is redis.Connection.read_response
    )  # a sentinel's looks at replies
    if hiredis is not None and as_usual and type(sock) is socket.socket:
        return BareLine(sock, connection.socket_timeout)
    return SlowLine(connection)


class BareLine:
    """A plain socket. The function that connected it closes it."""

    def __init__(self, sock: socket.socket, timeout: float | None) -> None:
        if timeout and sys.platform == "linux":
            # the kernel keeps the time: Python asks with a system call of its own before each read and write
            limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            sock.settimeout(None)
        reader = hiredis.Reader(
            protocolError=redis.InvalidResponse, replyError=_Complaint, notEnoughData=_NOT_YET
        )
        self._write, self._recv, self._feed, self._gets = sock.sendall, sock.recv, reader.feed, reader.gets

    def send(self, words: Sequence[Argument]) -> None:
        packed = _packed(tuple(words))
        try:
            self._write(packed)
        except OSError as error:
            raise _lost(error, "writing to") from error

    def read(self) -> Any:
        reply = self._gets()
        while reply is _NOT_YET:
            try:
                data = self._recv(_CHUNK)
            except OSError as error:
                raise _lost(error, "reading from") from error
            if not data:
                raise redis.ConnectionError("Connection closed by server.")
            self._feed(data)
            reply = self._gets()
        if type(reply) is _Complaint:
            text = str(reply)
            raise theirs.NoScriptError(text) if text.startswith("NOSCRIPT") else redis.ResponseError(text)
        return reply


class SlowLine:
    """By way of redis-py."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, words: Sequence[Argument]) -> None:
        if hiredis is not None:
            packed = [_packed(tuple(words))]
        else:
            try:
                packed = self._connection.pack_command(*map(_plain, words))
            except UnicodeEncodeError as error:
                raise redis.DataError(str(error)) from error
        self._connection.send_packed_command(packed, check_health=False)

    def read(self) -> Any:
        return self._connection.read_response(disable_decoding=True)


class _Complaint(Exception):
    """An error that the server answers with: hiredis returns it, and does not raise it."""


def _packed(words: tuple[Argument, ...]) -> bytes:
    try:
        packed: bytes = hiredis.pack_command(words)
    except TypeError:
        try:
            packed = hiredis.pack_command(tuple(map(_plain, words)))
        except TypeError as error:
            raise redis.DataError(str(error)) from error
    except UnicodeEncodeError as error:
        raise redis.DataError(str(error)) from error
    return packed


def _plain(word: Argument) -> Argument:
    return bytes(word) if isinstance(word, bytearray | memoryview) else word  # hiredis packs no others


def _lost(error: OSError, doing: str) -> redis.RedisError:
    if isinstance(error, BlockingIOError | TimeoutError):
        return redis.TimeoutError(f"Timeout {doing} socket")
    return redis.ConnectionError(f"Error {error.errno} while {doing} socket. {error.strerror or error}.")


_Call = tuple[Script, Sequence[Key], Sequence[Argument]]
_WORDS: Any = object()  # what waits is no call but plain words; Any: it takes the place of a call


class Wire:
    """An open connection."""

    __slots__ = ("__weakref__", "_client", "_connection", "_guard", "_line", "_pid", "_waiting", "address")

    def __init__(self, client: redis.Redis, address: str) -> None:
        self.address = address
        self._client = client
        self._connection: Any = None  # redis.connection.AbstractConnection
        self._line: BareLine | SlowLine
        self._guard: weakref.finalize[[], Wire]
        self._waiting: _Call | None = None
        self._pid = 0
        self.reconnect()

    def call(self, script: Script, keys: Sequence[Key], args: Sequence[Argument] = ()) -> Any:
        """Return what the script returns."""
        self.send(script, keys, args)
        return self.receive()

    def send(self, script: Script, keys: Sequence[Key], args: Sequence[Argument] = ()) -> None:
        if self._connection is None or self._waiting is not None or self._pid != os.getpid():
            self._out_of_step()
        self._waiting = (script, keys, args)
        self._send((b"EVALSHA", script.sha, len(keys), *keys, *args))

    def receive(self) -> Any:
        """Return the reply to what was sent. A script that the server does not know is sent with its call."""
        if self._waiting is None or self._pid != os.getpid():
            self._out_of_step()
        try:
            reply = self._line.read()
        except theirs.NoScriptError:
            return self._call_with_source(self._waiting)
        except redis.RedisError as error:
            self._failed(error, self._waiting)
        self._waiting = None
        return reply

    def ask(self, *words: Argument) -> Any:
        """Return the reply to one plain command that is about this connection (WAITAOF, CLIENT)."""
        if not self.rests:
            self._out_of_step()
        self._waiting = _WORDS  # an interrupt leaves a reply behind here, too
        self._send(words)
        return self._reply(None)

    def reconnect(self) -> None:
        """Open it again: at the master that there is now."""
        self.close()
        with translated(self.address):
            pool = self._client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)
            connection.connect()
        self._guard = weakref.finalize(self, connection.disconnect)  # of a wire that was not closed
        self._guard.atexit = False
        self._connection, self._line, self._pid = connection, line_of(connection), os.getpid()

    @property
    def rests(self) -> bool:
        """True if it is open, and nothing is under way on it."""
        return self._connection is not None and self._waiting is None and self._pid == os.getpid()

    def is_fresh(self) -> bool:
        """Return True if it rests, and the server has not closed it meanwhile."""
        try:
            return self.rests and not self._connection.can_read(0)
        except redis.RedisError:
            return False

    def close(self) -> None:
        connection, self._connection, self._waiting = self._connection, None, None
        if connection is not None:
            self._guard.detach()
            connection.disconnect()  # in a forked child it closes the child's copy only

    def __repr__(self) -> str:
        return f"Wire({self.address}, {'open' if self._connection is not None else 'closed'})"

    # --- within ------------------------------------------------------------------------

    def _send(self, words: Sequence[Argument]) -> None:
        try:
            self._line.send(words)
        except redis.DataError:
            self._waiting = None  # nothing has left
            raise
        except redis.RedisError as error:
            self._failed(error, None)

    def _call_with_source(self, waiting: _Call) -> Any:
        script, keys, args = waiting
        self._send((b"EVAL", script.source, len(keys), *keys, *args))
        return self._reply(waiting)

    def _reply(self, call: _Call | None) -> Any:
        try:
            reply = self._line.read()
        except redis.RedisError as error:
            self._failed(error, call)
        self._waiting = None
        return reply

    def _failed(self, error: redis.RedisError, call: _Call | None) -> NoReturn:
        self._waiting = None
        said = _complaint(error, call or (None, (), ()), self.address, lambda key: self.ask(b"TYPE", key))
        if isinstance(said, ServerGone) or not isinstance(error, redis.ResponseError):
            self.close()
        raise said from error

    def _out_of_step(self) -> NoReturn:
        """Raise why the wire is refused: a reply that was not read would answer the next call."""
        if self._pid != os.getpid():
            why = "was opened by another process than this one, its parent"
        elif self._connection is None:
            why = "is closed"
        elif self._waiting is None:
            why = "waits for no reply"
        else:
            why = "was interrupted while it waited for a reply"
        with suppress(redis.RedisError):
            self.close()
        raise ServerGone(
            f"The connection to {self.address} {why}.",
            hint="Reconnect; what was asked last may have been done.",
            address=self.address,
        )
