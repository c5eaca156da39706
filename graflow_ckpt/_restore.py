"""The names that pickles of this package refer to, so that modules can move.

`pickle.load` of a `.pkl` file calls `context(payload)` and so gives an ExecutionContext. What was
defined in `__main__` is taken from the running `__main__` if it has that name, else from a copy;
where the running `__main__` is a worker's, always from the copy.
"""

from __future__ import annotations

import pickle
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

_NOTHING = object()
_foreign = False


def in_foreign_main() -> None:
    """This process runs what others have written: nothing in its own `__main__` is what they mean."""
    global _foreign
    _foreign = True


def context(payload: dict[str, Any]) -> Any:
    """The ExecutionContext of a checkpoint's payload."""
    return import_module("graflow_ckpt.engine.context").ExecutionContext.from_payload(payload)


def of_main(name: str, copy: bytes) -> Any:
    """A class or function of `__main__`: the running one of that name, else the copy."""
    found = _NOTHING if _foreign else walk(sys.modules.get("__main__"), name)
    if found is _NOTHING:
        if not copy:  # it would have taken large global data with it
            raise AttributeError(f"__main__ has no {name!r}, and the checkpoint has only its name")
        return pickle.loads(copy)
    return getattr(found, "func", found)  # a task's name stands for the task, not for its body


def body(module: str, name: str) -> Any:
    """The function of a task that an importable module defines."""
    found = walk(import_module(module), name)
    if found is _NOTHING:
        raise AttributeError(f"module {module!r} has no {name!r}")
    return getattr(found, "func", found)  # it may not be decorated there, which a comparison will tell


def memo(func: Any, parameters: dict[str, Any]) -> Any:
    """A function under `functools.lru_cache`, with nothing in its cache yet."""
    return lru_cache(**parameters)(func)


def walk(home: Any, name: str) -> Any:
    """`Outer.inner` of a module."""
    for part in name.split("."):
        home = getattr(home, part, _NOTHING)
    return home
