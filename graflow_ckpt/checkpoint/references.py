"""References: what of a program is looked up by its name where it is opened, and what it takes along.

    by name    a function that an importable module has under its own name, decorated or not
    by value   lambdas, closures, what `__main__` defines, objects; and what they use of the user's own
               modules is by name again

What is by name may be another version elsewhere, and is compared. What is by value is what was packed:
comparing it would find differences that packing has made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple

from graflow_ckpt import _restore
from graflow_ckpt.checkpoint.code import by_value
from graflow_ckpt.checkpoint.fingerprint import Fingerprint, compare, fingerprint
from graflow_ckpt.checkpoint.reading import Reader, is_a, task_body
from graflow_ckpt.core.task import Task


class References(NamedTuple):
    """Of the tasks of one graph."""

    by_value: tuple[str, ...]  # the tasks whose code travels
    uses: dict[str, Fingerprint]  # what that code takes from modules of the user, as "module:name"


def references(tasks: Mapping[str, Callable[..., Any]]) -> References:
    """What each body is, and what those that travel take from modules."""
    values = {name: body for name, body in tasks.items() if not _has_name(body)}
    return References(tuple(values), _uses(list(values.values())))


def differing(uses: Mapping[str, Fingerprint]) -> list[str]:
    """Those that are other ones here. A module that is not here is no difference: nobody has asked for it."""
    found = []
    for place, print_ in uses.items():
        module, _, name = place.partition(":")
        try:
            here = _restore.walk(import_module(module), name)
        except ImportError:
            continue
        if not callable(here) or compare(print_, _print(module, here)) == "changed":
            found.append(place)
    return found


def _uses(bodies: list[Any]) -> dict[str, Fingerprint]:
    reader = Reader(task_body, bodies)
    uses: dict[str, Fingerprint] = {}
    pending: list[Any] = [reader.body(body) for body in bodies]
    seen = {id(body) for body in pending}
    for value in pending:  # which grows
        for found in reader.read(value).leads:
            lead: Any = found
            if id(lead) in seen:
                continue
            seen.add(id(lead))
            if _has_name(lead):
                module = str(lead.__module__)
                uses[f"{module}:{lead.__qualname__}"] = _print(module, lead)
            else:
                pending.append(lead)
    return uses


def _print(module: str, value: Any) -> Fingerprint:
    body = value.func if is_a(value, Task) else value
    return fingerprint(body, packages=(module.partition(".")[0],))


def _has_name(value: Any) -> bool:
    """Whether a function or class is opened by looking it up."""
    if not isinstance(value, FunctionType | type):
        return False
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or "<" in name or not isinstance(module, str):
        return False
    if by_value(module):
        return False
    found = _restore.walk(sys.modules.get(module), name)
    return found is value or (is_a(found, Task) and found.func is value)
