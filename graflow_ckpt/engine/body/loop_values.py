"""Loop values: the items of a loop, and the objects that it keeps from round to round."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from random import Random
from typing import Any, Final

from graflow_ckpt.checkpoint.values.codec import to_cell
from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import GraflowError, GraphError, NotStorable, RoundsChanged

END: Final[Any] = object()
"""What comes after the last item."""

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = (str, bytes, int, float, bool, tuple, list, dict, type(None))


class Items:
    """The items of a loop, and a digest of those that it has had."""

    def __init__(self, items: Any) -> None:
        by_number = getattr(items, "__getitem__", None) is not None and not isinstance(items, Iterable)
        ordered = by_number or isinstance(items, Sequence) or _is_array(items)  # others: by label
        if not isinstance(items, Iterable) and not ordered:
            raise GraphError(
                f"context.rounds takes a range, a list or another iterable, not a {type(items).__name__}.",
                hint="For a number of rounds: context.rounds(range(100)).",
            )
        self.count: int | None = len(items) if isinstance(items, Sized) else None
        self.indexed = ordered and self.count is not None
        self._items = items
        self._iterator: Iterator[Any] | None = None if self.indexed else iter(items)
        self._at = 0
        self._seen = None if isinstance(items, range) else hashlib.blake2b(digest_size=8)
        self._before = self._seen  # without the last one

    def take(self) -> Any:
        """Return the next item, or END."""
        if self._iterator is not None:
            item = next(self._iterator, END)
        else:
            item = self._items[self._at] if self._at < len(self._items) else END
        if item is not END:
            self._at += 1
            if self._seen is not None:  # before the body has it, which may change it
                self._before = self._seen.copy()
                cell = to_cell(item) if isinstance(item, _PLAIN) else b""
                self._seen.update(b"%d:" % len(cell) + cell if isinstance(cell, bytes) else b"?")
        return item

    def digest(self, at: int) -> str:
        """Return what tells the first so many items: all that were taken, or all but the last."""
        if self._seen is None or self._before is None:
            return f"range {self._items.start} {self._items.step}"
        return (self._seen if at == self._at else self._before).hexdigest()

    def skip(self, name: str, at: int, items: str, task: str) -> None:
        """Skip what is committed; it has to be what it was."""
        if self._seen is None:
            self._at, same = at, len(self._items) >= at
        else:
            same = all(self.take() is not END for _ in range(at))
        if not same or self.digest(at) != items:
            which = f" {name!r}" if name else ""
            raise RoundsChanged(
                f"The rounds{which} of {task!r} continue at {at}, and the items before are not those "
                "that they were begun with.",
                hint="Give the same items, or more of them at the end. To begin again: another session id, "
                "or another name= of the loop.",
                task=task,
                name=name,
            )


# --- state -------------------------------------------------------------------------------


def checked_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse state that cannot be loaded in place."""
    arguments.kind("rounds(state=)", state, Mapping, "a dict such as {'model': model}")
    found: Mapping[Any, Any] = state
    for name, value in found.items():
        if not isinstance(name, str) or not name or name.startswith("__") or CONTROL.search(name):
            raise GraphError(f"rounds(state=): {name!r} is no name.")
        if not (_has_state(value) or isinstance(value, dict | list) or _is_array(value)):
            raise NotStorable(
                f"rounds(state=): {name!r} is a {type(value).__name__}, which cannot be loaded in place.",
                hint=f"Give a dict that holds it: values = {{{name!r}: …}}, state={{'values': values}}. "
                "Objects with state_dict and load_state_dict, dicts, lists and numpy arrays can be.",
                name=name,
            )
    return state


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def state_of(value: Any) -> Any:
    return value.state_dict() if _has_state(value) else value


def load(target: Any, saved: Any, name: str) -> None:
    """Load what was kept into the object that the body has."""
    try:
        if _has_state(target):
            target.load_state_dict(saved)
        elif type(target) is not type(saved) or (_is_array(target) and target.shape != saved.shape):
            raise NotStorable(
                f"{name} was a {_described(saved)} and is a {_described(target)} now.",
                hint="Make it as it was before the loop, or begin again under another session id.",
                name=name,
            )
        else:
            _put_into(target, saved)
    except GraflowError:
        raise
    except Exception as error:
        error.add_note(f"while {name} was loaded, with which the rounds continue")
        raise


def _described(value: Any) -> str:
    return f"{type(value).__name__} of shape {value.shape}" if _is_array(value) else type(value).__name__


def _put_into(target: Any, saved: Any) -> None:
    if isinstance(target, dict):
        before = dict(target)
        target.clear()
        target.update({key: _merged(before.get(key), value) for key, value in saved.items()})
    elif isinstance(target, list):
        before_items = [*target, *[None] * len(saved)]
        target[:] = [_merged(mine, value) for mine, value in zip(before_items, saved, strict=False)]
    else:
        target[...] = saved


def _merged(mine: Any, saved: Any) -> Any:
    """Return the object that was there, with what was kept in it, if it can take that; else what was kept."""
    if type(mine) is not type(saved):
        return saved
    if isinstance(saved, dict | list) or (_is_array(saved) and _alike(mine, saved)):
        _put_into(mine, saved)
    elif _has_state(saved):
        mine.load_state_dict(saved.state_dict())
    elif isinstance(saved, set | bytearray):
        mine.clear()
        (mine.update if isinstance(saved, set) else mine.extend)(saved)
    elif isinstance(saved, Random):
        mine.setstate(saved.getstate())
    elif (bits := getattr(saved, "bit_generator", None)) is not None:  # a generator of numpy
        mine.bit_generator.__setstate__(bits.__getstate__())
    else:
        return saved
    return mine


def _alike(mine: Any, saved: Any) -> bool:
    return bool(mine.shape == saved.shape and mine.dtype == saved.dtype and mine.flags.writeable)
