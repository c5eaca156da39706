"""What a wire speaks through once redis-py has connected and greeted: words out, a reply in.

A `BareLine` is the socket and hiredis alone, at two system calls for a round trip where redis-py needs four
and as much Python again. Where it cannot be had (TLS, sentinels, no hiredis) a `SlowLine` asks redis-py.
Errors are those of redis-py, with the server's words. Not here: who connects, and what an error means.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from graflow_ckpt.links.library import Connection, hiredis, redis, theirs
from graflow_ckpt.links.scripts import Argument

_NOT_YET = object()
_CHUNK = 1 << 16


def line_of(connection: Any) -> BareLine | SlowLine:
    """The quickest way to speak over a connection of redis-py that is open."""
    sock = getattr(connection, "_sock", None)
    as_usual = type(connection).read_response is Connection.read_response  # a sentinel's looks at replies
    if hiredis is not None and as_usual and type(sock) is socket.socket:
        return BareLine(sock, connection.socket_timeout)
    return SlowLine(connection)


class BareLine:
    """A plain socket. Whoever connected it closes it."""

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
    """An error that the server answers with: hiredis returns it, nobody raises it."""


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
