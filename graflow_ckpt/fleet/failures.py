"""Failures: the tasks of a session that have failed, with what is kept of their errors.

    set aside    its spec is kept: resume runs it again      (the session failed, or was paused)
    given up     its error is kept, nothing else             (the session went on without it)

Read in pages, since each may have a traceback. Changes nothing and opens no value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.engine.account import Account
from graflow_ckpt.fleet.status import damaged
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.layout import keys_of

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """One task that has failed."""

    session: str
    task: str
    type: str  # of its exception
    message: str
    traceback: str
    attempts: int | None  # None: not known any more
    crashes: int  # how often it has taken its worker down
    queue: str | None
    set_aside: bool


def failures(link: RedisLink, session: str) -> Iterator[Failure]:
    """Those of one session, by the names of their tasks within a page."""
    prefix = keys_of(session)
    client: Any = link.client
    with _readable(link, session), translated(link.address):
        aside = dict(_spec(record) for record in client.hvals(f"{prefix}dead"))
        cursor: int | None = None
        seen: set[str] = set()
        while cursor != 0:
            cursor, page = client.hscan(f"{prefix}er", cursor or 0, count=_PAGE)
            found = {n.decode(): e[1:].decode(errors="replace") for n, e in page.items() if e[:1] == b"f"}
            for task in sorted(found.keys() - seen):
                yield _failure(session, task, found[task], aside.get(task))
            seen |= found.keys()


@contextmanager
def _readable(link: RedisLink, session: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError) as error:
        if isinstance(error, GraflowError):
            raise
        raise damaged(session, link.address, error) from error


def _spec(record: bytes) -> tuple[str, tuple[int, int, str]]:
    """Task, attempts, crashes and queue of what is set aside; its data is not looked at."""
    _, size, rest = record.split(b"\x1e", 2)
    fields = rest[int(size) :].split(b"\x1f", 10)
    return fields[1].decode(), (int(fields[3]) + 1, int(fields[9]), fields[8].decode())


def _failure(session: str, task: str, text: str, aside: tuple[int, int, str] | None) -> Failure:
    attempts, crashes, queue = aside or (None, 0, None)
    return Failure(session, task, *Account.read(text), attempts, crashes, queue, aside is not None)
