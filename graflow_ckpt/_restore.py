"""The names that pickles of this package refer to, so that modules can move.

`pickle.load` of a `.pkl` file calls `context(payload)` and so gives an ExecutionContext. What was
defined in `__main__` is taken from the running `__main__` if it has that name, else from a copy.
"""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from typing import Any

_NOTHING = object()


def context(payload: dict[str, Any]) -> Any:
    """The ExecutionContext of a checkpoint's payload."""
    return import_module("graflow_ckpt.engine.context").ExecutionContext.from_payload(payload)


def of_main(name: str, copy: bytes) -> Any:
    """A class or function of `__main__`: the running one of that name, else the copy."""
    found = walk(sys.modules.get("__main__"), name)
    if found is _NOTHING:
        if not copy:  # it would have taken large global data with it
            raise AttributeError(f"__main__ has no {name!r}, and the checkpoint has only its name")
        return pickle.loads(copy)
    return getattr(found, "func", found)  # a task's name stands for the task, not for its body


def body(module: str, name: str) -> Any:
    """The function of a task that an importable module defines."""
    return walk(import_module(module), name).func


def walk(home: Any, name: str) -> Any:
    """`Outer.inner` of a module."""
    for part in name.split("."):
        home = getattr(home, part, _NOTHING)
    return home
