"""The session in Redis, as one worker sees it: every commit is one script that does all or nothing.

Promise: what `commit` returns has been applied once, also if a reply was lost on the way: the same
transition is sent again under its nonce, and answered from the record. A worker that has lost the token
is refused (`Fenced`). A server that is away is waited for.

A server that comes back may have another history: a replica that lagged, an older snapshot. So each
transition names the one before it, and follows only that: a sender whose last one was lost is refused.
What an attempt has read before the connection broke has to be there as it was.

    nonce     TRY_NUMBER_SENDER, different for each request that is sent: it is in what the request writes
    version   SEQUENCE_NONCE of the transition that wrote a value: equal only where it is the same write

Values are bytes there: what a body gets is its own copy, and there are no loans. Not here: leases
(the keeper renews them), tokens on their way (the fleet carries them), whole tables (tables.py).
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, sleep, time
from typing import Any, TypeVar

from graflow_ckpt.core.apply import changed_meanwhile
from graflow_ckpt.core.errors import (
    CheckpointError,
    Fenced,
    KeyTaken,
    SchemaUnsupported,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    SessionBusy,
    SessionError,
)
from graflow_ckpt.core.facts import RESULT, Claim, Live, Op, TaskSpec, Version
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.complaints import BROKEN, readable, translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Script, Wire
from graflow_ckpt.sessions.protocol import Found, MadeSoFar, Post
from graflow_ckpt.sessions.redis import ops as codec
from graflow_ckpt.sessions.redis.keys import CREATE, READ, RENEW, STEP, keys_of, wrong_keys
from graflow_ckpt.sessions.redis.ops import Arg, Cells, arguments, claim_of, in_full, strictly, turn
from graflow_ckpt.sessions.redis.tables import Counters, counters_of, gone, read_line, read_state

log = logging.getLogger("graflow_ckpt.sessions")
T = TypeVar("T")

Look = tuple[Found | None, bool]
"""What stands under a name; and of a result, whether its task gave none this time."""

POLL = 0.05  # seconds after which a run that stays asks again whether others have made something ready
HELP = 0.05  # seconds between calls for help: a worker that was called may take that long to begin
QUICK = 0.005  # seconds up to which a body is quick: its commit has few words, and none counts what is ready
PATIENCE = 60.0  # seconds that a commit waits for a server that is away
MEMORY = 600  # seconds for which a session knows the last reply to a sender without a token (step.lua)
_QUIET = MEMORY / 2  # seconds after which such a sender begins anew: what it did before is no part of it

_GIVES_UP = frozenset({"end", "release", "doubt", "quarantine", "answer"})
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


class RedisSession:
    """One sender's view: a slice with its token, or another process with none."""

    quick = QUICK
    traced = True  # the waiting process is another one: errors are kept with their tracebacks

    def __init__(
        self,
        link: RedisLink,
        session: str,
        cells: Cells,
        token: str = "",
        began: str = "",
        *,
        queue: str = "*",
        retires: bool = False,
        patience: float = PATIENCE,
        post: Post | None = None,
    ) -> None:
        """Make a sender; `patience`: with 0 a commit is tried twice, a frozen session is not waited for."""
        self.id = session
        self.sender = began.rpartition("_")[2] or _name()
        self.token = token or f"!{self.sender}"  # of this sender alone: replies are kept by it
        self.queue = queue
        self.status = "running"
        self.steps = 0
        self.ready = 0
        self.retired = False
        self.made = MadeSoFar()  # at run time, as of the last commit
        self.emitted: list[tuple[str, str]] = []  # tokens that have to be carried: (token, queue)
        self._join: Callable[[MadeSoFar, Sequence[str]], None] = lambda made, own: None
        self.post: Post = post or (lambda token, queue: self.emitted.append((token, queue)))
        self.answered = 0.0  # when the last commit came back (monotonic)
        self.until: float | None = None  # nothing is claimed after that moment (monotonic)
        self.help_after: float | None = None  # from then on a commit that leaves work asks for another worker
        self.stamp = ""  # seconds, instead of the server's clock
        self.held: dict[int, Claim] = {}  # claims of this sender, by the key of their spec
        self.broken: SessionError | None = None
        self.patience = patience
        self._cells = cells
        self._retires = retires
        self._key = keys_of(session) + "c"
        self._link = link
        self._step, self._read = link.script(STEP), link.script(READ)
        self._wire: Wire | None = None
        self._lock = threading.Lock()
        self._outside = not token
        self._number = 0  # of the last request
        self._tries = 0
        self._first_sent = (0.0, 0.0)  # when, by two clocks
        self._nonce = ""  # of the last request as it was sent
        self._follows = began  # the nonce of the last one that was answered
        self.connections = 0  # so many were opened: a server that has another history is met on a new one
        self._readers: dict[int, AttemptReader] = {}  # of attempts, by the key of their spec
        self._ahead: float | None = None  # the server's clock before ours
        self._said = b"running"  # the status, as it came

    def when_made(self, join: Callable[[MadeSoFar, Sequence[str]], None]) -> None:
        """Have this called when a commit reports tasks that were made since the one before."""
        self._join = join

    def claims_for(self, seconds: float, help_after: float) -> None:
        """Claim nothing after so many seconds; call for another worker where work waits after so many."""
        self.until, self.help_after = monotonic() + seconds, monotonic() + help_after

    def posts_by(self, post: Post) -> None:
        """Give `post` the tokens that have to be carried, from here on."""
        self.post = post

    def renew(self, seconds: float) -> str:
        """Renew the lease of its token, from any thread: the session's status, or "fenced" or "gone"."""
        words: list[Arg] = [self.token, self.sender, int(seconds * 1000)]
        status: bytes = self._link.script(RENEW)([self._key], words)
        return status.decode()

    def retire(self) -> None:
        """Note that another process has taken the token."""
        self.retired = True

    # --- commits -----------------------------------------------------------------------

    def commit(self, ops: Sequence[Op], mode: str = "") -> list[Claim]:
        """Carry out one transition; return the claims that it makes."""
        if self.broken is not None:
            raise self.broken
        asks = bool(ops) and ops[-1][0] == "claim" and ops[-1][1] > 0
        if asks and self._late():
            ops, asks = [*ops[:-1], ("claim", 0)], False
        if asks and self._retires and self._ends_all(ops):
            mode += "r"
        if self._outside and self._follows and monotonic() > self.answered + _QUIET:
            self.begin_anew()
        quick = asks and monotonic() < self.answered + self.quick
        args = turn(ops, self._cells, self.queue) if quick else None
        if args is not None:
            mode = "t" + mode
        else:
            args = arguments(ops, self._cells, self.queue, lambda key: self.held[key].spec.task_id)
        if self.help_after is not None and self.ready and monotonic() > self.help_after:
            mode += "s"
            self.help_after = monotonic() + HELP
        with self._lock:
            self._number += 1
            self._tries = 1
            self._nonce = f"1_{self._number}_{self.sender}"
            words = [self.token, self._nonce, self.stamp, mode, self._follows, *args]
            if self.connections > 1:
                words = self._strictly(words, ops)
            if self._outside:
                self._first_sent = monotonic(), time()
            try:
                reply = self._send(self._step, words, ops)
            except (SessionBusy, ServerFull, SchemaUnsupported):  # nothing was done, nothing was answered
                raise
            except BaseException as error:  # a signal's exception, too: what was sent may have been done
                self.broken = self._unknown(error)
                raise
            if len(reply) >= 4:
                self._follows = _applied(reply[3]) if reply[3] and _NONCE in reply[3] else self._nonce
        self.answered = monotonic()
        return self._take(reply, ops)

    def _once_more(self, words: Sequence[Arg], ops: Sequence[Op]) -> list[Arg]:
        """Return the same request for another connection: what was sent before may have been carried out.

        One that follows nothing could be carried out twice, once its answer is forgotten: so it says until
        when it may be carried out.
        """
        self._tries += 1
        self._nonce = f"{self._tries}_{self._number}_{self.sender}"
        again = self._strictly([words[0], self._nonce, *words[2:]], ops)
        if self._outside and not self._follows:
            now = float(self.stamp) if self.stamp else self._server_time()
            passed = max(
                monotonic() - self._first_sent[0], time() - self._first_sent[1]
            )  # one may stand still
            again[3] = f"{str(again[3]).partition('U')[0]}U{int((now - passed + MEMORY - 10) * 1000)}"
        return again

    def _strictly(self, words: list[Arg], ops: Sequence[Op]) -> list[Arg]:
        """Return words that are refused unless what its attempts read on another connection is the same."""
        ended = (self._readers.get(op[1]) for op in ops if op[0] == "end")
        seen = [one for reader in ended if reader is not None for one in reader.seen_before(self.connections)]
        if not seen:
            return words
        mode, args = str(words[3]), words[5:]
        if mode[:1] == "t":
            mode, args = mode[1:], in_full(args)
        return [*words[:3], mode, words[4], *strictly(args, seen)]

    def begins(self) -> tuple[str, str]:
        """Return token and nonce of a process that makes the session: what it sends follows that."""
        self._follows = f"1_0_{self.sender}"
        self.answered = monotonic()
        return self.token, self._follows

    def create(self, line: str, facts: Mapping[str, str]) -> bool:
        """Make the session, with these counters; False if there is one of that name."""
        pairs = [item for pair in facts.items() for item in pair]
        made: bool = self._link.script(CREATE)([self._key], [line, *self.begins(), *pairs]) != b"exists"
        if not made:
            self.begin_anew()
        return made

    def begin_anew(self) -> None:
        """Become another sender, without a token: its requests follow none of those before."""
        self.sender = _name()
        self.token, self._follows, self._number = f"!{self.sender}", "", 0

    def _ends_all(self, ops: Sequence[Op]) -> bool:
        """Return True if nothing is held after these."""
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
                    if self._readers:
                        self._readers.pop(op[1], None)
        try:
            claims = [claim_of(record, self._cells) for record in reply[4:]]
        except (CheckpointError, *BROKEN):
            claims = self._readable(reply[4:])
        for claim in claims:
            held[claim.spec.key] = claim
        if reply[3]:
            self._note(reply[3].decode(), ops)
        return claims

    def _readable(self, records: Sequence[bytes]) -> list[Claim]:
        """Return the claims whose data can be opened here; the others are set aside, else they repeat."""
        claims = []
        for record in records:
            try:
                claims.append(claim_of(record, self._cells))
            except (CheckpointError, *BROKEN) as error:
                with readable(self.id, self._link.address):
                    key = int(record.split(b"\x1f", 3)[2])
                self.commit([("quarantine", key, f"{type(error).__name__}: {error}")])
        return claims

    def _note(self, tail: str, ops: Sequence[Op]) -> None:
        retired, *emitted = tail.split("\x1f")
        if retired == "retired":
            self.retired = True
        for token, queue in zip(emitted[::2], emitted[1::2], strict=True):
            if token == "nonce":
                continue
            if token == "made":
                own = [op[1] for op in ops if op[0] == "task"]
                last = f"{self._follows} {own[-1]}".encode() if own else b""
                with readable(self.id, self._link.address):
                    times, names = map(int, queue.split(" "))
                made = MadeSoFar(times, names, last)
                if made[:2] != self.made[:2]:
                    self.made = made
                    self._join(made, own)
            else:
                self.post(token, queue)

    def _refused(self, reply: list[Any]) -> None:
        why = reply[0].decode()
        if why == "conflict":
            raise changed_meanwhile(reply[1].decode())
        if why == "void":  # the claim of an attempt that is over, or a token that is alive after all
            raise Fenced("The attempt is over; what it did is not committed.", session=self.id)
        if why == "stale":
            raise Fenced(
                f"{reply[1].decode()!r} is not what this attempt has read before the server was away: it was "
                "changed, or a change is lost. What the attempt did is not committed.",
                hint="The task runs again.",
                session=self.id,
            )
        if why == "lost":
            raise self._lost()
        if why == "gone":
            raise gone(self._link, self.id)
        self.broken = Fenced(
            "This worker has lost the session's token; what it did is not committed.",
            hint="Another worker continues with it.",
            session=self.id,
        )
        raise self.broken

    def _lost(self) -> SessionError:
        """Return what to raise if what a request without a token was to follow, or its reply, is lost."""
        known = "is not committed" if self._tries == 1 else "may be committed, or not"
        self.begin_anew()
        return SessionError(
            f"Session {self.id} does not know the last change of this process: a failover or the restore of "
            f"an older copy has lost it, or it was too long ago. What was to follow it {known}.",
            hint="Look at what the session has (graflow-ckpt status), and make again what it lacks.",
            session=self.id,
        )

    def _unknown(self, error: BaseException) -> SessionError:
        return SessionError(
            f"Whether the last commit was carried out is not known: {str(error) or type(error).__name__}",
            hint="Nothing more is committed here; what is held is given back when the token's lease is over.",
            session=self.id,
        )

    def _send(self, script: Script, args: Sequence[Arg], ops: Sequence[Op] | None = None) -> Any:
        """Send a call, again if the server went away before its reply came. `ops`: of a transition."""
        deadline, pause, lost = None, 0.02, False
        while True:
            try:
                wire = self._wire
                if wire is None or lost:
                    wire = self._connect()
                    if ops is not None and self.connections > 1:
                        args = self._once_more(args, ops)
                lost = False
                reply = wire.call(script, (self._key,), args)
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

    def _connect(self) -> Wire:
        if self._wire is None:
            self._wire = self._link.connection()
        else:
            self._wire.reconnect()  # the key may be served elsewhere now
        self.connections += 1
        return self._wire

    def close(self) -> None:
        if self._wire is not None:
            self._link.done_with(self._wire)
            self._wire = None

    # --- facts -------------------------------------------------------------------------

    def clock(self) -> float:
        """Return the server's time, by which specs are due: the clocks of machines differ."""
        if self._ahead is None:
            self._ahead = self.patiently(self._difference)
        return time() + self._ahead

    def _difference(self) -> float:
        before = time()
        return self._server_time() - (before + time()) / 2

    def _server_time(self) -> float:
        with translated(self._link.address):
            seconds, micros = self._link.client.time()
        return float(seconds + micros / 1e6)

    @property
    def commits(self) -> int:
        """The number of commits by this sender."""
        return self._number

    @property
    def pending(self) -> int:
        return max(0, self.ready) + len(self.held)

    @property
    def over(self) -> bool:
        """True if this run will get nothing more from it."""
        return self.retired or self.status != "running" or self._late()

    def _late(self) -> bool:
        return self.until is not None and monotonic() > self.until

    def due(self) -> float | None:
        """Return when to ask again; None for a slice, which leaves when there is nothing to do."""
        return None if self._retires else self.clock() + POLL

    @property
    def state(self) -> SessionState:
        """All that is known of its tasks, as of now; no values."""
        return read_state(self._link, self.id, self._cells, values=False)

    @property
    def head(self) -> Counters:
        """Its counters, as of now."""
        return counters_of(read_line(self._link, self.id))

    @contextmanager
    def still(self) -> Iterator[bool]:
        """Yield True: nothing is on loan."""
        yield True

    def known(self) -> SessionState:
        """Return the state; a server that is away is waited for."""
        return self.patiently(lambda: self.state)

    def patiently(self, ask: Callable[[], T]) -> T:
        """Return the answer to something that changes nothing; a server that is away is waited for."""
        return self._link.patiently(ask, self.id, self.patience)

    def has_ready(self) -> bool:
        return True  # others make ready what this one does not know of: ask

    def following(self) -> TaskSpec | None:
        return None  # not asked

    def on_loan(self) -> list[str]:
        return []  # what a body gets is a copy

    def on_loan_beside(self, name: str, own: int = 1) -> bool:
        return False

    def live(self) -> dict[str, list[Live]]:
        return {}

    def replace_live(self, copies: Mapping[Live, Live]) -> None:
        """Do nothing: no object is held here."""

    # --- values ------------------------------------------------------------------------

    def reader(self, key: int = 0) -> AttemptReader:
        """Return the values as one attempt sees them, that of the spec with this key."""
        reader = self._readers.get(key)
        if reader is None:
            reader = AttemptReader(self)
            if key in self.held:
                self._readers[key] = reader
        return reader

    def read_all(self, names: Sequence[str]) -> list[Look]:
        """Return values as of one moment; and of results, whether there is none this time."""
        looks, _ = self.look(names)
        return [looks[name] for name in names]

    def look(self, names: Sequence[str]) -> tuple[dict[str, Look], list[dict[str, Look]]]:
        """Return the same by name, and the bundles of these, with all that came by the same pickle."""
        with self._lock:
            found = self._send(self._read, list(names))
        if found == [b"gone"]:
            raise gone(self._link, self.id)
        rows: list[list[Any]] = found[len(names)] if len(found) > len(names) else []
        with readable(self.id, self._link.address):
            bundles = [self._bundle(*row) for row in rows]
            together = {name: look for one in bundles for name, look in one.items()}
            looks = {
                name: together[name] if name in together else self._value(name, one)
                for name, one in zip(names, found, strict=False)
            }
        return looks, bundles

    def _bundle(self, number: bytes, pickle: bytes, *members: Any) -> dict[str, Look]:
        roots = codec.unpack_bundle(number.decode(), pickle, self._cells)
        named = [(name.decode(), found) for name, found in zip(members[::2], members[1::2], strict=True)]
        return {name: self._value(name, found, roots) for name, found in named}

    def _value(self, name: str, found: list[bytes] | None, roots: Mapping[str, Any] | None = None) -> Look:
        if not found:
            return None, False
        cell, version, void, *items = found
        if not version:
            return None, void == b"1"
        unpack = self._cells.unpack
        value = unpack(name, cell) if roots is None else Live(roots[name])
        return (value, version, tuple(unpack(name, i) for i in items)), void == b"1"

    def read(self, name: str) -> Found | None:
        return self.read_all([name])[0][0]

    def names(self) -> list[str]:
        client: Any = self._link.client
        fields: list[bytes] = self.patiently(lambda: client.hkeys(keys_of(self.id) + "v"))
        with readable(self.id, self._link.address):
            return [f[1:].decode() for f in fields if f[:1] == b"="]


class AttemptReader:
    """The reads of one attempt, each value once: it sees them as they were when it first looked."""

    shares = False

    def __init__(self, session: RedisSession) -> None:
        self._session = session
        self._since = 0  # the number of the one that the first value came by
        self._found: dict[str, Look] = {}
        self._together: dict[str, dict[str, Found]] = {}  # by name: what came by the same pickle

    def seen_before(self, connection: int) -> list[tuple[str, Version]]:
        """Return what was read if some of it came by an earlier connection: names and versions (0: none)."""
        if self._since >= connection or not self._found:
            return []
        return [(name, 0 if found is None else found[1]) for name, (found, _) in self._found.items()]

    def prefetch(self, names: Sequence[str]) -> None:
        """Read these in one round trip: they will be asked for."""
        self._look_for(names)

    def read(self, name: str) -> Found | None:
        return self._look(name)[0]

    def gave_nothing(self, task: str) -> bool:
        return self._look(task + RESULT)[1]

    def _look(self, name: str) -> Look:
        found = self._found.get(name)
        if found is None:
            self._look_for([name])
            found = self._found[name]
        return found

    def _look_for(self, names: Sequence[str]) -> None:
        if not self._found:
            # before it is asked: another thread may reconnect meanwhile
            self._since = self._session.connections
        names = [name for name in names if name not in self._found]
        if not names:
            return
        looks, bundles = self._session.look(names)
        for bundle in bundles:
            found = {name: look[0] for name, look in bundle.items() if look[0] is not None}
            for name, look in bundle.items():
                if name not in self._found:  # else it is of an earlier moment, and a write of it is refused
                    self._found[name], self._together[name] = look, found
        self._found |= looks

    def together(self, name: str) -> dict[str, Found]:
        """Return what came by the same pickle: copies that share objects with the value, and it itself."""
        return self._together.get(name, {})

    def names(self) -> list[str]:
        return self._session.names()

    def lend(self, name: str) -> None:
        """Do nothing: an attempt gets a copy of its own."""

    def give_back(self, names: Sequence[str]) -> None:
        """Do nothing: no value was lent."""

    def on_loan(self) -> list[str]:
        return []
