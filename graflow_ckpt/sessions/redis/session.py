"""The session in Redis, as one process sees it: what its transitions say, and what they are answered.

Promise: what `commit` returns has been applied once. A worker that has lost the token is refused (`Fenced`).

Not here: how a transition gets there (sender.py), what bodies read (values.py), leases (the keeper renews
them), tokens on their way (the fleet carries them), whole tables (tables.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, time
from typing import Any, TypeVar

from graflow_ckpt.core.apply import changed_meanwhile
from graflow_ckpt.core.errors import (
    CheckpointError,
    Fenced,
    KeyTaken,
    SchemaUnsupported,
    ServerFull,
    SessionBusy,
    SessionError,
)
from graflow_ckpt.core.facts import Claim, Live, Op, TaskSpec, Version, execution_of
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.complaints import BROKEN, readable
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.protocol import Found, MadeSoFar, Post
from graflow_ckpt.sessions.redis.keys import CREATE, RENEW, STEP, keys_of, wrong_keys
from graflow_ckpt.sessions.redis.ops import Arg, Cells, arguments, claim_of, turn
from graflow_ckpt.sessions.redis.sender import MEMORY, PATIENCE, Sender
from graflow_ckpt.sessions.redis.tables import Counters, counters_of, gone, read_line, read_state
from graflow_ckpt.sessions.redis.values import AttemptReader, Look, StoredValues

T = TypeVar("T")

POLL = 0.05  # seconds after which a run that stays asks again whether others have made something ready
HELP = 0.05  # seconds between calls for help: a worker that was called may take that long to begin
QUICK = 0.005  # seconds up to which a body is quick: its commit has few words, and none counts what is ready
_QUIET = MEMORY / 2  # seconds after which such a sender begins anew: what it did before is no part of it

_GIVES_UP = frozenset({"end", "release", "doubt", "quarantine", "answer"})


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
        run: int = 1,
        *,
        queue: str = "*",
        retires: bool = False,
        patience: float = PATIENCE,
        post: Post | None = None,
    ) -> None:
        """Make a sender; `patience`: with 0 a commit is tried twice, a frozen session is not waited for."""
        self.id = session
        self.execution = execution_of(session, run)
        self.sender = Sender(link, session, token, began, patience, self._seen)
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
        self.held: dict[int, Claim] = {}  # claims of this sender, by the key of their spec
        self.written: Version = 0  # the version of what the last round has written
        self.broken: SessionError | None = None
        self._cells = cells
        self._retires = retires
        self._link = link
        self._step = link.script(STEP)
        self._values = StoredValues(link, self.sender, cells)
        self._readers: dict[int, AttemptReader] = {}  # of attempts, by the key of their spec
        self._ahead: float | None = None  # the server's clock before ours
        self._said = b"running"  # the status, as it came

    @property
    def token(self) -> str:
        return self.sender.token

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
        words: list[Arg] = [self.token, self.sender.name, int(seconds * 1000)]
        status: bytes = self._link.script(RENEW)([keys_of(self.id) + "c"], words)
        return status.decode()

    def retire(self) -> None:
        """Note that another process has taken the token."""
        self.retired = True

    # --- commits -----------------------------------------------------------------------

    def commit(self, ops: Sequence[Op], mode: str = "") -> list[Claim]:
        """Carry out one transition; return the claims that it makes."""
        if self.broken is not None:
            raise self.broken
        asks, now = bool(ops) and ops[-1][0] == "claim" and ops[-1][1] > 0, monotonic()
        if asks and self.until is not None and now > self.until:
            ops, asks = [*ops[:-1], ("claim", 0)], False
        if asks and self._retires and self._ends_all(ops):
            mode += "r"
        sender = self.sender
        if sender.outside and sender.follows and now > self.answered + _QUIET:
            sender.begin_anew()
        quick = asks and now < self.answered + self.quick
        args = turn(ops, self._cells, self.queue) if quick else None
        if args is not None:
            mode = "t" + mode
        else:
            args = arguments(ops, self._cells, self.queue, lambda key: self.held[key].spec.task_id)
        if self.help_after is not None and self.ready and now > self.help_after:
            mode += "s"
            self.help_after = now + HELP
        try:
            reply = sender.send(self._step, mode, args, ops)
        except (SessionBusy, ServerFull, SchemaUnsupported):  # nothing was done, nothing was answered
            raise
        except BaseException as error:  # a signal's exception, too: what was sent may have been done
            if sender.outside and not sender.patience:
                sender.begin_anew()  # it has waited for nothing, and its next commit follows nothing
            else:
                self.broken = self._unknown(error)
            raise
        self.answered = monotonic()
        return self._take(reply, ops)

    def _seen(self, ops: Sequence[Op], connection: int) -> list[tuple[str, Version]]:
        """Return what the attempts that end with these have read before this connection."""
        ended = (self._readers.get(op[1]) for op in ops if op[0] in ("end", "round"))
        return [one for reader in ended if reader is not None for one in reader.seen_before(connection)]

    def begins(self) -> tuple[str, str]:
        """Return token and nonce of a process that makes the session: what it sends follows that."""
        self.answered = monotonic()
        return self.sender.begins()

    def create(self, line: str, facts: Mapping[str, str | bytes], lists: Sequence[str] = ()) -> bool:
        """Make the session, with these counters, and put it on lists; False if there is one of that name."""
        keys, pairs = [keys_of(self.id) + "c", *lists], [item for pair in facts.items() for item in pair]
        try:
            made = bool(self._link.script(CREATE)(keys, [line, *self.begins(), *pairs]) != b"exists")
        except KeyTaken as error:
            raise wrong_keys(self._link, self.id, lists) from error
        if not made:
            self.sender.begin_anew()
        return made

    def _ends_all(self, ops: Sequence[Op]) -> bool:
        """Return True if nothing is held after these."""
        held = len(self.held)
        return held == (ops[0][0] == "end") or held <= sum([op[0] in _GIVES_UP for op in ops])

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
            if token == "version":
                self.written = queue.encode()
                continue
            if token == "made":
                own = [op[1] for op in ops if op[0] == "task"]
                last = f"{self.sender.follows} {own[-1]}".encode() if own else b""
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
        known = "is not committed" if self.sender.tries == 1 else "may be committed, or not"
        self.sender.begin_anew()
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

    def close(self) -> None:
        self.sender.close()

    # --- facts -------------------------------------------------------------------------

    def clock(self) -> float:
        """Return the server's time, by which specs are due: the clocks of machines differ."""
        if self._ahead is None:
            self._ahead = self.patiently(self._difference)
        return time() + self._ahead

    def _difference(self) -> float:
        before = time()
        return self._link.now() - (before + time()) / 2

    @property
    def commits(self) -> int:
        """The number of commits by this sender."""
        return self.sender.number

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
        return self._link.patiently(ask, self.id, self.sender.patience)

    def has_ready(self) -> bool:
        return True  # others make ready what this one does not know of: ask

    def following(self) -> TaskSpec | None:
        return None  # not asked

    def on_loan(self) -> list[str]:
        return []  # what a body gets is a copy

    def on_loan_beside(self, name: str, own: int = 1) -> bool:
        return False

    def tear(self, names: Sequence[str]) -> None:
        """Do nothing: as above."""

    def afterwards(self, call: Callable[[], None]) -> None:
        call()

    def live(self) -> dict[str, list[Live]]:
        return {}

    def replace_live(self, copies: Mapping[Live, Live]) -> None:
        """Do nothing: no object is held here."""

    # --- values ------------------------------------------------------------------------

    def reader(self, key: int = 0) -> AttemptReader:
        """Return the values as one attempt sees them, that of the spec with this key."""
        reader = self._readers.get(key)
        if reader is None:
            reader = AttemptReader(self._values)
            if key in self.held:
                self._readers[key] = reader
        return reader

    def read_all(self, names: Sequence[str]) -> list[Look]:
        """Return values as of one moment; and of results, whether there is none this time."""
        return self._values.read_all(names)

    def read(self, name: str) -> Found | None:
        return self.read_all([name])[0][0]

    def names(self) -> list[str]:
        return self._values.names()
