"""Calls: the arguments of a task that is called on a fleet, as the data of its specs.

They are bound as Python would bind them: too many, unknown, twice or lacking is a TypeError where the
call is made. A value that cannot be stored is refused there, too, by the name of its parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from graflow_ckpt.checkpoint.cells import check_storable
from graflow_ckpt.core.errors import NotStorable
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.values import Cell
from graflow_ckpt.engine.bind import SPREAD, Binding

# Any, here and below: arguments are whatever the user hands over.
Call = tuple[Sequence[Any], Mapping[str, Any]]

_MANY = 1000  # specs per script: more would hold the server up for too long
_LARGE = 1 << 20  # bytes of them, for the same reason


def call_of(item: Any) -> Call:
    """An item of `submit_many`: a tuple is the arguments, a dict those by name, all else is the only one."""
    if type(item) is tuple:
        return item, {}
    if type(item) is dict:
        return (), item
    return (item,), {}


def data_of(binding: Binding, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Cell | None:
    """The data of one call."""
    task = binding.task.name
    names = [parameter.name for parameter in binding.parameters]
    if len(args) > len(names):
        raise TypeError(f"{task}() takes {_counted(len(names))}, and {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    if kwargs:
        twice, unknown = given.keys() & kwargs.keys(), kwargs.keys() - set(names)
        if twice or unknown:
            which = min(twice or unknown)
            raise TypeError(f"{task}() got {'two values for' if twice else 'an unknown'} argument {which!r}")
        given |= kwargs
    if len(given) < len(names):
        lacking = [p.name for p in binding.parameters if p.required and p.name not in given]
        if lacking:
            raise TypeError(f"{task}() lacks the argument {lacking[0]!r}")
    if not given:
        return None
    if len(given) == 1 and binding.data in given and type(given[binding.data]) is not dict:
        return check_storable(binding.data, given[binding.data])
    try:
        return check_storable("arguments", {SPREAD: given})
    except NotStorable:
        for name, value in given.items():  # who is it?
            check_storable(name, value)
        raise


def _counted(number: int) -> str:
    return f"{number} argument{'' if number == 1 else 's'}" if number else "no arguments"


def pages(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """New specs, in the portions in which they are sent; the last may be empty."""
    page: list[Op] = []
    size = 0
    for op in ops:
        page.append(op)
        if type(op[2]) is bytes:
            size += len(op[2])
        if len(page) == _MANY or size > _LARGE:
            yield page
            page, size = [], 0
    yield page
