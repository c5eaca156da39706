"""Origins: whose code a module is. The user's own is followed, an installed package is named.

A package that decorates the tasks at hand is the user's own wherever it stands: one worker has it from
a checkout, another has it installed, and a third has another version of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Final

OWN: Final = "."  # the user's own modules, whose code is followed
QUIET: Final = ""  # changes with Python or with this package, which the checkpoint names already


class Origins:
    """Of the modules that some tasks lead to; `packages` are theirs."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._packages = frozenset(packages)
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """OWN, QUIET, or the installed package that the module belongs to."""
        known = self._known.get(name)
        if known is None:
            known = _place(name)
            if known != QUIET and name.partition(".")[0] in self._packages:
                known = OWN
            self._known[name] = known
        return known


def declaring(bodies: Iterable[object], inner: Callable[[object], object | None]) -> Iterator[str]:
    """Installed packages in which a body is decorated under its own name; the others are not looked at."""
    places: dict[str, str] = {}
    for body in bodies:
        if type(body) is not FunctionType:
            continue
        module = body.__module__ or ""
        place = places.get(module)
        if place is None:
            place = places[module] = _place(module)
        if place not in (OWN, QUIET) and _is_decorated(body, inner):
            places[module] = OWN
            yield place


def _is_decorated(body: FunctionType, inner: Callable[[object], object | None]) -> bool:
    if "<" in body.__qualname__:
        return False
    found: object = sys.modules.get(body.__module__)
    for part in body.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not body and inner(found) is body


def _place(name: str) -> str:
    top = name.partition(".")[0]
    if not top:  # imported relatively
        return OWN
    if top in sys.stdlib_module_names or top == "graflow_ckpt":
        return QUIET
    module = sys.modules.get(name, sys.modules.get(top))
    if module is None or top == "__main__":  # made by exec, or not loaded: nothing else is known
        return OWN
    file = getattr(module, "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    if file is None or "site-packages" in file or "dist-packages" in file:
        return top
    return OWN
