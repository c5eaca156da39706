"""Who in a value cannot be pickled: a path that a person can follow, and the type at its end.

Called when a pickle has failed, so it may take its time. From the value down, the parts of each
object are tried, halving a list of them until one is left; what was passed on the way counts as
good, so that a part that points back does not lead around in circles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import FunctionType, MethodType
from typing import Any, Final

_STEPS: Final = 100

# Any in this file: whatever the user put into the channel. A part is how it is written, and itself.
Part = tuple[str, Any]


def find_unpicklable(value: Any, root: str) -> tuple[str, type]:
    """The path from `root` to the innermost object that fails, and its type."""
    path, passed = root, {id(value): value}
    for _ in range(_STEPS):
        found = _first_bad([*_parts(value)], passed)
        if found is None:
            break
        path, value = path + found[0], found[1]
        passed[id(value)] = value
    return path, type(value)


def _first_bad(parts: list[Part], passed: dict[int, Any]) -> Part | None:
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        parts = half if _fails([part for _, part in half], passed) else parts[len(half) :]
    return parts[0] if parts and _fails(parts[0][1], passed) else None


def _fails(value: Any, passed: dict[int, Any]) -> bool:
    try:
        _trial()(passed).dump(value)
    except Exception as error:  # noqa: BLE001  # part of a save: the value's own code may raise anything
        # Too deep is not bad: nothing further down would say it better.
        return not isinstance(error.__cause__ or error, RecursionError)
    return False


@cache
def _trial() -> Callable[[dict[int, Any]], Any]:
    import cloudpickle

    class Nowhere:
        def write(self, _: object) -> int:
            return 0

    class Trial(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def __init__(self, passed: dict[int, Any]) -> None:
            super().__init__(Nowhere(), protocol=5, buffer_callback=lambda _: None)
            self.passed = passed

        def persistent_id(self, value: Any) -> str | None:
            return "passed" if id(value) in self.passed else None

    return Trial


# --- the parts of an object ------------------------------------------------------------


def _parts(value: Any) -> Iterator[Part]:
    match value:
        case dict():
            yield from ((f"[{key!r:.60}]", item) for key, item in value.items())
            yield from ((f".keys()[{at}]", key) for at, key in enumerate(value))
        case list() | tuple():
            yield from ((f"[{at}]", item) for at, item in enumerate(value))
        case set() | frozenset():
            yield from ((f".{{{item!r:.60}}}", item) for item in value)
        case FunctionType():
            yield from _parts_of_function(value)
            return
        case MethodType():
            yield ".__self__", value.__self__
            return
        case type():
            yield from ((f".{name}", item) for name, item in vars(value).items())
            return
    if type(value) not in (dict, list, tuple, set, frozenset):
        yield from _parts_of_state(value)


def _parts_of_function(function: FunctionType) -> Iterator[Part]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".<closure>.{name}", cell.cell_contents
        except ValueError:  # a cell that is still empty
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield f".<globals>.{name}", function.__globals__[name]
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield ".__dict__", vars(function)


def _parts_of_state(value: Any) -> Iterator[Part]:
    """What its own reduction names: attributes, constructor arguments, items."""
    try:
        reduced: str | tuple[Any, ...] = value.__reduce_ex__(5)
    except Exception:  # noqa: BLE001  # part of a save: it refuses by itself, so it is the culprit
        return
    if isinstance(reduced, str):
        return
    arguments, state, items, pairs = (*reduced[1:5], None, None, None)[:4]
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # __dict__ and __slots__
        yield from _attributes(state[0])
        yield from _attributes(state[1])
    else:
        yield from _attributes(state)
    for at, argument in enumerate(arguments or ()):
        yield (".__class__" if argument is type(value) else f".<argument {at}>"), argument
    if not isinstance(value, list | dict):
        yield from ((f"[{at}]", item) for at, item in enumerate(items or ()))
        yield from ((f"[{key!r:.60}]", item) for key, item in pairs or ())


def _attributes(state: Any) -> Iterator[Part]:
    if isinstance(state, dict):
        yield from ((f".{name}", item) for name, item in state.items())
    elif state is not None:
        yield ".__getstate__()", state
