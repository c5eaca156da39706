"""How code is pickled: by name where it has one, with a copy where the name may not be there.

Functions and classes of `__main__` are kept as their name and, in a byte string of its own, a
copy that is opened only if the running `__main__` lacks the name. A task's body in an importable
module is kept by name: cloudpickle alone would take a copy of it, since the name in the module
is the task. A function under `functools.lru_cache` that has no such name is
made again. Everything else is cloudpickle's.

A copy has in it whatever its code uses of `__main__`, also data. One that is larger than
`COPY_LIMIT` is left out with a warning: else every checkpoint would hold the training set. Where
`whole` is set it is refused instead: the process that opens the pickle does not have that `__main__`.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from functools import _lru_cache_wrapper
from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

import cloudpickle
from cloudpickle.cloudpickle import _make_function

from graflow_ckpt import _restore
from graflow_ckpt.checkpoint.values.digest import KeptStream, TooLong
from graflow_ckpt.core.task import Task

COPY_LIMIT: Final = 1 << 20

whole: ContextVar[bool] = ContextVar("graflow_whole_code", default=False)
"""Whether a name in `__main__` is not enough."""

_log = logging.getLogger("graflow_ckpt.checkpoint")
_copies: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()  # functions and classes of __main__


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's, but for what has a name."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | type):
            reduced = _by_name(obj)
            if reduced is not None:
                return reduced
        elif type(obj) is _lru_cache_wrapper:
            return _memo(obj)
        return super().reducer_override(obj)


class _Copier(cloudpickle.Pickler):  # type: ignore[misc]  # as above
    """A pickler of code and what it uses, wherever that has a name."""

    def reducer_override(self, obj: Any) -> Any:
        return _memo(obj) if type(obj) is _lru_cache_wrapper else super().reducer_override(obj)


def _memo(obj: Any) -> Any:
    """Reduce a cached function: Python pickles one by name, also in `__main__` and where there is no name."""
    if (
        obj.__module__ != "__main__"
        and _restore.walk(sys.modules.get(obj.__module__), obj.__qualname__) is obj
    ):
        return NotImplemented
    return _restore.memo, (obj.__wrapped__, obj.cache_parameters())


def _by_name(obj: Any) -> tuple[Any, ...] | None:
    module, name = getattr(obj, "__module__", None), obj.__qualname__
    if "<" in name or not isinstance(module, str):  # a lambda, or made inside a function
        return None
    if by_value(module):
        return None
    found = _restore.walk(sys.modules.get(module), name)
    if module == "__main__":
        if found is obj or _is_body(found, obj):
            copy = _copy(obj)
            if not copy and whole.get():
                raise ValueError(f"{name} of __main__ uses more than {COPY_LIMIT >> 20} MiB of global data")
            return _restore.of_main, (name, copy)
    elif _is_body(found, obj):
        return _restore.body, (module, name)
    return None


def by_copy(reduced: Any) -> bool:
    """Return whether a reduced function is its code, and not a name."""
    return reduced[0] is _make_function


def _is_body(found: Any, obj: Any) -> bool:
    """Return whether an object is a task of that function, without asking it for anything."""
    return issubclass(type(found), Task) and found.func is obj


def by_value(module: str) -> bool:
    """Return whether the user has asked for a module to travel (cloudpickle.register_pickle_by_value)."""
    asked = cloudpickle.list_registry_pickle_by_value()
    return bool(asked) and any(module == name or module.startswith(f"{name}.") for name in asked)


def _copy(obj: Any) -> bytes:
    copy = _copies.get(obj)
    if copy is None:
        out = KeptStream(COPY_LIMIT, stop=True)
        try:
            _Copier(out, protocol=5).dump(obj)
        except TooLong:
            _log.log(
                logging.DEBUG if whole.get() else logging.WARNING,
                "%s of __main__ uses more than %d MiB of global data: it is kept by name only, and its "
                "checkpoints can be resumed with its program alone (they do not grow by that data)",
                obj.__qualname__,
                COPY_LIMIT >> 20,
            )
        copy = _copies[obj] = out.data() or b""
    return copy
