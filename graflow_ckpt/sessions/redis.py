"""The session in Redis, as one worker sees it: every commit is one script that does all or nothing.

Promise: what `commit` returns has been applied once, also if a reply was lost on the way: the same
transition is sent again under its number, and answered from the record. Who has lost the token is
refused (`Fenced`). A server that is away is waited for.

Values are bytes there: what a body gets is its own copy, and there are no loans. Not here: leases
(the keeper renews them), tokens on their way (the fleet carries them), whole tables (tables.py).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from time import monotonic, sleep, time
from typing import Any, TypeVar

from graflow_ckpt.core.errors import (
    CheckpointError,
    Fenced,
    KeyTaken,
    NoSession,
    SchemaUnsupported,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    SessionBusy,
    SessionError,
    WriteConflict,
)
from graflow_ckpt.core.facts import Claim, Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.values import Live
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.scripts import Script
from graflow_ckpt.links.wire import Wire
from graflow_ckpt.sessions.layout import READ, RENEW, START, STEP, keys_of, wrong_keys
from graflow_ckpt.sessions.ops import Arg, Cells, arguments, claim_of, turn
from graflow_ckpt.sessions.patience import patiently
from graflow_ckpt.sessions.protocol import Found
from graflow_ckpt.sessions.reading import Look, Reader
from graflow_ckpt.sessions.tables import read_state

log = logging.getLogger("graflow_ckpt.sessions")

T = TypeVar("T")

POLL = 0.05
"""Seconds after which a run that stays asks again whether others have made something ready."""

HELP = 0.05
"""Seconds between calls for help: whoever was called may take that long to begin."""

QUICK = 0.005
"""Seconds up to which a body is quick: its commit has few words, and what is ready is not counted."""

PATIENCE = 60.0
"""Seconds that a commit waits for a server that is away."""


def fenced(session: str) -> Fenced:
    return Fenced(
        "This worker has lost the session's token; what it did is not committed.",
        hint="Somebody else goes on with it.",
        session=session,
    )


class RedisSession:
    """One sender's view: a slice with its token, or somebody outside with none."""

    quick = QUICK
    traced = True  # who waits for it is elsewhere: errors are kept with their tracebacks

    def __init__(
        self,
        link: RedisLink,
        session: str,
        cells: Cells,
        token: str = "",
        *,
        queue: str = "*",
        retires: bool = False,
    ) -> None:
        self.id = session
        self.token = token or f"!{uuid.uuid4().hex}"  # nobody else's: replies are kept by it
        self.queue = queue
        self.status = "running"
        self.steps = 0
        self.ready = 0
        self.retired = False
        self.made = 0  # how many tasks were made at run time
        self.on_made: Callable[[], None] = lambda: None
        self.emitted: list[tuple[str, str]] = []  # tokens that somebody has to carry: (token, queue)
        self.on_emitted: Callable[[str, str], None] = lambda token, queue: self.emitted.append((token, queue))
        self.answered = 0.0  # when the last commit came back (monotonic)
        self.until: float | None = None  # nothing is claimed after that moment (monotonic)
        self.help_after: float | None = None  # from then on a commit that leaves work asks for another worker
        self.stamp = ""  # seconds, instead of the server's clock
        self.held: dict[int, Claim] = {}  # claims of this sender, by the key of their spec
        self.broken: SessionError | None = None
        self.patience = PATIENCE  # with 0 a commit is tried twice, and a frozen session is not waited for
        self._cells = cells
        self._retires = retires
        self._key = keys_of(session) + "c"
        self._link = link
        self._step, self._read = link.script(STEP), link.script(READ)
        self._wire: Wire | None = None
        self._lock = threading.Lock()
        self._seq = 0
        self._ahead: float | None = None  # the server's clock before ours
        self._said = b"running"  # the status, as it came

    # --- commits -----------------------------------------------------------------------

    def commit(self, ops: Sequence[Op], mode: str = "") -> list[Claim]:
        """Carry out one transition; the claims that it hands out."""
        if self.broken is not None:
            raise self.broken
        asks = bool(ops) and ops[-1][0] == "claim" and ops[-1][1] > 0
        if asks and self._late():
            ops, asks = [*ops[:-1], ("claim", 0)], False
        if asks and self._retires and self._ends_all(ops):
            mode += "r"
        quick = asks and monotonic() < self.answered + self.quick
        args = turn(ops, self._cells, self.queue) if quick else None
        if args is not None:
            mode = "t" + mode
        else:
            args = arguments(ops, self._cells, self.queue)
        if self.help_after is not None and self.ready and monotonic() > self.help_after:
            mode += "s"
            self.help_after = monotonic() + HELP
        with self._lock:
            self._seq += 1
            try:
                reply = self._send(self._step, [self.token, self._seq, self.stamp, mode, *args])
            except (SessionBusy, ServerFull, SchemaUnsupported):  # nothing was done, nothing was answered
                raise
            except BaseException as error:  # a signal's exception, too: what was sent may have been done
                self.broken = self._unknown(error)
                raise
        self.answered = monotonic()
        return self._take(reply, ops)

    def _ends_all(self, ops: Sequence[Op]) -> bool:
        """Whether nothing is held after these."""
        held = len(self.held)
        return held == (ops[0][0] == "end") or held <= sum(op[0] in _GIVES_UP for op in ops)

    def _take(self, reply: list[Any], ops: Sequence[Op]) -> list[Claim]:
        if len(reply) < 4:
            if reply[0] == b"begun":
                return []
            self._refused(reply)
        if reply[0] != self._said:
            self._said, self.status = reply[0], reply[0].decode()
        self.steps, self.ready = reply[1], reply[2]
        held = self.held
        if held:
            for op in ops:
                if op[0] in _GIVES_UP:
                    held.pop(op[1], None)
        try:
            claims = [claim_of(record, self._cells) for record in reply[4:]]
        except CheckpointError:
            claims = self._readable(reply[4:])
        for claim in claims:
            held[claim.spec.key] = claim
        if reply[3]:
            self._note(reply[3].decode())
        return claims

    def _readable(self, records: Sequence[bytes]) -> list[Claim]:
        """Claims whose data can be opened here. The others are set aside: they would come again for ever."""
        claims = []
        for record in records:
            try:
                claims.append(claim_of(record, self._cells))
            except CheckpointError as error:
                key = int(record.split(b"\x1f", 3)[2])
                self.commit([("quarantine", key, f"{type(error).__name__}: {error}")])
        return claims

    def _note(self, tail: str) -> None:
        retired, *emitted = tail.split("\x1f")
        if retired == "retired":
            self.retired = True
        for token, queue in zip(emitted[::2], emitted[1::2], strict=True):
            if token == "made":
                if self.made != int(queue):
                    self.made = int(queue)
                    self.on_made()
            else:
                self.on_emitted(token, queue)

    def _refused(self, reply: list[Any]) -> None:
        why = reply[0].decode()
        if why == "conflict":
            name = reply[1].decode()
            raise WriteConflict(
                f"{name!r} was changed by another task while this one worked on it.",
                hint="Use channel.append() for lists that several tasks extend, or let one follow the other.",
                name=name,
            )
        if why == "void":  # the claim of an attempt that is over, or a token that is alive after all
            raise Fenced("The attempt is over; what it did is not committed.", session=self.id)
        if why == "gone":
            raise self._gone()
        self.broken = fenced(self.id)
        raise self.broken

    def _gone(self) -> NoSession:
        return NoSession(f"There is no session {self.id} at {self._link.address}.", session=self.id)

    def _unknown(self, error: BaseException) -> SessionError:
        return SessionError(
            f"Whether the last commit was carried out is not known: {str(error) or type(error).__name__}",
            hint="Nothing more is committed here; what is held is given back when the token's lease is over.",
            session=self.id,
        )

    def _send(self, script: Script, args: Sequence[Arg]) -> Any:
        """One call; sent again as it was if the server went away before its reply came."""
        deadline, pause, lost = None, 0.02, False
        while True:
            try:
                if self._wire is None:
                    self._wire = self._link.connection()
                elif lost:
                    self._wire.reconnect()  # the key may be served elsewhere now
                lost = False
                reply = self._wire.call(script, (self._key,), args)
                if reply != [b"frozen"]:
                    return reply
                if not self.patience:
                    raise SessionBusy(f"Session {self.id} is frozen.", hint="Try again.", session=self.id)
                deadline = None  # it answers
            except KeyTaken as error:
                raise wrong_keys(self._link, self.id) from error
            except (ServerGone, ServerFull, ServerReadOnly) as error:
                lost = not isinstance(error, ServerFull)
                if deadline is None:
                    log.warning("session %s waits: %s", self.id, error, extra={"session": self.id})
                    deadline = monotonic() + self.patience
                elif monotonic() > deadline:
                    raise
            sleep(pause)
            pause = min(pause * 2, 1.0)

    def close(self) -> None:
        if self._wire is not None:
            self._link.done_with(self._wire)
            self._wire = None

    # --- facts -------------------------------------------------------------------------

    def clock(self) -> float:
        """The server's time, by which specs are due: the clocks of machines differ."""
        if self._ahead is None:
            self._ahead = self.patiently(self._difference)
        return time() + self._ahead

    def _difference(self) -> float:
        before = time()
        seconds, micros = self._link.client.time()
        return float(seconds + micros / 1e6 - (before + time()) / 2)

    @property
    def pending(self) -> int:
        return max(0, self.ready) + len(self.held)

    @property
    def over(self) -> bool:
        """Whether this run will get nothing more from it."""
        return self.retired or self.status != "running" or self._late()

    def _late(self) -> bool:
        return self.until is not None and monotonic() > self.until

    def due(self) -> float | None:
        """A slice leaves when there is nothing to do; who stays asks again now and then."""
        return None if self._retires else self.clock() + POLL

    def known(self) -> SessionState:
        """All that is known of its tasks, as of now; no values."""
        return self.patiently(lambda: read_state(self._link, self.id, self._cells, values=False))

    def patiently(self, ask: Callable[[], T]) -> T:
        """The answer to something that changes nothing; a server that is away is waited for."""
        return patiently(ask, self._link.address, self.id, self.patience)

    def has_ready(self) -> bool:
        return True  # others make ready what this one has not heard of: ask

    def on_loan(self) -> list[str]:
        return []  # what a body gets is a copy

    def on_loan_beside(self, name: str) -> bool:
        return False

    def replace_live(self, name: str, old: object, new: Live) -> None:
        """There is nothing to let go of."""

    # --- values ------------------------------------------------------------------------

    def reader(self) -> Reader:
        """The values as one attempt sees them."""
        return Reader(self.read_all, self.names)

    def read_all(self, names: Sequence[str]) -> list[Look]:
        """Values as of one moment; and of results, whether there is none this time."""
        with self._lock:
            found = self._send(self._read, list(names))
        if found == [b"gone"]:
            raise self._gone()
        return [self._value(name, one) for name, one in zip(names, found, strict=True)]

    def _value(self, name: str, found: list[bytes] | None) -> Look:
        if not found:
            return None, False
        cell, version, void, *items = found
        if not version:
            return None, void == b"1"
        unpack = self._cells.unpack
        return (unpack(name, cell), int(version), tuple(unpack(name, i) for i in items)), void == b"1"

    def read(self, name: str) -> Found | None:
        return self.read_all([name])[0][0]

    def names(self) -> list[str]:
        fields = self.patiently(self._fields)
        return [f[1:].decode() for f in fields if f[:1] == b"="]

    def _fields(self) -> list[bytes]:
        client: Any = self._link.client
        fields: list[bytes] = client.hkeys(keys_of(self.id) + "v")
        return fields


_GIVES_UP = frozenset({"end", "release", "doubt", "quarantine", "answer"})


__all__ = ["RENEW", "START", "STEP", "Live", "Reader", "RedisSession", "fenced", "keys_of"]
