"""Answers: what becomes of tasks that ran when their worker died, where somebody has to say so.

A task with on_interrupted="ask" is set aside then, and its session pauses. An answer schedules it: `rerun`,
`skip` (the session goes on without it) or `fail`. Changes nothing for a task that is not in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graflow_ckpt.core.errors import SessionError
from graflow_ckpt.core.facts import Op
from graflow_ckpt.engine.bodiless import ANSWERS
from graflow_ckpt.engine.opening import in_doubt
from graflow_ckpt.fleet.asking import asked
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.layout import keys_of


def doubts(link: RedisLink, session: str) -> dict[str, int]:
    """The tasks that wait for an answer, and the keys of their specs."""
    key = f"{keys_of(session)}dead"
    client: Any = link.client
    with asked(link, **{key: "hash"}):
        records: dict[bytes, bytes] = client.hgetall(key)
    found = {}
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
