"""Following: what happens in a session, as seen from outside, while it happens.

A bell rings with most commits; the rest is found by looking now and then. Nothing depends on having heard
it: each look goes on from the last step that was seen, so a connection that is lost, and a follower
that begins again with `after`, miss nothing that is still kept.

A task with on_interrupted="ask" whose worker died is set aside, and its session pauses. An answer schedules
it: `rerun`, `skip` (the session goes on without it) or `fail`. Changes nothing for a task that is not in
doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Literal

from redis import RedisError

from graflow_ckpt.core.errors import ServerGone, ServerRefuses, SessionError
from graflow_ckpt.core.facts import Op
from graflow_ckpt.engine.bodiless import ANSWERS
from graflow_ckpt.engine.taking_part import in_doubt
from graflow_ckpt.fleet.asking import asked
from graflow_ckpt.links.complaints import readable
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.layout import keys_of

LOOK = 0.5
"""Seconds between looks where nothing announces a change."""

AWAY = 60.0
"""Seconds for which a server that was there, and is away, is waited for."""

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened in a session."""

    kind: Literal["task", "status"]  # a task has completed; the status is another one now
    name: str  # of the task, or what the status is
    step: int


class Changes:
    """Whenever there may be something new to see, until the time is over: `for _ in changes: …`."""

    def __init__(self, link: RedisLink, session: str, timeout: float | None) -> None:
        self._link = link
        self._channel = f"{keys_of(session)}ev"
        self._deadline = None if timeout is None else monotonic() + timeout
        self._bell: Any = None  # a redis.client.PubSub
        self._deaf = False  # the user may read no channels: a look now and then has to do
        self._away: float | None = None  # until when the server is waited for

    def __iter__(self) -> Iterator[None]:
        try:
            self._listen()  # from here on nothing is missed
            while True:
                yield
                left = LOOK if self._deadline is None else min(LOOK, self._deadline - monotonic())
                if left <= 0:
                    return
                self._wait(left)
        finally:
            self._hang_up()

    def lost(self, error: ServerGone) -> None:
        """The server did not answer: raises if it has not for too long."""
        self._hang_up()
        now = monotonic()
        if self._away is None:
            self._away = now + AWAY
        elif now > self._away:
            raise error

    def found(self) -> None:
        """It has answered."""
        self._away = None

    def _listen(self) -> None:
        if self._deaf:
            return
        try:
            with asked(self._link):
                self._bell = self._link.client.pubsub(ignore_subscribe_messages=True)
                self._bell.subscribe(self._channel)
                self._bell.get_message(timeout=1.0)
        except ServerRefuses:
            self._deaf = True
            self._hang_up()

    def _wait(self, seconds: float) -> None:
        try:
            if self._bell is None:
                self._listen()
            if self._deaf:
                sleep(min(seconds, 0.1))
                return
            self._bell.get_message(timeout=seconds)
            while self._bell.get_message(timeout=0) is not None:
                pass  # many commits, one look
        except (RedisError, ServerGone):
            self._hang_up()
            sleep(min(seconds, 0.1))

    def _hang_up(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            with suppress(RedisError):
                bell.close()


def completions(link: RedisLink, session: str, after: int) -> Iterator[Progress]:
    """In order, from a step on. Of a task that completes again and again all, if the session has a ledger."""
    prefix = keys_of(session)
    client: Any = link.client
    names = {f"{prefix}ledger": "list", f"{prefix}done": "zset"}
    with asked(link, **names):
        whole = bool(client.exists(f"{prefix}ledger"))
    with readable(session, link.address):
        yield from (_of_ledger if whole else _of_tasks)(link, client, prefix, after)


def _of_tasks(link: RedisLink, client: Any, prefix: str, after: int) -> Iterator[Progress]:
    while True:
        with asked(link, **{f"{prefix}done": "zset"}):
            found = client.zrangebyscore(f"{prefix}done", f"({after}", "+inf", 0, _PAGE, withscores=True)
        for name, step in found:
            after = int(step)
            yield Progress("task", name.decode(), after)
        if len(found) < _PAGE:
            return


def _of_ledger(link: RedisLink, client: Any, prefix: str, after: int) -> Iterator[Progress]:
    """One line per end of any kind: there are at least as many as steps."""
    at = after
    while True:
        with asked(link, **{f"{prefix}ledger": "list"}):
            found = client.lrange(f"{prefix}ledger", at, at + _PAGE - 1)
        at += len(found)
        for line in found:
            _, step, task, _, _, how, *_ = line.decode(errors="replace").split("\x1f")
            if how == "completed" and int(step) > after:
                after = int(step)
                yield Progress("task", task, after)
        if len(found) < _PAGE:
            return


def doubts(link: RedisLink, session: str) -> dict[str, int]:
    """The tasks that wait for an answer, and the keys of their specs."""
    key = f"{keys_of(session)}dead"
    client: Any = link.client
    with asked(link, **{key: "hash"}):
        records: dict[bytes, bytes] = client.hgetall(key)
    found = {}
    with readable(session, link.address):
        for number, record in records.items():
            _, size, rest = record.split(b"\x1e", 2)
            fields = rest[int(size) :].split(b"\x1f", 6)
            if fields[5] == b"doubt":
                found[fields[1].decode()] = int(number)
    return found


def as_ops(link: RedisLink, session: str, answers: Mapping[str, str], *, some: bool = False) -> list[Op]:
    """The answers as ops. InDoubt if one is lacking, unless `some` will do; SessionError for a task that is
    not in doubt, or an answer that is none."""
    wrong = [how for how in answers.values() if how not in ANSWERS]
    if wrong:
        raise SessionError(f"{wrong[0]!r} is no answer.", hint=f"There are: {', '.join(ANSWERS)}.")
    asked_for = doubts(link, session)
    strange = [task for task in answers if task not in asked_for]
    if strange:
        raise SessionError(
            f"Task {strange[0]!r} of session {session} does not wait for an answer.",
            hint=f"Those do: {', '.join(asked_for) or 'none'}.",
            session=session,
            task=strange[0],
        )
    lacking = [task for task in asked_for if task not in answers]
    if lacking and not some:
        raise in_doubt(session, lacking)
    return [("answer", asked_for[task], ANSWERS[how]) for task, how in answers.items()]
