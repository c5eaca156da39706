"""A session in Redis that is read page by page, while nobody changes it.

The server answers others between two pages; commits of the session itself wait, and leases go on. What
was read is of one moment, or an error: the session is looked at again when the last page is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graflow_ckpt.core.errors import SessionBusy
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.damage import readable
from graflow_ckpt.sessions.layout import keys_of
from graflow_ckpt.sessions.ops import Cells
from graflow_ckpt.sessions.tables import TABLES, frozen, gone, parse_line, state_of

PAGE = 1000
"""Items of a table that are asked for at once."""

FEW = 100
"""The same of values: each may be large."""

FREEZE = 60.0
"""Seconds after which others go on if whoever reads has died."""


def read_paged(
    link: RedisLink, session: str, cells: Cells, *, page: int = PAGE, seconds: float = FREEZE
) -> SessionState:
    """The session as of one moment, values included; SessionBusy if that took too long."""
    prefix = keys_of(session)
    with frozen(link, session, seconds), translated(link.address), readable(session, link.address):
        client: Any = link.client
        line: bytes = client.hget(f"{prefix}c", "c")
        counters = parse_line(session, line)
        tables = {name: list(_table(client, f"{prefix}{name}", page)) for name in TABLES}
        names = [name for name in counters["queues"].split(",") if name]
        queues = [[x for pair in _sorted(client, f"{prefix}q:{n}", page) for x in pair] for n in names]
        values = dict(_hash(client, f"{prefix}v", min(page, FEW)))
        named = [field[1:] for field in values if field[:1] == b"="] if "a" in counters["flags"] else []
        lists = list(_lists(client, prefix, named, page))
        now = client.hget(f"{prefix}c", "c")
    if now is None:
        raise gone(link, session)
    if parse_line(session, now)["sequence"] != counters["sequence"]:
        raise SessionBusy(
            f"Session {session} changed while it was read: that took longer than {seconds:g} s.",
            hint="Pause it and try again, or keep its large values elsewhere.",
            session=session,
        )
    with readable(session, link.address):
        return state_of(session, line, tables, queues, values, lists, cells)


def _table(client: Any, key: str, page: int) -> Iterator[tuple[bytes, bytes]]:
    sorted_set = key.endswith((":dl", ":done"))
    return _sorted(client, key, page) if sorted_set else _hash(client, key, page)


def _hash(client: Any, key: str, page: int) -> Iterator[tuple[bytes, bytes]]:
    """Nobody writes it meanwhile; still a field may come twice."""
    found: dict[bytes, bytes] = {}
    cursor = 0
    while True:
        cursor, fields = client.hscan(key, cursor, count=page)
        found |= fields
        if not cursor:
            return iter(found.items())


def _sorted(client: Any, key: str, page: int) -> Iterator[tuple[bytes, bytes]]:
    start = 0
    while members := client.zrange(key, start, start + page - 1, withscores=True):
        yield from ((member, b"%.17g" % score) for member, score in members)
        start += page


def _lists(client: Any, prefix: str, names: list[bytes], page: int) -> Iterator[list[bytes]]:
    """What was appended, where something was; most values have nothing."""
    for start in range(0, len(names), FEW):
        some = names[start : start + FEW]
        pipe = client.pipeline(transaction=False)
        for name in some:
            pipe.lrange(prefix.encode() + b"a:" + name, 0, page - 1)
        for name, items in zip(some, pipe.execute(), strict=True):
            key, more = prefix.encode() + b"a:" + name, items
            while len(more) == page:
                more = client.lrange(key, len(items), len(items) + page - 1)
                items = items + more
            if items:
                yield [name, *items]
