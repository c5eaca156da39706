"""A place at which something happens before its n-th operation, for every n: the tests of keyed stores walk
through all points at which a process can be stopped, killed or cut off.

    with happening(store, at=3, what=take_over): …     # `what` is called once, before the fourth operation

An operation is a call of the driver; of a bucket, one request. Listing does not count. What happens meanwhile
goes through another store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.stores.drivers.objects.store import ObjectStore

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Killed(BaseException):
    """The process is gone: whatever it tries from now on does nothing."""


class Happening:
    """`happened`: whether the point was reached. `for_good`: nothing is carried out after it."""

    def __init__(self, at: int, what: Callable[[], None], *, after: bool, for_good: bool) -> None:
        self.happened = False
        self._left, self._what, self._after, self._for_good = at, what, after, for_good

    def around(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            left, self._left = self._left, self._left - 1
            if left < 0 and self._for_good:
                self._what()
            if left == 0 and not self._after:
                self._happen()
            result = operation(*args, **options)
            if left == 0 and self._after:
                self._happen()
            return result

        return called

    def _happen(self) -> None:
        self.happened = True
        self._what()


@contextmanager
def around(store: Any, wrap: Wrap) -> Iterator[None]:
    """Each operation of a store is wrapped meanwhile."""
    if isinstance(store, ObjectStore):
        one, names = store.bucket, ("get", "get_range", "_put", "delete")
    else:
        one, names = store.driver, ("get", "read", "batch")
    for name in names:
        setattr(one, name, wrap(getattr(one, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(one, name)


@contextmanager
def happening(
    store: Any, at: int, what: Callable[[], None], *, after: bool = False, for_good: bool = False
) -> Iterator[Happening]:
    """`after`: when the operation has been carried out, and its caller does not know yet."""
    point = Happening(at, what, after=after, for_good=for_good)
    with around(store, point.around):
        yield point


@contextmanager
def killed(store: Any, at: int, *, after: bool = False) -> Iterator[None]:
    """Its n-th operation is its last; nothing of what follows is carried out."""

    def die() -> None:
        raise Killed

    with happening(store, at, die, after=after, for_good=True):
        yield


@contextmanager
def requests(store: Any) -> Iterator[list[str]]:
    """What its place is asked meanwhile, in order."""
    made: list[str] = []

    def noted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            if args != ([],):  # nothing is asked for that
                made.append(operation.__name__)
            return operation(*args, **options)

        return called

    with around(store, noted):
        yield made


def lost() -> None:
    """The reply does not come."""
    raise ServerGone("the reply was lost")
