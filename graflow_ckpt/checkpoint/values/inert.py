"""Inert reading: a pickle's shape and contents without running any code of its classes.

An unpickler that knows no class: whatever a pickle names becomes a stand-in that keeps what it was given.
Dicts, lists, tuples, sets, texts and numbers are themselves. Nothing is imported and nothing is called, so
that values can be compared where their classes do not exist, and by a user that does not want to run them.

Promise: two stand-ins have the same digest if their pickles say the same. As with any digest of a pickle it
can also differ when only the wiring has changed (which equal objects are one), never the other way round.
Not here: whether the bytes may be trusted (archive.py has compared them with the sealed digests before).
"""

from __future__ import annotations

import pickle
import re
from typing import Any, Final

from graflow_ckpt._restore import place_of
from graflow_ckpt.checkpoint.values.digest import KeptStream
from graflow_ckpt.checkpoint.values.pickles import reading
from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Source

ELEMENTS: Final = 100_000
"""Of an array that is shown as numbers; of a larger one only size and digest are shown."""

_BROKEN: Final = (
    pickle.UnpicklingError, EOFError, TypeError, ValueError, AttributeError, LookupError, OverflowError,
    RecursionError, MemoryError,  # what a pickle declares may be more than there is
)  # fmt: skip
_NUMBERS: Final = re.compile(r"[<>=|]?[fiu][1248]\Z|[fiu][1248]\Z")
_ARRAY_OF: Final = frozenset(
    f"numpy.{core}.{name}"
    for core in ("core", "_core")
    for name in ("numeric._frombuffer", "multiarray._reconstruct")
)


class Inert:
    """Stands for an object. Each class of a pickle is a subclass of this one, of the same name."""

    kind = ""  # module and name, as the pickle has them

    # Any, here and below: whatever a pickle passes.
    def __new__(cls, *args: Any, **options: Any) -> Inert:
        made = super().__new__(cls)
        made.args = args
        made.options = options
        made.state = None
        made.items = []
        return made

    args: tuple[Any, ...]
    options: dict[str, Any]
    state: Any
    items: list[Any]

    def __call__(self, *args: Any) -> Inert:
        """Return what a call gives: what a pickle calls may be what another call has given."""
        return _Given(self, *args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class _Stored(Inert):
    kind = "stored elsewhere"


class _Given(Inert):
    kind = "what a call gave"


def _same(value: Any, *_: Any) -> Any:
    return value


def _set_state(value: Any, state: Any) -> None:
    if isinstance(value, Inert):
        value.state = state  # of a class it is code, which is compared elsewhere


class _Reader(pickle.Unpickler):
    """Looks nothing up."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._kinds: dict[str, type[Inert]] = {}
        self._functions = {
            "graflow_ckpt._restore.context": _same,  # the payload itself
            # What gives classes: of these there are instances.
            "graflow_ckpt._restore.of_main": lambda name, copy: self._class("__main__", name),
            "builtins.getattr": lambda home, name: self._class(kind_of(home), name),
            "cloudpickle.cloudpickle._builtin_type": lambda name: self._class("builtins", name),
            "cloudpickle.cloudpickle._make_skeleton_class": lambda make, name, bases, options, *_: (
                self._class(str(options.get("__module__", "?")), name)
            ),
            "cloudpickle.cloudpickle._make_skeleton_enum": lambda bases, name, path, members, module, *_: (
                self._class(module, path)
            ),
            "cloudpickle.cloudpickle._class_setstate": _set_state,
            "cloudpickle.cloudpickle._function_setstate": _set_state,
        }

    def find_class(self, module: str, name: str, /) -> Any:
        return self._functions.get(f"{module}.{name}") or self._class(*place_of(module, name))

    def _class(self, module: str, name: str) -> type[Inert]:
        kind = f"{module}.{name}"
        if kind not in self._kinds:
            self._kinds[kind] = type(name.rpartition(".")[2], (Inert,), {"kind": kind})
        return self._kinds[kind]

    def persistent_load(self, name: Any, /) -> Any:
        return _Stored(name)


def load(source: Source) -> Any:
    """Return the value of a pickle, with stand-ins for all that is no builtin."""
    with reading(source) as file:
        try:
            return _Reader(file).load()
        except _BROKEN as error:
            raise CheckpointCorrupt(f"A pickle cannot be read without its classes: {error}.") from error


# --- what a value says ---------------------------------------------------------------------


def weigh(value: Any) -> tuple[int, str]:
    """Return how many bytes a value takes in a pickle, and a digest of them."""
    out = KeptStream(0)
    try:
        _Writer(out, protocol=5).dump(value)
    except RecursionError:
        return 0, ""  # nested by the thousand: nothing can be said of it
    return out.size, out.hash.hexdigest(16)


class _Writer(pickle.Pickler):
    """Writes stand-ins as what they have been given: never to be read again, only to be digested."""

    def reducer_override(self, value: Any, /) -> Any:
        if isinstance(value, Inert):
            return _same, (value.kind,), (value.args, value.options, value.state, value.items)
        if isinstance(value, type) and issubclass(value, Inert):
            return _same, (value.kind,)
        return NotImplemented


def kind_of(value: Any) -> str:
    """Return the class that a value had."""
    if isinstance(value, type) and issubclass(value, Inert):
        return value.kind
    if isinstance(value, Inert):
        return "numpy.ndarray" if value.kind in _ARRAY_OF else value.kind
    return type(value).__name__


def plainer(value: Any, depth: int = 50) -> Any:
    """Return a value with attributes as dicts and arrays of numbers as lists, as far as that is known."""
    if depth == 0:
        return value
    if type(value) in (list, tuple):
        return type(value)(plainer(item, depth - 1) for item in value)
    if type(value) is dict:
        return {key: plainer(item, depth - 1) for key, item in value.items()}
    if not isinstance(value, Inert):
        return value
    array = array_of(value)
    if array is not None:
        return array.numbers()
    state = value.state
    if isinstance(state, tuple) and len(state) == 2 and all(type(s) in (dict, type(None)) for s in state):
        state = {**(state[0] or {}), **(state[1] or {})}  # of a class with slots
    return plainer(state, depth - 1) if type(state) is dict else value


class Array:
    """The numbers of an array that is not made: its bytes, the code of their type, its shape."""

    def __init__(self, data: Any, code: str, shape: tuple[int, ...]) -> None:
        self.data, self.code, self.shape = memoryview(data).cast("B"), code, shape

    @property
    def count(self) -> int:
        return self.data.nbytes // int(self.code[-1])

    def numbers(self) -> Any:
        """Return a list, nested as its shape is; None if there are too many."""
        if self.count > ELEMENTS:
            return None
        flat = self.flat()
        for size in reversed(self.shape[1:]):
            flat = [flat[start : start + size] for start in range(0, len(flat), size)] if size else []
        return flat if self.shape else flat[0]

    def flat(self) -> list[Any]:
        import struct

        code = {"f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q",
                "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}[self.code[-2:]]  # fmt: skip
        order = ">" if self.code.startswith(">") else "<"
        return list(struct.unpack(f"{order}{self.count}{code}", self.data))


def array_of(value: Any) -> Array | None:
    """Return the array of numbers that a stand-in was; None if it was none, or is in another order."""
    if not isinstance(value, Inert) or value.kind not in _ARRAY_OF:
        return None
    try:
        if value.kind.endswith("_frombuffer"):
            data, dtype, shape, order = value.args
        else:
            _, shape, dtype, fortran, data = value.state
            order = "F" if fortran else "C"
        code = _code(dtype)
        array = Array(data, code, tuple(int(size) for size in shape))
    except (TypeError, ValueError, LookupError):
        return None
    whole = 1
    for size in array.shape:
        whole *= size
    return array if order == "C" and whole == array.count else None


def _code(dtype: Any) -> str:
    """Return `<f8` of a data type of numbers."""
    code = str(dtype.args[0])
    if not isinstance(dtype, Inert) or dtype.kind != "numpy.dtype" or not _NUMBERS.match(code):
        raise ValueError(code)
    order = dtype.state[1] if isinstance(dtype.state, tuple) else "<"
    return (order if order in "<>" else "<") + code[-2:]
