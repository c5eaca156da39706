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
import select
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

from graflow_ckpt.core.errors import ServerGone, ServerReadOnly
from graflow_ckpt.core.protocols import Buffer
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

T = TypeVar("T")

Plain = bytes | str | int | float | bytearray | memoryview
Argument = Plain | tuple[Buffer, ...]  # pieces of one word, which are sent without a copy
Step = tuple["Script | None", Sequence[Key], Sequence[Argument]]  # a call; without a script, plain words


class Script:
    """A Lua script that a server runs: sent by its digest, loaded where it is not known.

    Call it with keys and arguments. A call is sent once; it is sent again only where the server has certainly
    not run it (it did not know the script).

    `types`: what each key holds (`hash`, `zset` …), so that one that something else uses can be named.
    """

    __slots__ = ("_wires", "sha", "source", "types")

    def __init__(self, wires: Wires, source: str, types: Sequence[str] = ()) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self.types = tuple(types)
        self._wires = wires

    def __call__(self, keys: Sequence[Key], args: Sequence[Argument] = ()) -> Any:
        (found,) = self._wires.together([(self, keys, args)])
        if isinstance(found, Exception):
            raise found
        return found

    def words(self, keys: Sequence[Key], args: Sequence[Argument], *, whole: bool) -> list[Argument]:
        """Return the call as a command; `whole`: with the text of the script."""
        # not SCRIPT LOAD and then the call: between the two it could be forgotten again
        head: list[Argument] = ["EVAL", self.source] if whole else ["EVALSHA", self.sha]
        return [*head, len(keys), *keys, *args]

    def __repr__(self) -> str:
        return f"Script({self.sha[:8]})"


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
    if hiredis is not None and as_usual and type(sock) is socket.socket and "poll" in vars(select):
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
        self._recv_into, poll = sock.recv_into, select.poll()
        poll.register(sock, select.POLLIN)
        self._poll = poll.poll

    def is_quiet(self) -> bool:
        """Return whether nothing can be read: no reply, and no end."""
        return not self._poll(0)

    def send(self, words: Sequence[Argument]) -> None:
        self._send(_packed(tuple(words)))

    def send_all(self, commands: Sequence[Sequence[Argument]]) -> None:
        self._send(*_pieces(commands))

    def read(self) -> Any:
        reply = self._gets()
        while reply is _NOT_YET:
            self._feed(self._received())
            reply = self._gets()
        if type(reply) is _Complaint:
            text = str(reply)
            raise theirs.NoScriptError(text) if text.startswith("NOSCRIPT") else redis.ResponseError(text)
        return reply

    def read_text(self, most: int) -> Any:
        """Read the reply to one command. A large text is read into the place where it stays."""
        data = self._received()
        header, _, rest = data.partition(b"\r\n")
        size = int(header[1:]) if header[:1] == b"$" and header[1:].isdigit() else 0
        if not _CHUNK < size <= most:
            self._feed(data)
            return self.read()
        text, at = memoryview(bytearray(size + 2)), len(rest)
        text[:at] = rest
        while at < len(text):
            at += self._received(text[at:])
        return text[:size]

    def _send(self, *pieces: Buffer) -> None:
        try:
            for piece in pieces:
                self._write(piece)
        except OSError as error:
            raise _lost(error, "writing to") from error

    def _received(self, place: memoryview | None = None) -> Any:
        """Return bytes that have come; or how many, if they are put into a place."""
        try:
            found = self._recv(_CHUNK) if place is None else self._recv_into(place)
        except OSError as error:
            raise _lost(error, "reading from") from error
        if not found:
            raise redis.ConnectionError("Connection closed by server.")
        return found


class SlowLine:
    """By way of redis-py."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def is_quiet(self) -> bool:
        return not self._connection.can_read(0)

    def send(self, words: Sequence[Argument]) -> None:
        self.send_all((words,))

    def send_all(self, commands: Sequence[Sequence[Argument]]) -> None:
        if hiredis is not None:
            packed = [_packed(tuple(words)) for words in commands]
        else:
            try:
                packed = self._connection.pack_commands([map(_plain, words) for words in commands])
            except UnicodeEncodeError as error:
                raise redis.DataError(str(error)) from error
        self._connection.send_packed_command(packed, check_health=False)

    def read(self) -> Any:
        return self._connection.read_response(disable_decoding=True)

    def read_text(self, most: int) -> Any:
        return self.read()


def _answers(read: Callable[[], Any], count: int) -> list[Any]:
    """Return so many replies; of a command that has failed it is the error."""
    found: list[Any] = []
    for _ in range(count):
        try:
            found.append(read())
        except redis.ResponseError as error:
            found.append(error)
    return found


class _Complaint(Exception):
    """An error that the server answers with: hiredis returns it, and does not raise it."""


def _pieces(commands: Sequence[Sequence[Argument]]) -> list[Buffer]:
    """Return commands as they are sent: nothing large is copied, and what is small goes together."""
    found: list[Buffer] = []
    small: list[Buffer] = []
    for words in commands:
        if tuple not in map(type, words):
            small.append(_packed(tuple(words)))
            continue
        small.append(b"*%d\r\n" % len(words))
        for word in words:
            if not isinstance(word, tuple):
                small.append(_packed((word,))[4:])  # without its own *1
                continue
            small.append(b"$%d\r\n" % sum(map(len, word)))
            for part in word:
                if len(part) > _CHUNK:
                    found += (b"".join(small), part)
                    small = []
                else:
                    small.append(part)
            small.append(b"\r\n")
    return [*found, b"".join(small)]


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


def _plain(word: Argument) -> Plain:
    if isinstance(word, tuple):
        return b"".join(word)
    return bytes(word) if isinstance(word, bytearray | memoryview) else word  # hiredis packs no others


def _lost(error: OSError, doing: str) -> redis.RedisError:
    if isinstance(error, BlockingIOError | TimeoutError):
        return redis.TimeoutError(f"Timeout {doing} socket")
    return redis.ConnectionError(f"Error {error.errno} while {doing} socket. {error.strerror or error}.")


_Call = tuple[Script, Sequence[Key], Sequence[Argument]]
_WORDS: Any = object()  # what waits is no call but plain words; Any: it takes the place of a call


_process = os.getpid()  # asked once: each time is a system call


def _forked() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_forked)


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
        if self._connection is None or self._waiting is not None or self._pid != _process:
            self._out_of_step()
        self._waiting = (script, keys, args)
        self._send((b"EVALSHA", script.sha, len(keys), *keys, *args))

    def receive(self) -> Any:
        """Return the reply to what was sent. A script that the server does not know is sent with its call."""
        if self._waiting is None or self._pid != _process:
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
        """Return the reply to one plain command."""
        self._begin()
        self._send(words)
        return self._reply(None)

    def ask_text(self, most: int, *words: Argument) -> Any:
        """Do the same where a text of up to so many bytes comes, of which no copy is to be made."""
        self._begin()
        self._send(words)
        return self._reply(None, partial(self._line.read_text, most))

    def ask_all(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Return the replies to commands that go together; of one that has failed it is the error."""
        self._begin()
        self._send(commands, self._line.send_all)
        found: list[Any] = self._reply(None, partial(_answers, self._line.read, len(commands)))
        return found

    def reconnect(self) -> None:
        """Open it again: at the master that there is now."""
        self.close()
        with translated(self.address):
            pool = self._client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)
            connection.connect()
        self._guard = weakref.finalize(self, connection.disconnect)  # of a wire that was not closed
        self._guard.atexit = False
        self._connection, self._line, self._pid = connection, line_of(connection), _process

    @property
    def rests(self) -> bool:
        """True if it is open, and nothing is under way on it."""
        return self._connection is not None and self._waiting is None and self._pid == _process

    def is_fresh(self) -> bool:
        """Return True if it rests, and the server has not closed it meanwhile."""
        try:
            return self.rests and self._line.is_quiet()
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

    def _begin(self) -> None:
        if not self.rests:
            self._out_of_step()
        self._waiting = _WORDS  # an interrupt leaves a reply behind here, too

    def _send(self, words: Sequence[Any], send: Callable[[Sequence[Any]], None] | None = None) -> None:
        try:
            (send or self._line.send)(words)
        except redis.DataError:
            self._waiting = None  # nothing has left
            raise
        except redis.RedisError as error:
            self._failed(error, None)

    def _call_with_source(self, waiting: _Call) -> Any:
        script, keys, args = waiting
        self._send((b"EVAL", script.source, len(keys), *keys, *args))
        return self._reply(waiting)

    def _reply(self, call: _Call | None, read: Callable[[], Any] | None = None) -> Any:
        try:
            reply = (read or self._line.read)()
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
        if self._pid != _process:
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


_IDLE = 8  # connections that are kept for the next call


class Wires:
    """The connections of one link. Each is lent to one caller at a time; threads may ask at once."""

    def __init__(self, client: redis.Redis, address: str) -> None:
        self._client, self._address = client, address
        self._idle: list[Wire] = []

    def take(self) -> Wire:
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return Wire(self._client, self._address)
            if wire.is_fresh():
                return wire
            wire.close()

    def put_back(self, wire: Wire) -> None:
        """Keep it for the next caller: to open one costs as much as a hundred calls."""
        if wire.rests and len(self._idle) < _IDLE:
            self._idle.append(wire)
        else:
            wire.close()

    def lend(self, work: Callable[[Wire], T]) -> T:
        """Return what the work with a connection gives."""
        wire = self.take()
        try:
            return work(wire)
        finally:
            self.put_back(wire)

    def together(self, steps: Sequence[Step]) -> list[Any]:
        """Return the results of the steps; see RedisLink."""
        for whole in (False, True):
            commands = [s.words(keys, args, whole=whole) if s else args for s, keys, args in steps]
            replies = self.lend(partial(Wire.ask_all, commands=commands))
            if theirs.NoScriptError not in map(type, replies):
                break
        return [
            self._said(reply, step) if isinstance(reply, redis.RedisError) else reply
            for reply, step in zip(replies, steps, strict=True)
        ]

    def leave_former(self, error: Exception) -> None:
        """Open connections again if that server is a replica: a failover leads the address to another one,
        and those that are open to the former master."""
        if isinstance(error, ServerReadOnly):
            self._client.connection_pool.disconnect(False)
            self.close()

    def close(self) -> None:
        """Close those that are idle."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _said(self, error: redis.RedisError, step: Step) -> Exception:
        said = _complaint(error, step, self._address, self._client.type)
        said.__cause__ = error
        self.leave_former(said)
        return said
