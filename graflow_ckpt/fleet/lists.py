"""The lists of a fleet: which sessions there are, when each is to be looked at, which process works where.

    graflow:sessions     zset  session -> when it was accepted, ms
    graflow:active       zset  session -> when a steward has to look at it next, ms; 0 is at once
    graflow:host:PLACE   hash  "session token" -> owner, for the slices that run in one place
    graflow:pools        zset  pool -> last sign of life, ms;  graflow:pool:ID what it does, for ten seconds

They are advisory: what counts is in each session. A place is a machine since its last start, and a pid
namespace: where a pid means the same process to all. Also the scripts of a fleet, beside those of sessions.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from typing import Any

from redis import RedisError

from graflow_ckpt.core.errors import BadSessionId, GraflowError, ServerError
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.complaints import taken, translated
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of, source

log = logging.getLogger("graflow_ckpt.fleet")

SESSIONS = "graflow:sessions"
ACTIVE = "graflow:active"
POOLS = "graflow:pools"
LISTS = (SESSIONS, ACTIVE)  # those that a session is put on by the script that makes it

DECLINE, DISCARD, LOOK, PURGE, ROTA = (
    source(name, "graflow_ckpt.fleet") for name in ("decline", "discard", "look", "purge", "rota")
)

SOON = 1000
"""Milliseconds within which a steward looks at each active session anyway."""


@cache
def place() -> str:
    """Return the place that this process runs in."""
    me = myself()
    return re.sub(r"[^A-Za-z0-9-]", "", f"{me.boot}-{me.pid_ns}") or me.host


def host_key(where: str) -> str:
    return f"graflow:host:{where}"


def pool_key(pool: str) -> str:
    return f"graflow:pool:{pool}"


def session_in(name: bytes) -> str | None:
    """Return the session that a member of a list names; None for anything else that is there."""
    try:
        return check_session_id(name.decode())
    except (BadSessionId, UnicodeDecodeError):
        return None


def sessions_in(names: Iterable[bytes]) -> list[str]:
    """Return the sessions that are named, without what names none."""
    return [session for name in names if (session := session_in(name)) is not None]


def discard(link: RedisLink, session: str, maker: str | bytes) -> bool:
    """Delete a submission that its maker does not complete, and unlist it; return True if nothing is left."""
    left: bytes = link.script(DISCARD)([f"{keys_of(session)}c", *LISTS], [maker])
    return left == b"nothing"


def owner_text(owner: Owner) -> str:
    """Return a process as text, as a session keeps it."""
    return json.dumps(asdict(owner), separators=(",", ":"))


class Presence:
    """A worker's entries in the list of its place, and what a steward has to know when it has left."""

    def __init__(self, link: RedisLink, owner: str) -> None:
        self._link = link
        self.owner = owner
        self._key = host_key(place())
        self._said = False

    def begin(self, session: str, token: str, pipe: Any) -> None:
        """Add it to `pipe`: the worker's first look at the session is the same round trip."""
        pipe.hset(self._key, f"{session} {token}", self.owner)

    def noted(self, reply: Any) -> None:
        """Log a refused write. Without the list a steward takes over when the lease runs out, not at once."""
        if isinstance(reply, Exception) and not self._said:
            self._said = True
            log.error("%s cannot be written to: %s", self._key, reply)

    def end(self, session: str, token: str) -> None:
        """Remove the slice, which is over. What is delayed by less than a steward's round is announced."""
        with suppress(
            RedisError, GraflowError
        ):  # an entry too many is found to be void; a round takes a second
            client = self._link.client
            client.hdel(self._key, f"{session} {token}")
            delayed = f"{keys_of(session)}dl"
            for _, due in client.zrange(delayed, 0, 0, withscores=True):
                seconds, micros = client.time()
                if due * 1000 < seconds * 1000 + micros / 1000 + SOON:
                    client.zadd(ACTIVE, {session: int(due * 1000)}, xx=True)


@contextmanager
def asked(link: RedisLink, **kinds: str) -> Iterator[None]:
    """Translate errors of the client library that are raised inside on keys of ours.

    `kinds`: what each key is to hold, `**{"graflow:sessions": "zset"}`; something else under it is named.
    """
    try:
        with translated(link.address):
            yield
    except ServerError as error:
        if error.ids.get("code") != "WRONGTYPE":
            raise
        with translated(link.address):
            raise taken(link.address, kinds, link.client.type) from error
