"""A TCP proxy in front of a server, for what networks do: cut, stall, lose one reply, vanish.

    with Proxy(server) as proxy:
        client = redis.Redis.from_url(proxy.url)
        proxy.hold_next_reply()         # the next request is carried out, its caller waits until `resume`
        proxy.drop_next_reply()         # the next request is carried out, its caller sees a broken connection
        proxy.stall()                   # the machine is gone: connections are accepted, nothing comes back
        proxy.cut()                     # every connection is reset; new ones are passed on
        proxy.refuse()                  # and new ones are refused
        proxy.at_message(7, server.kill)    # what comes as the seventh, whichever way, is not passed on
        proxy.resume()                  # all is well again; what was stalled arrives now

One thread moves all bytes. Each call returns when it is in force.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

from tests.servers import Server

_CHUNK = 1 << 18
_PATIENCE = 20.0


@dataclass(eq=False)
class _Pipe:
    source: socket.socket
    sink: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    ended: bool = False


@dataclass(eq=False)
class _Pair:
    asks: _Pipe
    answers: _Pipe
    dropping: bool = False  # its next reply is swallowed
    halved: bool = False  # nothing more comes through, either way
    holding: bool = False  # and kept back
    speaking: _Pipe | None = None  # who was heard last

    def reset(self) -> None:
        for end in (self.asks.source, self.asks.sink):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
            end.close()


class Proxy:
    """Passes on what comes, until told otherwise."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connections = 0  # that were made to it in all
        self._listener = _listening(0)
        self.port: int = self._listener.getsockname()[1]
        self._ear, self._mouth = socket.socketpair()
        self._orders: SimpleQueue[tuple[Callable[[], None], threading.Event]] = SimpleQueue()
        self._pairs: list[_Pair] = []
        self._stalled = False
        self._drop: bytes | None = None
        self._hold: bytes | None = None
        self._halve: bytes | None = None
        self._call: Callable[[], object] | None = None
        self._left = 0  # messages until then
        self._refusing = False  # from then on
        self._dropped = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return self.server.url.replace(f":{self.server.port}/", f":{self.port}/")

    def resume(self) -> None:
        def order() -> None:
            self._stalled, self._drop, self._hold, self._halve, self._call = False, None, None, None, None
            for pair in self._pairs:
                pair.holding = False
            if self._listener.fileno() < 0:
                self._listener = _listening(self.port)

        self._order(order)

    def cut(self) -> None:
        self._order(self._cut)

    def stall(self) -> None:
        def order() -> None:
            self._stalled = True

        self._order(order)

    def refuse(self) -> None:
        """Cut, and nobody listens any more."""

        def order() -> None:
            self._listener.close()
            self._cut()

        self._order(order)

    def drop_next_reply(self, to: bytes = b"") -> None:
        """Lose the reply to the next request (that holds `to`) and its connection. `dropped` tells when."""

        def order() -> None:
            self._dropped.clear()
            self._drop = to

        self._order(order)

    def halve_next_request(self, at: bytes) -> None:
        """Pass on the next request that holds `at` up to there, and lose its connection then."""

        def order() -> None:
            self._dropped.clear()
            self._halve = at

        self._order(order)

    def hold_next_reply(self, to: bytes = b"") -> None:
        """Keep back the reply to the next request (that holds `to`), and what comes after it."""

        def order() -> None:
            self._hold = to

        self._order(order)

    def at_message(self, number: int, call: Callable[[], object], *, refuse: bool = False) -> None:
        """Instead of passing on a message from now on, the number-th, call this (in the proxy's thread) and
        cut all connections; `refuse`: and nobody listens any more.

        A message is all that one end of a connection says until the other one is heard, so that those of
        a protocol of questions and answers are counted the same however they come in pieces.
        """

        def order() -> None:
            self._left, self._call, self._refusing = number, call, refuse

        self._order(order)

    def dropped(self, timeout: float = _PATIENCE) -> bool:
        """Has the reply been lost by now? Waits for it."""
        return self._dropped.wait(timeout)

    def close(self) -> None:
        def order() -> None:
            self._closed = True

        if not self._closed:
            self._order(order)
            self._thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the thread --------------------------------------------------------------------

    def _order(self, order: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.put((order, done))
        self._mouth.send(b"!")
        assert done.wait(_PATIENCE), "the proxy's thread has ended"

    def _run(self) -> None:
        while not self._closed:
            listening = [self._listener] if self._listener.fileno() >= 0 else []
            moving = [] if self._stalled else self._pairs
            pipes = [pipe for pair in moving for pipe in (pair.asks, pair.answers)]
            held = [pair.answers for pair in moving if pair.holding]
            sources = [p.source for p in pipes if p not in held and not p.ended and len(p.buffer) < _CHUNK]
            readable, writable, _ = select.select(
                [self._ear, *listening, *sources],
                [p.sink for p in pipes if p.buffer],
                [],
            )
            for pair in list(self._pairs):
                if pair in self._pairs and not self._stalled and not self._move(pair, readable, writable):
                    self._pairs.remove(pair)
                    pair.reset()
            if self._listener in readable and self._listener.fileno() >= 0:
                self._accept()
            if self._ear in readable:
                self._ear.recv(1)
                order, done = self._orders.get()
                order()
                done.set()
        self._cut()
        for end in (self._listener, self._ear, self._mouth):
            end.close()

    def _move(self, pair: _Pair, readable: list[socket.socket], writable: list[socket.socket]) -> bool:
        """False if the pair has come to its end."""
        try:
            for pipe in (pair.asks, pair.answers):
                if pipe.source in readable:
                    data = pipe.source.recv(_CHUNK)
                    pipe.ended = not data
                    if data and self._is_the_one(pair, pipe):
                        return self._end_with(pair)
                    if pair.dropping and pipe is pair.answers:
                        self._dropped.set()
                        return False
                    if self._drop is not None and pipe is pair.asks and data and self._drop in data:
                        self._drop, pair.dropping = None, True
                    if self._hold is not None and pipe is pair.asks and data and self._hold in data:
                        self._hold, pair.holding = None, True
                    if self._halve is not None and pipe is pair.asks and self._halve in data:
                        pipe.buffer += data.partition(self._halve)[0]
                        self._halve, pair.halved = None, True
                    pipe.buffer += b"" if pair.halved else data
                if pipe.sink in writable:
                    del pipe.buffer[: pipe.sink.send(pipe.buffer)]
                if pair.halved and not pair.asks.buffer and not self._dropped.is_set():
                    pair.asks.sink.shutdown(socket.SHUT_WR)  # the server hangs up when it has read all
                    self._dropped.set()
                if pipe.ended and not pipe.buffer:
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _is_the_one(self, pair: _Pair, pipe: _Pipe) -> bool:
        """Whether the message that was waited for begins."""
        if pair.speaking is pipe:
            return False
        pair.speaking = pipe
        self._left -= 1
        return self._left == 0 and self._call is not None

    def _end_with(self, pair: _Pair) -> bool:
        call, self._call = self._call, None
        assert call is not None
        call()
        if self._refusing:
            self._listener.close()
        for other in self._pairs:
            if other is not pair:
                other.reset()
        self._pairs[:] = [pair]
        return False

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.connections += 1
        upstream = socket.socket()
        pair = _Pair(_Pipe(client, upstream), _Pipe(upstream, client))
        try:
            upstream.connect((self.server.host, self.server.port))
        except OSError:
            pair.reset()
            return
        for end in (client, upstream):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(pair)

    def _cut(self) -> None:
        for pair in self._pairs:
            pair.reset()
        self._pairs.clear()


def _listening(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))
