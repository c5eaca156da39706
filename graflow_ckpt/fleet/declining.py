"""Declining: a worker that cannot run a session's program leaves the session to those that can.

    declined -> the next worker that waits is asked at once ... -> all have been asked: rest -> once more
             -> no worker has had it for too long: the session pauses, and its reason is the plan

A token that rests is in no queue: a steward posts it, so that idle workers do not pass it around. The rest
grows from 50 ms to a second. It costs the session no retries and no crashes, and others
hardly anything. A worker that can run the program deletes all these notes.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from time import monotonic

from graflow_ckpt.checkpoint.program.plan import COLUMNS, PlanRow
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.core.facts import Op
from graflow_ckpt.fleet.deaths import OPAQUE
from graflow_ckpt.fleet.lists import ACTIVE, DECLINE, asked
from graflow_ckpt.fleet.status import ENDED
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import head_of, keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import parse_line, read_state

log = logging.getLogger("graflow_ckpt.fleet")

SHORTEST, LONGEST = 50, 1000
"""Milliseconds for which a token rests."""

SAID = 60.0
"""Seconds until it is said again that a session is left to others."""

_MANY = 1000  # sessions of which is known when that was said
NOTED = ("declined", "decliners")
"""What a session knows of those that declined it."""

_AT = "declined:"


class Declining:
    """The part of one worker: it declines programs that it does not have."""

    def __init__(self, link: RedisLink, patience: float) -> None:
        self._link = link
        self._patience = patience
        self._who = f"{platform.node()}/{os.getpid()}"  # a worker's own; its children go by that, too
        self._said: dict[str, float] = {}

    def decline(self, session: RedisSession, error: Exception, ops: Sequence[Op] = ()) -> None:
        """Give the token back, with these ops; `error` says what is lacking here."""
        self.say(session.id, error)
        host, why = platform.node(), _sentence(error)
        key = f"{keys_of(session.id)}c"
        args = (session.token, self._who, host, why, int(self._patience * 1000), "", SHORTEST, LONGEST)
        what, since, until = self._link.script(DECLINE)([key], args)
        if what == b"overdue":
            reason = self._verdict(session.id, host, why, error, since / 1000)
            session.commit([*ops, ("status", "paused", reason), ("claim", 0)], mode="q")
        elif what == b"rest":
            self._rest(session, ops, until)
        else:
            session.commit([*ops, ("claim", 0)], mode="q")

    def _rest(self, session: RedisSession, ops: Sequence[Op], until: int) -> None:
        """Make the next token as usual, and leave it until a steward looks for it."""
        made: dict[str, int] = {}
        session.posts_by(lambda token, queue: made.__setitem__(token, until))
        session.commit([*ops, ("claim", 0)], mode="q")
        tokens = f"{keys_of(session.id)}tok"
        with asked(self._link, **{tokens: "zset", ACTIVE: "zset"}):
            if made:
                self._link.client.zadd(tokens, made, xx=True)
            self._link.client.zadd(ACTIVE, {session.id: until}, xx=True)

    def say(self, session: str, error: Exception) -> None:
        """Log that a session is left to others, by name."""
        if monotonic() > self._said.get(session, 0.0):  # it may come by every moment
            if len(self._said) > _MANY:
                self._said.clear()
            self._said[session] = monotonic() + SAID
            log.warning("session %s is left to other workers: %s", session, error, extra={"session": session})

    def _verdict(self, session: str, host: str, why: str, error: Exception, since: float) -> str:
        """Return the reason for which it pauses: which machine lacks what, and which tasks are concerned."""
        lines = [f"no worker has had its program for {since:.0f} s; {host}: {why}"]
        others = declined(self._link, session)
        lines += [f"{other}: {lacks}" for other, lacks in others.items() if other != host]
        rows = error.ids.get("table", ()) if isinstance(error, GraflowError) else ()
        if rows:
            state = read_state(self._link, session, OPAQUE, values=False)
            known = {
                spec.task_id: "running" if key in state.claimed else spec.status
                for key, spec in state.specs.items()
            }
            known |= dict.fromkeys(state.skipped, "skipped") | dict.fromkeys(state.completed, "completed")
            lines += _table([row._replace(state=known.get(row.task, "unreached")) for row in rows])
        return "\n".join(lines)


def _sentence(error: Exception) -> str:
    said = error.message if isinstance(error, GraflowError) else f"{type(error).__name__}: {error}"
    return said.encode(errors="backslashreplace").decode()  # a file's name may be no text


def _table(rows: Sequence[PlanRow]) -> list[str]:
    cells = [COLUMNS, *(tuple(row) for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(COLUMNS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


# --- what is known of it -----------------------------------------------------------------


def declined(link: RedisLink, session: str) -> dict[str, str]:
    """Return the machines whose workers do not have its program now, and what they lack."""
    key, line = f"{keys_of(session)}h", f"{keys_of(session)}c"
    with asked(link, **{key: "hash", line: "hash"}):
        counters, cold = head_of(link.client, link.address, session), link.client.hgetall(key)
    if counters is None or parse_line(session, counters)["status"] in ENDED or b"declined" not in cold:
        return {}
    found = {name.decode(errors="replace"): why.decode(errors="replace") for name, why in cold.items()}
    return {name.removeprefix(_AT): why for name, why in found.items() if name.startswith(_AT)}


def forget(link: RedisLink, session: str, *others: str) -> None:
    """Forget what was noted: a worker has it, or all are asked again. `others`: further notes to delete."""
    key = f"{keys_of(session)}h"
    with asked(link, **{key: "hash"}):
        names = [name for name in link.client.hkeys(key) if name.startswith(_AT.encode())]
        link.client.hdel(key, *NOTED, *others, *names)
