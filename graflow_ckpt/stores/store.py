"""The checks of all stores before they ask their place: the store of a lease, and the name in a path.

    class KeyedStore(Store[KeyedLease]):
        own = KeyedLease

Promise: a lease of another store is refused, and so is a path that leads to another one.
Not here: what is asked then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Generic, Protocol, TypeVar, Unpack

from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores import batches
from graflow_ckpt.stores.batches import Facts
from graflow_ckpt.stores.names import base_of, elsewhere


class _Placed(Lease, Protocol):
    where: str


L = TypeVar("L", bound=_Placed)


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
        """Return the last accepted of those whose metas say so; look at all of them (batches.py)."""
        return batches.newest(self.list(session), limit, **facts)

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
        if "://" in path:
            if (placed := self.takes(path)) is None:
                raise elsewhere(path, self.folder)
            path = placed.rpartition("/")[2]
        return base_of(path)
