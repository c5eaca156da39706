"""Signs of life: what each pool says of itself once a second, and what its neighbours make of it.

    graflow:pools      pool -> its last sign, ms        graflow:pool:ID  what it does, gone after ten seconds

`health` is for probes: it answers for the pools of this place (this machine, or this container), and
looks at their processes itself. No worker needs what is kept here in order to work.

A trial is a scratch session that is made, worked on and deleted, with the rights of the user at hand: a user
whose ACL lacks one command could begin a session and not end it. Promise: every kind of command that a
session needs was sent, nothing is left, and no other keys were touched.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace

from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core.errors import GraflowError, ServerError, ServerRefuses
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.fleet.board import BoardLine
from graflow_ckpt.fleet.lists import POOLS, asked, pool_key
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.complaints import fact, translated
from graflow_ckpt.links.processes import describe, is_gone, is_near, made_of, myself
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.keys import CUT, RENEW, START, keys_of
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import frozen, read_state, write_state

FRESH = 10.0
"""Seconds after which a pool that has given no sign of life is not well."""

_FORGOTTEN = 3600  # seconds after which a pool that is gone leaves the list


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker, and what it runs."""

    name: str
    owner: Owner
    state: str
    session: str
    token: str
    seconds: float  # for which it has been running that
    slices: int


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool. `owner` is its parent; `age`: seconds since its last sign of life."""

    pool: str
    owner: Owner
    steward: Owner
    queues: tuple[str, ...]
    started: float
    version: str
    python: str
    draining: bool
    restarts: int
    workers: tuple[WorkerFacts, ...]
    swept: dict[str, int]
    age: float = 0.0


def worker_facts(name: str, line: BoardLine) -> WorkerFacts:
    """Return a line of the board, as others see it."""
    run = line.run
    session, token = run or ("", "")
    seconds = round(line.seconds, 3) if run else 0.0
    return WorkerFacts(
        name,
        replace(describe(line.pid), argv=""),
        line.state.name.lower(),
        session,
        token,
        seconds,
        line.slices,
    )


def sign(link: RedisLink, facts: PoolFacts) -> None:
    """Give a sign of life of this pool, and of what it does."""
    text = json.dumps(asdict(facts), separators=(",", ":"))
    client = link.client
    with translated(link.address):
        now = int(link.now() * 1000)
        client.zadd(POOLS, {facts.pool: now})
        client.zremrangebyscore(POOLS, "-inf", now - _FORGOTTEN * 1000)
        client.set(pool_key(facts.pool), text, px=int(FRESH * 1000))


def sign_off(link: RedisLink, pool: str) -> None:
    """Delete the signs of a pool that has ended as it should."""
    with translated(link.address):
        link.client.zrem(POOLS, pool)
        link.client.delete(pool_key(pool))


def pools(link: RedisLink) -> list[PoolFacts]:
    """Return all that have given a sign of life lately."""
    client = link.client
    found = []
    with asked(link, **{POOLS: "zset"}):
        now = link.now()
        listed = client.zrange(POOLS, 0, -1, withscores=True)
        pipe = client.pipeline(transaction=False)
        for name, _ in listed:
            pipe.get(pool_key(name.decode(errors="replace")))
        texts = pipe.execute(raise_on_error=False) if listed else []
    for (_, at), text in zip(listed, texts, strict=True):
        if isinstance(text, bytes) and (facts := _facts(text)) is not None:
            found.append(replace(facts, age=max(0.0, now - at / 1000)))
    return found


def _facts(text: bytes) -> PoolFacts | None:
    """Parse what a pool says of itself; None if no pool says that."""
    try:
        known = fact("a pool", text)
        workers = tuple(
            made_of(WorkerFacts, {**w, "owner": made_of(Owner, w["owner"])}) for w in known["workers"]
        )
        owners = {name: made_of(Owner, known[name]) for name in ("owner", "steward")}
        queues = tuple(map(str, known["queues"]))
        return made_of(PoolFacts, {**known, **owners, "queues": queues, "workers": workers})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def health(url: str, queues: Sequence[str] = ()) -> tuple[bool, str]:
    """Return whether the pools of this place (that serve these queues) are well, and a text that says so."""
    try:
        link = open_link(url)
    except GraflowError as error:
        return False, str(error)
    try:
        here = [pool for pool in pools(link) if is_near(pool.owner) and set(queues) <= set(pool.queues)]
    except GraflowError as error:
        return False, str(error)
    finally:
        link.close()
    if not here:
        return False, f"No pool of workers runs here, as far as {link.address} knows."
    said = [(_ills(pool), pool) for pool in here]
    text = "\n".join(_sentence(ills, pool) for ills, pool in said)
    return not any(ills for ills, _ in said), text


def _ills(pool: PoolFacts) -> list[str]:
    ills = []
    if is_gone(pool.owner):
        return [f"its parent (process {pool.owner.pid}) is gone"]
    if pool.age > FRESH:
        ills.append(f"it has given no sign of life for {pool.age:.0f} s")
    ills += [
        f"{worker.name} (process {worker.owner.pid}) is gone"
        for worker in pool.workers
        if is_gone(worker.owner)
    ]
    return ills


def _sentence(ills: list[str], pool: PoolFacts) -> str:
    busy = sum(bool(worker.session) for worker in pool.workers)
    what = f"pool {pool.pool}: {len(pool.workers)} workers, {busy} busy, on {', '.join(pool.queues)}"
    return f"{what}; {'; '.join(ills)}" if ills else f"{what}{' (draining)' if pool.draining else ''}"


_QUEUE = "doctor"
_LEASE = 15_000


def try_session(link: RedisLink) -> None:
    """Carry a session through its life; ServerRefuses names the command that this user may not use."""
    session, left = f"doctor-{secrets.token_hex(8)}", [*_NAMES]
    try:
        _live(link, session, left)
    finally:
        with suppress(ServerError), translated(link.address):  # else it expires by itself
            link.client.unlink(*[f"{keys_of(session)}{name}" for name in left])


def _live(link: RedisLink, session: str, left: list[str]) -> None:
    cells, key = SealedCells(session, None), f"{keys_of(session)}c"
    state = SessionState(session)
    state.values["x"] = (b"\x01", 1)
    write_state(link, state, cells, {"ttl": "60", "kept": "60"}, verb="create", flags="fl")
    with closing(RedisSession(link, session, cells)) as outside:
        left.append(f"x:{outside.token}")
        spec = (None, 0, 1, _QUEUE, "direct")
        made: list[Op] = [("put", "x", b"\x01", -1), ("append", "y", b"\x01"), ("skipped", "z")]
        outside.commit([*made, *(("enqueue", name, *spec) for name in ("a", "b"))])
        outside.commit([("later", "c", *spec, 0.0), ("expect", "d", 1, 1, 0), ("absorb", "d", 1)])
    owner = json.dumps(asdict(myself()))
    _, token, _, began = link.script(START)([key], ["", owner, _LEASE, "", new_nonce()])
    left.append(f"x:{token.decode()}")
    with closing(RedisSession(link, session, cells, token.decode(), began.decode(), retires=True)) as worker:
        (first,) = worker.commit([("claim", 1)])
        (again,) = worker.commit(
            [("end", first.spec.key, first.number, "retry", 0.0, "E: trial"), ("claim", 1)]
        )
        worker.read("y")
        link.script(RENEW)([key], [worker.token, worker.sender.name, _LEASE])
        link.script(CUT)([key], ["path"])
        with frozen(link, session, 5.0):
            read_state(link, session, cells)
        claims = worker.commit([("release", again.spec.key, 0), ("claim", 1)])
        while claims:
            claim = claims[0]
            claims = worker.commit(
                [("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)]
            )


_NAMES = (
    "c", "h", "dl", "dead", "g", "done", "sk", "pa", "er", "n", "r", "v", "t", "own", "qt", "tok", "ledger",
    f"q:{_QUEUE}", "a:y",
)  # fmt: skip


def hears(link: RedisLink) -> bool:
    """Return True if this user may use channels; without them progress is found by looking."""
    try:
        with translated(link.address):
            link.client.publish(f"{keys_of('doctor')}ev", "0")
    except ServerRefuses:
        return False
    return True


def try_queue(carrier: Carrier) -> None:
    """Post a token that no worker listens for, and withdraw it."""
    session, token = f"doctor-{secrets.token_hex(8)}", f"e0t0_{new_nonce()}"
    name = f"{_QUEUE}-{secrets.token_hex(4)}"
    carrier.post(session, token, name)
    carrier.withdraw(session, token)
    with translated(carrier.link.address):
        carrier.queue(name).delete()
