"""The check that a value is plain: exact types only, and a tree of them within limits.

It comes before packing, because msgpack takes bytearray, memoryview, Timestamp and ExtType
without asking. It goes level by level, so that a level of a million elements is a few passes at
C speed. One list, dict or set found in two places is refused: decoded it would be two, and a
change to the one would no longer show in the other. That finds cycles, too.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, compress
from typing import Any, Final

from graflow_ckpt.checkpoint.kinds import CONTAINERS, SCALARS, NotPlain, encoder

MAX_DEPTH: Final = 400
MAX_EXT_DEPTH: Final = 100  # each level of tuples or sets takes Python frames, in both directions
MAX_ELEMENTS: Final = 2**27  # tuples may be shared, so a few of them can stand for any number of elements
MAX_SIZE: Final = 2**32 - 1

_SMALL: Final = 16

_UNIQUE: Final = frozenset({list, dict, set})
_AS_EXT: Final = frozenset({tuple, set, frozenset})
_TEXT: Final = frozenset({str, bytes})


# Any: whatever the user put into the channel.
def check_plain(root: Any) -> None:
    """Raises NotPlain, naming the type that is not plain or the limit that is passed."""
    if type(root) not in CONTAINERS:
        return _check_kinds({type(root)})
    if len(root) <= _SMALL and _is_flat(root):
        return None
    level: Collection[Any] = (root,)
    seen: set[int] = set()
    depth = ext_depth = elements = text = 0
    while level:
        here = set(map(type, level))
        depth += 1
        ext_depth += not here.isdisjoint(_AS_EXT)
        elements += sum(map(len, level))
        if not here.isdisjoint(_UNIQUE):
            _check_unique(level, here, seen)
        if depth > MAX_DEPTH or ext_depth > MAX_EXT_DEPTH or elements > MAX_ELEMENTS:
            raise NotPlain(type(root), "too deep, or too many elements")
        below = _below(level, here)
        kinds = set(map(type, below))
        if not kinds.isdisjoint(_TEXT):
            text += sum(map(len, _only(_TEXT, below)))
            if text > MAX_SIZE:
                raise NotPlain(type(root), "more than 4 GiB")
        if kinds <= SCALARS:
            return None
        _check_kinds(kinds)
        level = list(_only(CONTAINERS, below))
    return None


def _is_flat(root: Any) -> bool:
    """Has it scalars only? What most values are, and a quarter of the time of the full check."""
    if type(root) is dict:
        return {*map(type, root), *map(type, root.values())} <= SCALARS
    return set(map(type, root)) <= SCALARS


def _only(kinds: Collection[type], values: Collection[Any]) -> compress[Any]:
    return compress(values, map(kinds.__contains__, map(type, values)))


def _below(level: Collection[Any], here: set[type]) -> Collection[Any]:
    """The elements of all containers of a level: of dicts the keys and the values."""
    if dict not in here:
        return next(iter(level)) if len(level) == 1 else list(chain.from_iterable(level))
    dicts = level if len(here) == 1 else _only({dict}, level)
    return [*chain.from_iterable(level), *chain.from_iterable(map(dict.values, dicts))]


def _check_kinds(kinds: set[type]) -> None:
    for kind in kinds:
        if kind not in SCALARS and kind not in CONTAINERS and encoder(kind) is None:
            raise NotPlain(kind)


def _check_unique(level: Collection[Any], here: set[type], seen: set[int]) -> None:
    known = len(seen)
    unique = list(map(id, level if here <= _UNIQUE else _only(_UNIQUE, level)))
    seen.update(unique)
    if len(seen) != known + len(unique):
        raise NotPlain(next(iter(here)), "one list, dict or set in two places")
