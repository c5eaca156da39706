"""The search of a store without an index: look at all metas for the newest of them.

Promise: the order is that of commits, as far as metas tell. Within a session it is the one in which the
session's own checkpoints are listed; between sessions, and for other names, it is their `created_at`, the
clock of their writer. One that cannot be read is put beside the next newer one of its session, else
first, where a user sees it. Of a long listing no more than `limit` metas are in memory.
Not here: stores that know the order of their commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any, TypedDict, Unpack

from graflow_ckpt.stores.names import base_of, facts_in, session_of

_Listed = tuple[str, bytes]


class Facts(TypedDict, total=False):
    """The fields of a meta that it is chosen by; None: whatever it is."""

    workflow: str | None
    status: str | None


class Filters(Facts, total=False):
    """The fields of `Facts`, and the session."""

    session: str | None


_ALL = 1 << 62


def newest(listing: Iterable[_Listed], limit: int, **wanted: Unpack[Facts]) -> Sequence[_Listed]:
    """Return the newest of what `list` gives: the newest of a session first, sessions in any order."""
    dated = ((when, found) for when, found, facts in _dated(listing) if _fit(facts, wanted))
    return [found for _, found in nlargest(limit, dated, key=lambda each: each[0])]


def within(limit: int) -> int:
    """Bound a limit to what an index, and a column of 64 bits, can hold: there never are so many."""
    return min(max(limit, 0), _ALL)


def _dated(listing: Iterable[_Listed]) -> Iterator[tuple[float, _Listed, dict[str, Any]]]:
    """Yield each with the time to sort by. A clock that was put back makes none older than an earlier one."""
    latest: dict[str, float] = {}
    for path, raw in listing:
        facts = facts_in(raw)
        when = _seconds(facts.get("created_at"))
        session = session_of(base_of(path.rpartition("/")[2]))
        if session is not None:
            when = latest[session] = min(when, latest.get(session, when))
        yield when, (path, raw), facts


def _fit(facts: dict[str, Any], wanted: Facts) -> bool:
    return all(value in (None, facts.get(name)) for name, value in wanted.items())


def _seconds(created_at: object) -> float:
    try:
        made = datetime.fromisoformat(str(created_at))
        return (made if made.tzinfo is not None else made.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return float("inf")
