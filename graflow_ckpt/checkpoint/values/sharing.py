"""Sharing: which live values have a mutable object in common.

    optimizer = SGD(model.parameters())
    bundles({"model": [model], "opt": [optimizer], "log": [log]})     # [["model", "opt"], ["log"]]

The memo of a pickler is what it keeps as one, so that it says what a pickle of both would keep as
one. Two values share if a walk of each, at one moment, meets the same mutable object. A walk is a
pickle to nowhere: arrays and tensors are leaves, classes are left out, a function is what it holds.

    lasting   ids that still mean the same object later: a hint, for a caller that compares at two moments
    reach     a walk: objects by id, all of them alive
    shares    the answer, from two walks

References (an enum's member, a logger, a module, a dtype) are one wherever they are loaded: they do
not count. Not here: views of one array's memory, which come apart in one pickle, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from itertools import compress
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from sys import getrefcount
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final  # Any: whatever the user put into the channel
from uuid import UUID

from graflow_ckpt.checkpoint.values.pickles import Memo, by_copy, pickled_with, pickler

_FIXED: Final = frozenset(
    {
        *(str, bytes, int, float, complex, bool, tuple, frozenset, type(None), type(...), range, slice, type),
        *(FunctionType, BuiltinFunctionType, ModuleType, CodeType, re.Pattern, Decimal, Fraction, UUID),
        *(date, time, datetime, timedelta, timezone),
        *(PosixPath, WindowsPath, PurePosixPath, PureWindowsPath),
    }
)
"""Types whose instances cannot be changed. What they hold has ids of its own."""

_MUTABLE: Final = frozenset({list, dict, set, bytearray})
_UNHELD: Final = max(map(getrefcount, [object()]))
"""What Python counts for an object that only one list holds, asked through `map`."""


def lasting(memo: Memo) -> set[int]:
    """Return ids of what may be shared, without what was made for the pickle alone; empty the memo.

    An id without its object can later mean another one: what is found by it is a suspicion.
    """
    objects = [found for _, found in memo.values() if type(found) not in _FIXED]
    memo.clear()  # else it holds what nothing else does
    while True:
        counts = [*map(getrefcount, objects)]  # before `compress` holds them, too
        held = list(compress(objects, map(_UNHELD.__lt__, counts)))
        if len(held) == len(objects):
            return set(map(id, held))
        objects = held  # what was held by what has gone goes next


def reach(roots: Sequence[Any], name: str) -> Memo:
    """Return all that the values hold, as of now; NotStorable if they cannot be pickled."""
    return pickled_with(_walker(), list(roots), name)


def shares(one: Memo, other: Memo) -> bool:
    """Return whether two walks, both still there, have met a mutable object."""
    return any(not is_reference(one[number][1]) for number in one.keys() & other.keys())


def bundles(values: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    """Return the names of values that share, together; each of the others alone."""
    if len(values) < 2:
        return [[name] for name in values]
    found: list[tuple[list[str], Memo]] = []
    for name, roots in values.items():
        names, met = [name], reach(roots, name)
        apart = []
        for bundle in found:
            if shares(met, bundle[1]):
                names, met = [*bundle[0], *names], {**bundle[1], **met}
            else:
                apart.append(bundle)
        found = [*apart, (names, met)]
    order = {name: number for number, name in enumerate(values)}
    ordered = [sorted(names, key=order.__getitem__) for names, _ in found]
    return sorted(ordered, key=lambda names: order[names[0]])


def copied(plain: Mapping[str, Any], live: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name of each plain value that shares with a live one, and the name of that."""
    held = {name: reach([value], name) for name, value in live.items()}
    met = {name: reach([value], name) for name, value in plain.items()}
    return [(name, other) for name in plain for other in live if shares(met[name], held[other])]


def is_reference(value: Any) -> bool:
    """Return whether each pickle of it comes back as the same object, or no code could see a difference."""
    kind = type(value)
    if kind in _MUTABLE or _is_tensor(value):
        return False
    if kind in _FIXED or isinstance(value, type):
        return True
    if kind is CellType:  # a method's, for `super()`
        return _holds_class(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.base is None and not value.flags.writeable and not value.dtype.hasobject
    if numpy is not None and isinstance(value, numpy.generic | numpy.dtype):
        return True
    return _is_found_again(value)


def _is_found_again(value: Any) -> bool:
    with suppress(Exception):  # its own code, which has been called for a pickle before
        make = pickler().dispatch_table.get(type(value))
        reduced = make(value) if make else value.__reduce_ex__(5)
        if isinstance(reduced, str):
            return True
        if any(part is not None for part in reduced[2:]):
            return False  # it has a state, which loading gives to another object
        return reduced[0](*reduced[1]) is value  # an object that is made once, and looked up
    return False


def _holds_class(cell: CellType) -> bool:
    with suppress(ValueError):  # an empty one
        return isinstance(cell.cell_contents, type)
    return False


# --- walking ---------------------------------------------------------------------------

_LEAF: Final = (len, ())  # nothing is loaded; a function that has a name, for classes are leaves


@cache
def _walker() -> type[Any]:
    class Walker(pickler()):  # type: ignore[misc]  # cloudpickle has no types
        """Goes where a pickle goes, but for what no two values can share."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | Enum) or _is_array(obj) or _is_plain_tensor(obj):
                return _LEAF
            reduced = super().reducer_override(obj)
            if type(obj) is FunctionType and reduced is not NotImplemented:
                return (len, (_held_by(obj),)) if by_copy(reduced) else _LEAF
            return reduced

    return Walker


def _held_by(function: FunctionType) -> list[Any]:
    return [function.__closure__, function.__defaults__, function.__kwdefaults__, *vars(function).values()]


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def _is_tensor(value: Any) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def _is_plain_tensor(value: Any) -> bool:
    return _is_tensor(value) and type(value).__module__.startswith("torch") and not vars(value)
