"""The checks of all stores before they ask their place, and their search where there is no index.

    class KeyedStore(Store[KeyedLease]):
        own = KeyedLease

Promise: a lease of another store is refused, and so is a path that leads to another one.

Without an index all metas are looked at for the newest. Their order is that of commits, as far as metas
tell. Within a session it is the one in which the session's own checkpoints are listed; between sessions, and
for other names, it is their `created_at`, the clock of their writer. One that cannot be read is put beside
the next newer one of its session, else first, where a user sees it. Of a long listing no more than `limit`
metas are in memory. Not here: what is asked then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.names import base_of, elsewhere, facts_in, session_of
from graflow_ckpt.stores.owners import HeldLease

Listed = tuple[str, bytes]
"""A path and its meta."""


class Facts(TypedDict, total=False):
    """The fields of a meta that it is chosen by; None: whatever it is."""

    workflow: str | None
    status: str | None


class Filters(Facts, total=False):
    """The fields of `Facts`, and the session."""

    session: str | None


L = TypeVar("L", bound=HeldLease)


class Store(Generic[L]):
    """A store. `own`: the class of its leases."""

    own: ClassVar[type]
    drops_along: ClassVar[bool] = False
    encoding: tuple[str, ...] = ()
    keys: Mapping[str, bytes] = MappingProxyType({})

    folder: str

    @property
    def url(self) -> str:
        return self.folder

    @property
    def _home(self) -> str:
        """The place that its leases say they are of."""
        return self.folder

    def takes(self, path: str) -> str | None:
        """Return the path as it is written here; None if it leads to another store."""
        raise NotImplementedError

    def unsafe(self, path: str) -> str | None:
        """Return None: the users that can write to a server or bucket are not known; the seal decides."""
        return None

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        raise NotImplementedError

    def newest(
        self, limit: int, *, session: str | None = None, **facts: Unpack[Facts]
    ) -> Sequence[tuple[str, bytes]]:
        """Return the last accepted of those whose metas say so; look at all of them."""
        return newest_of(self.list(session), limit, **facts)

    def delete(self, path: str) -> bool:
        return self.delete_many([path]) > 0

    def delete_many(self, paths: Iterable[str]) -> int:
        raise NotImplementedError

    def _own(self, lease: Lease) -> L:
        if not isinstance(lease, self.own):
            raise TypeError(f"a lease of this store is needed, not {type(lease).__name__}")
        mine: L = lease  # type: ignore[assignment]  # `own` is the class that L means
        if mine.where != self._home:
            raise TypeError(f"a lease of this store is needed, not one of {mine.where}")
        return mine

    def _name(self, path: str) -> str:
        """Return the name that a path of this store means, without the suffix of a part."""
        folder, _, name = path.rpartition("/")
        if folder == self.folder and session_of(base := base_of(name)) is not None:
            return base  # as it is listed and saved
        if "://" in path:
            if (placed := self.takes(path)) is None:
                raise elsewhere(path, self.folder)
            path = placed.rpartition("/")[2]
        return base_of(path)


# --- without an index ----------------------------------------------------------------------


_ALL = 1 << 62


def newest_of(listing: Iterable[Listed], limit: int, **wanted: Unpack[Facts]) -> Sequence[Listed]:
    """Return the newest of what `list` gives: the newest of a session first, sessions in any order."""
    dated = ((when, found) for when, found, facts in _dated(listing) if _fit(facts, wanted))
    return [found for _, found in nlargest(limit, dated, key=lambda each: each[0])]


def within(limit: int) -> int:
    """Bound a limit to what an index, and a column of 64 bits, can hold: there never are so many."""
    return min(max(limit, 0), _ALL)


def _dated(listing: Iterable[Listed]) -> Iterator[tuple[float, Listed, dict[str, Any]]]:
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
