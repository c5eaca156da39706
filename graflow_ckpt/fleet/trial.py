"""A trial: a scratch session is made, worked on and taken away, with the rights of the user at hand.

A server says what is refused only when it is asked for: a user whose ACL lacks one command could begin a
session and not end it. Promise: every kind of command that a session needs was sent, nothing is left, and
nobody else's keys were touched. Not here: how the server is set up (links/examination.py).
"""

from __future__ import annotations

import json
import secrets
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any

from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.errors import ServerError, ServerRefuses
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.layout import CUT, RENEW, START, keys_of
from graflow_ckpt.sessions.redis import RedisSession, new_nonce
from graflow_ckpt.sessions.tables import frozen, read_state, write_state

_QUEUE = "doctor"
_LEASE = 15_000


def try_session(link: RedisLink) -> None:
    """Carry a session through its life; ServerRefuses names the command that this user may not use."""
    session, left = f"doctor-{secrets.token_hex(8)}", [*_NAMES]
    try:
        _live(link, session, left)
    finally:
        client: Any = link.client
        with suppress(ServerError), translated(link.address):  # else it expires by itself
            client.unlink(*[f"{keys_of(session)}{name}" for name in left])


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
        link.script(RENEW)([key], [worker.token, worker.sender, _LEASE])
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
    "c", "h", "dl", "dead", "g", "done", "sk", "pa", "er", "n", "v", "t", "own", "qt", "tok", "ledger",
    f"q:{_QUEUE}", "a:y",
)  # fmt: skip


def hears(link: RedisLink) -> bool:
    """Whether this user may use channels; without them progress is found by looking."""
    try:
        with translated(link.address):
            link.client.publish(f"{keys_of('doctor')}ev", "0")
    except ServerRefuses:
        return False
    return True


def try_queue(carrier: Carrier) -> None:
    """Post a token that nobody listens for, and take it back."""
    session, token = f"doctor-{secrets.token_hex(8)}", f"e0t0_{new_nonce()}"
    name = f"{_QUEUE}-{secrets.token_hex(4)}"
    with translated("RQ's server"):
        carrier.post(session, token, name)
        carrier.withdraw(session, token)
        carrier.queue(name).delete()
