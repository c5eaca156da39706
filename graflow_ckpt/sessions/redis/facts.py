"""The facts of a session in Redis, beside its values: counters, owners, numbers of cuts, made tasks.

Who is no sender asks here, and knows none of its keys. Everything is as of now; an error says which session
at which server cannot be read. Not here: commits and values (session.py), whole tables (tables.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import call
from time import monotonic, sleep
from typing import Any, NamedTuple

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.core.facts import TaskSpec
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.complaints import fact, readable, translated
from graflow_ckpt.links.processes import named, owner_from
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import CUT, START, head_of, keys_of, notes_what_is_made
from graflow_ckpt.sessions.redis.ops import Arg, Cells, spec_of
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.tables import gone, read_line

POLICY_LOCK = 30_000
"""Milliseconds after which another worker may take a cut that one has begun."""

Ask = Callable[[], list[Any]]


class Holder(NamedTuple):
    """A token that a process has begun on."""

    token: str
    owner: Owner | None  # None if its record names none
    left: float | None  # seconds of its lease, negative once that is over; None without one


class RedisFacts:
    """The facts of one session."""

    def __init__(self, link: RedisLink, session: str) -> None:
        self.link = link
        self.session = session
        self._prefix = keys_of(session)

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """Yield the client, a redis.Redis, whose types allow a coroutine."""
        with translated(self.link.address), readable(self.session, self.link.address):
            yield self.link.client

    # --- counters and cold facts -------------------------------------------------------

    def exists(self) -> bool:
        return head_of(self.link.client, self.link.address, self.session) is not None

    def line(self) -> dict[str, str]:
        """Return its counters."""
        return read_line(self.link, self.session)

    def size(self) -> int:
        """Return the number of its specs, values and completions."""
        queues = [name for name in self.line()["queues"].split(",") if name]
        with self._asked() as client:
            pipe = client.pipeline(transaction=False)
            pipe.hlen(f"{self._prefix}v").zcard(f"{self._prefix}dl").zcard(f"{self._prefix}done")
            for name in queues:
                pipe.zcard(f"{self._prefix}q:{name}")
            return int(sum(pipe.execute()))

    def known(self, *names: str) -> dict[str, str]:
        """Return those of these cold facts that are there."""
        with self._asked() as client:
            found: list[bytes | None] = client.hmget(f"{self._prefix}h", names)
            named = zip(names, found, strict=True)
            return {name: value.decode() for name, value in named if value is not None}

    def get(self, name: str) -> str:
        """Return a cold fact; "" if it is not there."""
        return self.known(name).get(name, "")

    def parsed(self, name: str) -> dict[str, Any]:
        """Return a cold fact that is JSON; {} if it is not there."""
        text = self.get(name)
        with readable(self.session, self.link.address):
            return dict(fact(name, text or "{}"))

    def note(self, facts: Mapping[str, str]) -> None:
        with self._asked() as client:
            client.hset(f"{self._prefix}h", mapping=dict(facts))

    def note_first(self, name: str, text: str) -> None:
        """Note a fact unless it is there already."""
        with self._asked() as client:
            client.hsetnx(f"{self._prefix}h", name, text)

    def program(self) -> dict[str, Any] | None:
        """Return the tasks as the last run described them."""
        with self._asked() as client:
            raw = client.get(f"{self._prefix}program")
            return None if raw is None else dict(fact("its program", raw))

    def note_program(self, facts: Mapping[str, Any], seconds: int) -> None:
        with self._asked() as client:
            client.set(f"{self._prefix}program", json.dumps(facts, separators=(",", ":")), ex=seconds)

    # --- owners ------------------------------------------------------------------------

    def begin(self, owner: str, lease: float) -> tuple[Any, ...] | None:
        """Make a token and begin on it: that, the nonce that its first transition follows, the run from 2 on.

        None if the session has ended.
        """
        words: list[Arg] = ["", owner, int(lease * 1000), "", new_nonce()]
        reply = self.link.script(START)([f"{self._prefix}c"], words)
        return (reply[1].decode(), reply[3].decode(), *map(int, reply[4:])) if len(reply) > 2 else None

    def holders(self) -> list[Holder]:
        """Return who has begun on its tokens."""
        with self._asked() as client:
            owners: dict[bytes, bytes] = client.hgetall(f"{self._prefix}own")
            now = self.link.now()
            leases = dict(client.zrange(f"{self._prefix}tok", 0, -1, withscores=True))
            return [
                Holder(
                    token.decode(),
                    owner_from(record.partition(b"\x1e")[0]),
                    leases[token] / 1000 - now if token in leases else None,
                )
                for token, record in owners.items()
            ]

    def workers(self) -> list[str]:
        """Return the names of the processes that work on it, as far as is known."""
        return [named(one.owner) for one in self.holders() if one.left is not None and one.left >= 0]

    def held(self, token: str, cells: Cells) -> list[TaskSpec]:
        """Return what a token has claimed, the latest first: so it is released into its old order."""
        head_of(self.link.client, self.link.address, self.session)  # of an unknown format nothing can be read
        mine = []
        with self._asked() as client:
            fields: dict[bytes, bytes] = client.hgetall(f"{self._prefix}c")
            for record in (record for field, record in fields.items() if field.isdigit()):
                number, holder, spec = record.split(b"\x1f", 2)
                if holder == token.encode():
                    mine.append((int(number), spec_of(spec, cells)))
        return [spec for _, spec in sorted(mine, reverse=True)]


class SharedFacts(RedisFacts):
    """The facts of one session that those who work on it tell each other: of cuts, and of tasks they made."""

    # --- cuts --------------------------------------------------------------------------

    def number_path(self) -> int:
        """Return a number that no other path of the session has."""
        return int(self._tell("path")[0])

    def number_cut(self, transition: int) -> tuple[int, str | None]:
        """Return a cut's number, 0 if one of a later transition has one; and the id of the cut before."""
        number, *rest = self._tell("number", transition)
        with readable(self.session, self.link.address):
            return number, (rest[0].decode() or None) if rest else None

    def cut_saved(self, steps: int, number: str, path: str) -> None:
        self._tell("saved", steps, number, path)

    def cut_failed(self, steps: int) -> None:
        """Note that a cut was not written: no worker tries again before the policy is due once more."""
        self._tell("failed", steps)

    def _tell(self, *words: str | int) -> list[Any]:
        reply: list[Any] = self.link.script(CUT)([f"{self._prefix}c"], words)
        if reply[0] == b"gone":
            raise gone(self.link, self.session)
        return reply

    def last_cut(self) -> tuple[int, float]:
        """Return the step of the last cut, and the seconds since then, or since the session began."""
        with self._asked() as client:
            steps, at, made = client.hmget(f"{self._prefix}h", "cut_steps", "cut_at", "created")
            now = self.link.now()
            return int(steps or 0), now - float(at or made or now)

    @contextmanager
    def turn(self, patience: float = 0.0, ask: Callable[[Ask], list[Any]] = call) -> Iterator[bool]:
        """Yield True if this worker takes the cut that is due; it waits for so many seconds.

        `ask` asks again if a reply is lost: the turn is that of a nonce, which has it already then.
        """
        nonce, deadline, mine = new_nonce(), monotonic() + patience, True
        try:
            while not (mine := bool(ask(partial(self._tell, "turn", nonce, POLICY_LOCK))[0])):
                if monotonic() >= deadline:
                    break
                sleep(0.01)
            yield mine
        finally:
            if mine:  # or not known
                with suppress(GraflowError):  # it ends by itself
                    self._tell("pass", nonce)

    # --- tasks that were made at run time ----------------------------------------------

    def makes(self) -> tuple[int, dict[str, bytes]]:
        """Return how often one was made, and the records of all, by name."""
        with self._asked() as client:
            times = int(client.hget(f"{self._prefix}h", "makes") or 0)
            found: dict[bytes, bytes] = client.hgetall(f"{self._prefix}t")
            return times, {name.decode(): record for name, record in sorted(found.items())}

    def made(self, names: Iterable[str]) -> list[bytes | None]:
        """Return the records of these."""
        with self._asked() as client:
            found: list[bytes | None] = client.hmget(f"{self._prefix}t", [*names])
            return found

    def makes_noted(self, numbers: Iterable[int]) -> list[bytes | None]:
        """Return what is noted of the times with these numbers: a nonce and a name."""
        with self._asked() as client:
            found: list[bytes | None] = client.hmget(f"{self._prefix}h", [f"m:{n}" for n in numbers])
            return found

    def last_make_is(self, number: int, noted: bytes) -> bool:
        """Return True if that time is noted so, and all workers of the session note what they make."""
        with self._asked() as client:
            pipe = client.pipeline(transaction=False)
            form, last = (
                pipe.hget(f"{self._prefix}c", "format").hget(f"{self._prefix}h", f"m:{number}").execute()
            )
            return notes_what_is_made(form) and bool(last == noted)
