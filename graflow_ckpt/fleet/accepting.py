"""Accepting: how a session is made. It is there as a whole, or it never runs.

    init, by its maker, and listed -> its specs, page by page -> running: the first tokens are posted

A session is listed by the script that makes it. It is `init` until its last spec is in, so that
a submission that was cut short never runs in part. One that fails is deleted, if the server can be
reached; one whose maker was killed makes room for the next of that id, or is cleared by a steward.

Arguments of a task that is called are bound as Python would bind them: too many, unknown, twice or lacking
is a TypeError where the call is made. A value that cannot be stored is refused there, by the name of its
parameter.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from operator import index
from typing import Any, get_args

from graflow_ckpt.checkpoint.seals import LIMIT, SealedCells
from graflow_ckpt.checkpoint.values.codec import check_storable
from graflow_ckpt.core import arguments, errors
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Cell, Op, check_session_id
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.adopt import KEPT
from graflow_ckpt.engine.body.bind import SPREAD, Binding
from graflow_ckpt.engine.resuming import next_run
from graflow_ckpt.engine.settings import OnFinished
from graflow_ckpt.engine.shared_home import SharedHome, replace_finished
from graflow_ckpt.fleet.lists import LISTS, asked, discard, owner_text
from graflow_ckpt.fleet.programs import proof
from graflow_ckpt.links.processes import describe, is_gone, owner_from
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of, wrong_keys
from graflow_ckpt.sessions.redis.names import PRIORITIES
from graflow_ckpt.sessions.redis.ops import SMALL
from graflow_ckpt.sessions.redis.session import RedisSession

# Any, here and below: arguments are whatever the user passes.
Call = tuple[Sequence[Any], Mapping[str, Any]]

_MANY = 1000  # specs per script: more would hold the server up for too long
_LARGE = 1 << 20  # bytes of them, for the same reason


def call_of(item: Any) -> Call:
    """Return the call of an item: of a tuple its items, of a dict those by name, else the item alone."""
    if type(item) is tuple:
        return item, {}
    if type(item) is dict:
        return (), item
    return (item,), {}


def data_of(binding: Binding, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Cell | None:
    """Return the data of one call."""
    task = binding.task.name
    names = [*binding.parameters]
    if len(args) > len(names):
        most = f"{len(names)} argument{'' if len(names) == 1 else 's'}" if names else "no arguments"
        raise TypeError(f"{task}() takes {most}, and {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    if kwargs:
        twice, unknown = given.keys() & kwargs.keys(), kwargs.keys() - set(names)
        if twice or unknown:
            which = min(twice or unknown)
            raise TypeError(f"{task}() got {'two values for' if twice else 'an unknown'} argument {which!r}")
        given |= kwargs
    if len(given) < len(names):
        lacking = [p.name for p in binding.parameters.values() if p.required and p.name not in given]
        if lacking:
            raise TypeError(f"{task}() lacks the argument {lacking[0]!r}")
    if not given:
        return None
    if len(given) == 1 and binding.data in given and type(given[binding.data]) is not dict:
        return check_storable(binding.data, given[binding.data])
    try:
        return check_storable("arguments", {SPREAD: given})
    except errors.NotStorable:
        for name, value in given.items():  # which one is it?
            check_storable(name, value)
        raise


def pages(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """Yield new specs, in the portions in which they are sent; the last may be empty."""
    page: list[Op] = []
    size = 0
    for op in ops:
        page.append(op)
        if type(op[2]) is bytes:
            size += len(op[2])
        if len(page) == _MANY or size > _LARGE:
            yield page
            page, size = [], 0
    yield page


TTL = 7 * 24 * 3600
"""Seconds for which a session that has completed is kept, with its results."""

PATIENCE = 10.0
"""Seconds for which a submission that has begun waits for a server that is away."""

GIVEN = "given"
"""In the facts of a session that was named: the digest of the arguments that it was submitted with."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a session is accepted."""

    session: str | None = None
    existing: OnFinished | None = None  # what is asked of a session that is there already; None: as "error"
    max_steps: int | None = None
    ttl: float = TTL
    kept: float = KEPT
    store: str = ""  # of its checkpoints; "" is the session's own server
    ledger: bool = False  # every commit leaves a line: for proofs and audits, and for events() of loops
    delay: float = 0.0  # seconds until it may begin
    priority: int | None = None  # of a call, instead of its task's
    value_limit: int = LIMIT  # bytes of one value: an argument, a result, what is in the channel

    def __post_init__(self) -> None:
        if self.session is not None:
            arguments.kind("session", self.session, str, "a session id")
            check_session_id(self.session)
        if self.existing not in (None, *get_args(OnFinished)):
            raise arguments.refused("existing", self.existing, "'return', 'again' or 'error'")
        arguments.lasting("delay", self.delay)
        arguments.lasting("ttl", self.ttl, least=1)
        arguments.lasting("kept", self.kept)
        arguments.kind("store", self.store, str, "an address")
        arguments.flag("ledger", self.ledger)
        if self.priority is not None:
            arguments.whole("priority", self.priority)
        if self.priority is not None and not -PRIORITIES < index(self.priority) < PRIORITIES:
            raise errors.GraphError(
                f"priority={self.priority!r}: on a fleet it is between -{PRIORITIES} and {PRIORITIES}."
            )
        if self.max_steps is not None:
            arguments.counted("max_steps", self.max_steps)
        arguments.counted("value_limit", self.value_limit, least=SMALL)


@dataclass(frozen=True, slots=True)
class Draft:
    """A session that is to be."""

    session: str
    facts: Mapping[str, str | bytes]
    pages: Iterable[Sequence[Op]]
    cap: int | None
    terms: Terms

    def kept_in(self, store: str, cells: SealedCells) -> Draft:
        """Return it with that place for its checkpoints, and the proof that its maker has named it."""
        seal = proof(cells, str(self.facts["code"]), str(self.facts["starts"]), store)
        return replace(self, facts={**self.facts, "store": store, "proof": seal})


def accept(link: RedisLink, draft: Draft, cells: SealedCells, on_emitted: Any) -> bool:
    """Make a session; False if there is one that is to begin again. `on_emitted`: posts tokens."""
    session = draft.session
    sender = RedisSession(link, session, cells, patience=PATIENCE, post=on_emitted)
    made = False
    try:
        made = _made(link, draft, sender)
        if made:
            for ops in _with_end(draft.pages):
                sender.commit(ops)
        elif draft.terms.existing == "return":
            same(link, draft)
        elif draft.terms.existing != "again":
            raise errors.SessionExists(
                f"There is a session {draft.session} already.",
                hint='Give another key or session id, or existing="return" to get that one, or "again".',
                session=draft.session,
            )
        return made or draft.terms.existing == "return"
    except errors.SessionExists:
        raise
    except BaseException as error:
        refused = isinstance(error, errors.ServerError) and not isinstance(error, errors.ServerGone)
        _take_back(link, session, error, certain=refused and not made)
        raise
    finally:
        sender.close()


def begin_again(former: SharedHome, last: SessionState, draft: Draft, home: SharedHome, post: Any) -> int:
    """Make the next run of a finished session, as `former` has followed it; return its number."""
    link, state = home.facts.link, next_run(last, home.store, draft.terms.max_steps)
    state.run_at_once(draft.cap)
    for ops in draft.pages:
        apply(state, ops, link.now())
    flags = "fl" if draft.terms.ledger else "f"
    replace_finished(home, former, state, facts_of(link, draft), post=post, flags=flags, listed=LISTS)
    return state.run


def same(link: RedisLink, draft: Draft) -> None:
    """Refuse to return the result of other arguments."""
    key = f"{keys_of(draft.session)}h"
    with asked(link, **{key: "hash"}):
        theirs: bytes | None = link.client.hget(key, GIVEN)
    if theirs is not None and theirs.decode(errors="replace") != draft.facts.get(GIVEN):
        raise errors.SessionExists(
            f"Session {draft.session} was submitted with other arguments; its result is not theirs.",
            hint="Give each call a key of its own, or no key.",
            session=draft.session,
        )


def facts_of(link: RedisLink, draft: Draft) -> dict[str, str | bytes]:
    """Return what is kept of a session that is made here, in addition to its state."""
    terms = draft.terms
    cold: dict[str, str | bytes] = {
        "store": terms.store or link.address, **draft.facts, "epoch": "1", "maker": _maker(os.getpid()),
        "ttl": str(int(terms.ttl)), "kept": str(int(terms.kept)),
        "host": platform.node(), "python": platform.python_version(),
    }  # fmt: skip
    if terms.value_limit != LIMIT:
        cold["limit"] = str(terms.value_limit)
    return cold


def _made(link: RedisLink, draft: Draft, sender: RedisSession) -> bool:
    cold, terms = facts_of(link, draft), draft.terms
    cap = "" if draft.cap is None else draft.cap
    steps = "" if terms.max_steps is None else terms.max_steps
    line = f"init|0|0|1|1|1|{steps}|{cap}|{'fl' if terms.ledger else 'f'}||"
    made = sender.create(line, cold, LISTS)
    return made or (_abandoned(link, draft.session) and sender.create(line, cold, LISTS))


def _abandoned(link: RedisLink, session: str) -> bool:
    """Delete what a dead process never completed; return True if that was so."""
    prefix = keys_of(session)
    if link.client.type(f"{prefix}c") != b"hash":
        raise wrong_keys(link, session)
    with asked(link, **{f"{prefix}h": "hash"}):
        maker = link.client.hget(f"{prefix}h", "maker")
    owner = owner_from(maker or b"")
    if owner is None or not is_gone(owner):
        return False
    return discard(link, session, maker)


def _take_back(link: RedisLink, session: str, error: BaseException, *, certain: bool) -> None:
    """Delete what is half done, and say in the error how far it got. `certain`: it was never there."""
    with suppress(errors.GraflowError):
        certain = certain or discard(link, session, _maker(os.getpid()))
    if certain:
        error.add_note(f"Session {session} was not accepted, and nothing of it is left.")
    else:
        error.add_note(f"Whether session {session} was accepted is not known; if not, it will never run.")


@cache
def _maker(pid: int) -> str:
    """Return this process, as a session names its maker; a forked child is another one."""
    return owner_text(describe(pid))


def _with_end(pages: Iterable[Sequence[Op]]) -> Iterator[list[Op]]:
    """Start the session with its last page, in the same transition."""
    page: list[Op] = []
    empty = True
    for following in pages:
        if page:
            empty = False
            yield page
        page = list(following)
    end: list[Op] = [("status", "running", "")]
    if empty and not page:
        end.append(("claim", 0))  # no worker will ever see that nothing is left
    yield [*page, *end]
