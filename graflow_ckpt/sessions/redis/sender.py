"""A sender of transitions, one after another: each is one script that does all or nothing.

Promise: what was answered has been applied once, also if a reply was lost on the way: the same transition
is sent again under its nonce, and answered from the record. A server that is away is waited for.

A server that comes back may have another history: a replica that lagged, an older snapshot. So each
transition names the one before it, and follows only that: a sender whose last one was lost is refused.
What an attempt has read before the connection broke has to be there as it was.

    nonce     TRY_NUMBER_SENDER, different for each request that is sent: it is in what the request writes
    version   SEQUENCE_NONCE of the transition that wrote a value: equal only where it is the same write

Not here: what a transition says, and what its answer means (session.py).
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep, time
from typing import Any

from graflow_ckpt.core.errors import KeyTaken, ServerFull, ServerGone, ServerReadOnly, SessionBusy
from graflow_ckpt.core.facts import Op, Version
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Script, Wire
from graflow_ckpt.sessions.redis.keys import keys_of, wrong_keys
from graflow_ckpt.sessions.redis.ops import Arg, in_full, strictly

log = logging.getLogger("graflow_ckpt.sessions")

Seen = Callable[[Sequence[Op], int], list[tuple[str, Version]]]
"""Return what the attempts that a transition ends have read before this connection."""

PATIENCE = 60.0  # seconds that a commit waits for a server that is away
MEMORY = 600  # seconds for which a session knows the last reply to a sender without a token (step.lua)

_NONCE = b"\x1fnonce\x1f"


def new_nonce() -> str:
    """Return the nonce of a sender that begins: on a token, or on a session that it makes."""
    return f"1_0_{_name()}"


def _name() -> str:
    """Return the name of a sender; as long as every other, so that no nonce begins with another one."""
    return secrets.token_hex(5)


def _applied(tail: bytes) -> str:
    """Return the nonce of the try that was carried out, of a request that was sent more than once."""
    return tail.partition(_NONCE)[2].partition(b"\x1f")[0].decode()


class Sender:
    """Sends in the name of a token, or of itself alone where it has none."""

    def __init__(
        self, link: RedisLink, session: str, token: str, began: str, patience: float, seen: Seen
    ) -> None:
        self.session = session
        self.patience = patience
        self.name = began.rpartition("_")[2] or _name()
        self.token = token or f"!{self.name}"  # of this sender alone: replies are kept by it
        self.outside = not token
        self.follows = began  # the nonce of the last request that was answered
        self.stamp = ""  # seconds, instead of the server's clock
        self.number = 0  # of the last request
        self.tries = 0  # of the last request
        self.connections = 0  # so many were opened: a server that has another history is met on a new one
        self._link = link
        self._key = keys_of(session) + "c"
        self._wire: Wire | None = None
        self._lock = threading.Lock()
        self._seen = seen

    @property
    def nonce(self) -> str:
        """The nonce of the last request as it was sent."""
        return f"{self.tries}_{self.number}_{self.name}"

    def send(self, script: Script, mode: str, args: Sequence[Arg], ops: Sequence[Op]) -> Any:
        """Send a transition, these ops as `args`; return its answer."""
        with self._lock:
            self.number += 1
            self.tries = 1
            nonce = f"1_{self.number}_{self.name}"
            words: list[Arg] = [self.token, nonce, self.stamp, mode, self.follows, *args]
            if self.connections > 1:
                words = self._strictly(words, ops)
            reply = self._call(script, words, ops)
            if len(reply) >= 4:
                nonce = nonce if self.tries == 1 else self.nonce
                self.follows = _applied(reply[3]) if reply[3] and _NONCE in reply[3] else nonce
        return reply

    def ask(self, script: Script, args: Sequence[Arg]) -> Any:
        """Return the answer of a script that changes nothing."""
        with self._lock:
            return self._call(script, args, None)

    def begins(self) -> tuple[str, str]:
        """Return token and nonce of a process that makes the session: what it sends follows that."""
        self.follows = f"1_0_{self.name}"
        return self.token, self.follows

    def begin_anew(self) -> None:
        """Become another sender, without a token: its requests follow none of those before."""
        self.name = _name()
        self.token, self.follows, self.number = f"!{self.name}", "", 0

    def server_time(self) -> float:
        return self._link.now()

    def close(self) -> None:
        if self._wire is not None:
            self._link.done_with(self._wire)
            self._wire = None

    def _call(self, script: Script, args: Sequence[Arg], ops: Sequence[Op] | None) -> Any:
        """Send a call, again if the server went away before its reply came. `ops`: of a transition."""
        deadline, pause, lost = None, 0.02, False
        first = (monotonic(), time()) if self.outside else (0.0, 0.0)  # by two clocks
        while True:
            try:
                wire = self._wire
                if wire is None or lost:
                    wire = self._connect()
                    if ops is not None and self.connections > 1:
                        args = self._once_more(args, ops, first)
                lost = False
                reply = wire.call(script, (self._key,), args)
                if reply != [b"frozen"]:
                    return reply
                if not self.patience:
                    raise SessionBusy(
                        f"Session {self.session} is frozen.", hint="Try again.", session=self.session
                    )
                deadline = None  # it answers
            except KeyTaken as error:
                raise wrong_keys(self._link, self.session) from error
            except (ServerGone, ServerFull, ServerReadOnly) as error:
                lost = not isinstance(error, ServerFull)
                if deadline is None:
                    log.warning("session %s waits: %s", self.session, error, extra={"session": self.session})
                    deadline = monotonic() + self.patience
                elif monotonic() > deadline:
                    raise
            sleep(pause)
            pause = min(pause * 2, 1.0)

    def _connect(self) -> Wire:
        if self._wire is None:
            self._wire = self._link.connection()
        else:
            self._wire.reconnect()  # the key may be served elsewhere now
        self.connections += 1
        return self._wire

    def _once_more(self, words: Sequence[Arg], ops: Sequence[Op], first: tuple[float, float]) -> list[Arg]:
        """Return the same request for another connection: what was sent before may have been carried out.

        One that follows nothing could be carried out twice, once its answer is forgotten: so it says until
        when it may be carried out.
        """
        self.tries += 1
        again = self._strictly([words[0], self.nonce, *words[2:]], ops)
        if self.outside and not self.follows:
            now = float(self.stamp) if self.stamp else self.server_time()
            # one of the two may stand still
            passed = max(monotonic() - first[0], time() - first[1])
            again[3] = f"{str(again[3]).partition('U')[0]}U{int((now - passed + MEMORY - 10) * 1000)}"
        return again

    def _strictly(self, words: list[Arg], ops: Sequence[Op]) -> list[Arg]:
        """Return words that are refused unless what its attempts read on another connection is the same."""
        known = self._seen(ops, self.connections)
        if not known:
            return words
        mode, args = str(words[3]), words[5:]
        if mode[:1] == "t":
            mode, args = mode[1:], in_full(args)
        return [*words[:3], mode, words[4], *strictly(args, known)]
