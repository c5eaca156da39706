"""The names that pickles of this package refer to, so that modules can move.

`pickle.load` of a `.pkl` file calls `context(payload)` and so gives an ExecutionContext. What was
defined in `__main__` is taken from the running `__main__` if it has that name, else from a copy;
where the running `__main__` is a worker's, always from the copy.

Promise: every public name that was ever released is found by `Unpickler`, where it is now, or is refused
with what to do instead. Bytecode of another minor version of Python is refused: it would end the process.
Not here: whether the bytes may be trusted (checkpoint/seals.py).
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.task import Task

MOVED: Final[dict[str, str]] = {
    "graflow_ckpt.core.policy:Either": "graflow_ckpt.core.policy:EitherPolicy",
    "graflow_ckpt.core.values": "graflow_ckpt.core.facts",
    "graflow_ckpt.engine.task_context": "graflow_ckpt.engine.body.task_context",
    "graflow_ckpt.interfaces.observers.opentelemetry": "graflow_ckpt.observers.opentelemetry",
    "graflow_ckpt.interfaces.observers.prometheus": "graflow_ckpt.observers.prometheus",
    "graflow_ckpt.stores.encrypted": "graflow_ckpt.stores.around.encoded",
    "graflow_ckpt.stores.keys": "graflow_ckpt.stores.around.keys",
    "graflow_ckpt.stores.local": "graflow_ckpt.stores.files.store",
    "graflow_ckpt.stores.memory": "graflow_ckpt.stores.drivers.memory.store",
    "graflow_ckpt.stores.sqlite": "graflow_ckpt.stores.drivers.sqlite.store",
}
"""Where names are now: "module:name" to "module:name", or a whole module to a module."""

GONE: Final[dict[str, str]] = {
    "graflow_ckpt.stores.encrypted:keys_by_path": "each meta names its key: encodings.key_in",
    "graflow_ckpt.stores.encrypted:within": "a store says itself how it encodes: store.encoding",
    "graflow_ckpt.fleet.client:client_at": "fleet.client.connect gives the fleet of an address",
    "graflow_ckpt.core.errors:RolledBack": "older checkpoints with a good seal are accepted",
    "graflow_ckpt.interfaces.observers.prometheus:CallCollector": "metrics come from the events of runs",
}
"""Released names that were removed, as "module:name", and what to do instead."""

PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_NOTHING = object()
_foreign = False
_writer: ContextVar[str] = ContextVar("graflow_writer", default="")


@contextmanager
def written_by(python: str) -> Iterator[None]:
    """Pickles that are opened in here were written by this version of Python; empty: it is not known."""
    token = _writer.set(python)
    try:
        yield
    finally:
        _writer.reset(token)


def other_python() -> str:
    """The minor version that wrote what is being opened, if it is known and another one than this."""
    minor = ".".join(_writer.get().split(".")[:2])
    return "" if minor == PYTHON else minor


def place_of(module: str, name: str) -> tuple[str, str]:
    """Where that name is now."""
    home, found, now = MOVED.get(f"{module}:{name}", "").partition(":")
    return (home, now) if found else (MOVED.get(module, module), name)


class Unpickler(pickle.Unpickler):
    """Python's, for pickles of any version of this package."""

    def find_class(self, module: str, name: str, /) -> Any:
        known = f"{module}:{name}"
        if known in _OURS:
            return _OURS[known]
        if (instead := GONE.get(known)) is not None:
            raise AttributeError(f"{module}.{name} was removed: {instead}")
        return super().find_class(*place_of(module, name))


def _module(name: str) -> Any:
    return import_module(MOVED.get(name, name))


def _builtin_type(name: str) -> Any:
    """A type of Python's own that has no importable name; with that of bytecode every copy of code begins."""
    if name == "CodeType" and (minor := other_python()):
        raise CheckpointError(
            f"Code that Python {minor} has stored cannot be run by Python {PYTHON}.",
            hint=f"Continue with the program, which has the code, or with Python {minor}.",
            python=minor,
        )
    return import_module("cloudpickle.cloudpickle")._builtin_type(name)


def _payload(payload: dict[str, Any]) -> dict[str, Any]:
    payload["python"] = _writer.get()  # its code is still closed
    return payload


_OURS: Final[dict[str, Callable[..., Any]]] = {
    "cloudpickle.cloudpickle:_builtin_type": _builtin_type,
    "cloudpickle.cloudpickle:subimport": _module,
    "graflow_ckpt._restore:context": _payload,
}
"""Functions that pickles call: of code, with our table and our check; and no context, which few need."""


def in_foreign_main() -> None:
    """This process runs what others have written: nothing in its own `__main__` is what they mean."""
    global _foreign
    _foreign = True


def context(payload: dict[str, Any]) -> Any:
    """The ExecutionContext of a checkpoint's payload, as Python's own `pickle` makes it."""
    return context_of(_payload(payload))


def context_of(payload: dict[str, Any]) -> Any:
    """The ExecutionContext of a payload that `Unpickler` has opened."""
    return import_module("graflow_ckpt.engine.context").ExecutionContext.from_payload(payload)


def of_main(name: str, copy: bytes) -> Any:
    """A class or function of `__main__`: the running one of that name, else the copy."""
    found = _NOTHING if _foreign else walk(sys.modules.get("__main__"), name)
    if found is _NOTHING:
        if not copy:  # it would have taken large global data with it
            raise AttributeError(f"__main__ has no {name!r}, and the checkpoint has only its name")
        return Unpickler(BytesIO(copy)).load()
    return _body_of(found)


def body(module: str, name: str) -> Any:
    """The function of a task that an importable module defines."""
    found = walk(import_module(module), name)
    if found is _NOTHING:
        raise AttributeError(f"module {module!r} has no {name!r}")
    return _body_of(found)  # it may not be decorated there, which a comparison will tell


def _body_of(found: Any) -> Any:
    """A task's name stands for the task, not for its body; other objects are not asked for anything."""
    return found.func if issubclass(type(found), Task) else found


def memo(func: Any, parameters: dict[str, Any]) -> Any:
    """A function under `functools.lru_cache`, with nothing in its cache yet."""
    return lru_cache(**parameters)(func)


def walk(home: Any, name: str) -> Any:
    """`Outer.inner` of a module."""
    for part in name.split("."):
        home = getattr(home, part, _NOTHING)
    return home
