"""A bucket at which something happens before its n-th operation, for every n: the tests of the object store
walk through all points at which a process can be stopped, killed or cut off.

    with happening(store, at=3, what=take_over): …     # `what` is called once, before the fourth operation

Only reading and writing of objects counts; what happens meanwhile goes through another store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.stores.objects import ObjectStore

_OPERATIONS = ("get", "get_range", "_put", "delete")


class Killed(BaseException):
    """The process is gone: whatever it tries from now on does nothing."""


class Happening:
    """`happened`: whether the point was reached."""

    def __init__(self, at: int, what: Callable[[], None], *, after: bool) -> None:
        self.happened = False
        self._left = at
        self._what = what
        self._after = after

    def around(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            now = self._left == 0
            self._left -= 1
            if now and not self._after:
                self.happened = True
                self._what()
            result = operation(*args, **options)
            if now and self._after:
                self.happened = True
                self._what()
            return result

        return called


@contextmanager
def happening(
    store: ObjectStore, at: int, what: Callable[[], None], *, after: bool = False
) -> Iterator[Happening]:
    """`after`: when the operation has been carried out, and its caller does not know yet."""
    bucket, point = store._all.bucket, Happening(at, what, after=after)
    former = {name: getattr(bucket, name) for name in _OPERATIONS}
    for name, operation in former.items():
        setattr(bucket, name, point.around(operation))
    try:
        yield point
    finally:
        for name in former:
            delattr(bucket, name)


@contextmanager
def killed(store: ObjectStore, at: int, *, after: bool = False) -> Iterator[None]:
    """Its n-th operation is its last; nothing of what follows is carried out."""
    bucket = store._all.bucket
    left = at

    def dying(operation: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                return operation(*args, **options)
            if left == -1 and after:
                operation(*args, **options)
            raise Killed

        return called

    for name in _OPERATIONS:
        setattr(bucket, name, dying(getattr(bucket, name)))
    try:
        yield
    finally:
        for name in _OPERATIONS:
            delattr(bucket, name)


def lost() -> None:
    """The reply does not come."""
    raise ServerGone("the reply was lost")
