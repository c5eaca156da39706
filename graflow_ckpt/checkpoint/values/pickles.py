"""Pickles of live values: streamed out and in without a copy of anything big.

What is written is a plain pickle of protocol 5 that `pickle.load` reads. The pickler gives a
large payload (an array's memory, bytes, bytearray) to its file as the very object, outside of
all frames; from here it is written in slices, as it is in memory, or is set aside (contents.py).
On the way back the unpickler has it read into its final place.

Code is pickled by name where it has one, with a copy where the name may not be there. Functions and classes
of `__main__` are kept as their name and, in a byte string of its own, a copy that is opened only if the
running `__main__` lacks the name. A task's body in an importable module is kept by name: cloudpickle alone
would take a copy of it, since the name in the module is the task. A function under `functools.lru_cache`
that has no such name is made again. Everything else is cloudpickle's, which is loaded with the first live
value.

A copy has in it whatever its code uses of `__main__`, also data. One that is larger than
`COPY_LIMIT` is left out with a warning: else every checkpoint would hold the training set. Where
`whole` is set it is refused instead: the process that opens the pickle does not have that `__main__`.

Two limits: an array that is contiguous in no order is copied once by numpy, a text is there
twice while it is written. Not here: whether the bytes may be trusted (digest.py, seals.py).
"""

from __future__ import annotations

import gc
import io
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import _lru_cache_wrapper, cache
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from blake3 import blake3

from graflow_ckpt import _restore
from graflow_ckpt._restore import Unpickler, other_python, written_by
from graflow_ckpt.checkpoint.values.digest import DigestingOut, KeptStream, Out, TooLong
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, NotStorable
from graflow_ckpt.core.protocols import Buffer, Sink, Source
from graflow_ckpt.core.task import Task

LARGE: Final = 64 << 10
"""From here on a payload is written outside of all frames: Python's number, not ours."""

Memo = dict[int, tuple[int, Any]]
"""A pickler's: by id, the number of an object, and itself."""

_FRAME: Final = b"\x95"
_HEADER: Final = 16  # more than any opcode with a size has
_READ: Final = 256 << 10
_MANY: Final = 1 << 20


# Any, here and below: whatever the user put into the channel.
def dump(value: Any, sink: Sink, root: str = "value", aside: Aside | None = None) -> None:
    """Write the pickle of a value; NotStorable with the path from `root` to what has none.

    What `aside` takes of its large payloads is left out: the reader has to put it back in that place.
    """
    _pickle(value, _Through(sink, aside), None, root)


def load(source: Source) -> Any:
    """Return the value of a pickle, which has to fill the source. The bytes must be trusted already."""
    with reading(source) as file, collector_at_rest(source.size > _MANY):
        return _unpickled(Unpickler(file).load)


def live_bytes(value: Any, root: str = "value") -> bytes:
    """Return the pickle of a value in one piece: for small ones."""
    out = io.BytesIO()
    dump(value, out, root)
    return out.getvalue()


def load_live(data: bytes, python: str = "") -> Any:
    """Return the value of `live_bytes`, stored by `python` if known. The bytes must be trusted already."""
    with written_by(python):
        return _unpickled(Unpickler(io.BytesIO(data)).load)


def live_digest(value: Any, root: str = "value") -> bytes:
    """Return sixteen bytes that differ when the value does; its big buffers are read in their place.

    A digest of the pickle: it can also differ when only the wiring has changed (which equal
    objects are one), never the other way round.
    """
    stream, buffers = DigestingOut(), blake3()

    def digest_buffer(buffer: pickle.PickleBuffer) -> None:
        with buffer.raw() as view:
            buffers.update(view.nbytes.to_bytes(8, "big"))
            buffers.update(view)

    _pickle(value, stream, digest_buffer, root)
    return blake3(stream.hash.digest() + buffers.digest()).digest(16)


class Once(NamedTuple):
    """The result of one pass of pickling."""

    digest: bytes
    size: int
    data: bytes | None  # None: more than was asked for
    pickler: pickle.Pickler

    def memo(self) -> Memo:
        """Return what the pickle keeps as one. It can be taken once, and is all that holds it then."""
        memo = _memo_of(self.pickler)
        self.pickler.clear_memo()
        return memo


def pickle_once(value: Any, limit: int, root: str = "value", *, stop: bool = False) -> Once:
    """Pickle a value: keep its digest, and the pickle if it has no more than `limit` bytes. With `stop` a
    larger one is TooLong, and the rest of it is not looked at."""
    out = KeptStream(limit, stop=stop)
    pickler = _pickle(value, out, None, root)
    return Once(out.hash.digest(16), out.size, out.data(), pickler)


def pickled_with(kind: type[Any], value: Any, root: str) -> Memo:
    """Return what a pickler of that kind has met, kept alive."""
    return _memo_of(_pickle(value, Out(), lambda _: None, root, kind))


def _memo_of(pickler: Any) -> Memo:
    memo: Memo = pickler.memo.copy()
    return memo


def check_picklable(value: Any, root: str) -> None:
    """Raise NotStorable with the path to what cannot be pickled. Big buffers are not touched."""
    _pickle(value, Out(), lambda _: None, root)


# --- out -------------------------------------------------------------------------------


def _pickle(
    value: Any,
    out: Out,
    take_buffer: Callable[[pickle.PickleBuffer], None] | None,
    root: str,
    kind: type[Any] | None = None,
) -> pickle.Pickler:
    used: pickle.Pickler = (kind or pickler())(out, protocol=5, buffer_callback=take_buffer)
    try:
        used.dump(value)
    except MemoryError:
        raise
    except Exception as error:  # a save: the value's own code runs in here, and may raise anything
        if error is out.failure:
            raise
        raise _not_storable(value, root, error) from error
    return used


def _not_storable(value: Any, root: str, error: Exception) -> NotStorable:
    path, kind = find_unpicklable(value, root)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return NotStorable(
        f"{path} cannot be stored: a {name} that cannot be pickled ({type(error).__name__}: {error}).",
        hint="Store what it is made from, leave it out in __getstate__, or make it in the task that uses it.",
        path=path,
        kind=name,
    )


class Aside(Protocol):
    """The place where large payloads may go instead of the pickle."""

    def take(self, payload: memoryview, at: int, /) -> bool: ...  # `at`: its place in what is written


class _Through(Out):
    """A file that passes all to the sink, uncopied; or, of the large payloads, aside."""

    def __init__(self, sink: Sink, aside: Aside | None) -> None:
        self._sink = sink
        self._aside = aside
        self._written = 0

    def write(self, data: Buffer | pickle.PickleBuffer, /) -> int:
        try:
            if type(data) is bytes and (len(data) < LARGE or _is_frame(data)):
                self._written += len(data)
                return self._sink.write(data)
            view = data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data).cast("B")
            if self._aside is None or view.nbytes < LARGE or not self._aside.take(view, self._written):
                self._written += self._sink.write(view)
            return view.nbytes
        except BaseException as failure:
            self.failure = failure
            raise


def _is_frame(data: bytes) -> bool:
    """Return whether these are small things that the pickler has collected. A payload that looks like them is
    only kept where it is."""
    start = 2 if data[:1] == b"\x80" else 0
    size = len(data) - start - 9 - int.from_bytes(data[start + 1 : start + 9], "little")
    return data[start : start + 1] == _FRAME and 0 <= size < _HEADER


# --- code ------------------------------------------------------------------------------

COPY_LIMIT: Final = 1 << 20

whole: ContextVar[bool] = ContextVar("graflow_whole_code", default=False)
"""Whether a name in `__main__` is not enough."""

_log = logging.getLogger("graflow_ckpt.checkpoint")
_copies: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()  # functions and classes of __main__


@cache
def pickler() -> type[Any]:
    """Return cloudpickle's pickler, but for what has a name."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({io.TextIOWrapper: _no_file})

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, FunctionType | type):
                reduced = _by_name(obj)
                if reduced is not None:
                    return reduced
            elif type(obj) is _lru_cache_wrapper:
                return _memo(obj)
            return super().reducer_override(obj)

    return Pickler


@cache
def _copier() -> type[Any]:
    """Return a pickler of code and what it uses, wherever that has a name."""
    import cloudpickle

    class Copier(cloudpickle.Pickler):  # type: ignore[misc]  # as above
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({io.TextIOWrapper: _no_file})

        def reducer_override(self, obj: Any) -> Any:
            return _memo(obj) if type(obj) is _lru_cache_wrapper else super().reducer_override(obj)

    return Copier


def _no_file(file: io.TextIOWrapper) -> Any:
    """Refuse an open file, which cloudpickle would replace by its text; the process's own have a name."""
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError("an open file ends with its process")


def _memo(obj: Any) -> Any:
    """Reduce a cached function: Python pickles one by name, also in `__main__` and where there is no name."""
    if (
        obj.__module__ != "__main__"
        and _restore.walk(sys.modules.get(obj.__module__), obj.__qualname__) is obj
    ):
        return NotImplemented
    return _restore.memo, (obj.__wrapped__, obj.cache_parameters())


def _by_name(obj: Any) -> tuple[Any, ...] | None:
    module, name = getattr(obj, "__module__", None), obj.__qualname__
    if "<" in name or not isinstance(module, str):  # a lambda, or made inside a function
        return None
    if by_value(module):
        return None
    found = _restore.walk(sys.modules.get(module), name)
    if module == "__main__":
        if found is obj or _is_body(found, obj):
            copy = _copy(obj)
            if not copy and whole.get():
                raise ValueError(f"{name} of __main__ uses more than {COPY_LIMIT >> 20} MiB of global data")
            return _restore.of_main, (name, copy)
    elif _is_body(found, obj):
        return _restore.body, (module, name)
    return None


def by_copy(reduced: Any) -> bool:
    """Return whether a reduced function is its code, and not a name."""
    from cloudpickle.cloudpickle import _make_function

    return reduced[0] is _make_function


def _is_body(found: Any, obj: Any) -> bool:
    """Return whether an object is a task of that function, without asking it for anything."""
    return issubclass(type(found), Task) and found.func is obj


def by_value(module: str) -> bool:
    """Return whether the user has asked for a module to travel (cloudpickle.register_pickle_by_value)."""
    import cloudpickle

    asked = cloudpickle.list_registry_pickle_by_value()
    return bool(asked) and any(module == name or module.startswith(f"{name}.") for name in asked)


def _copy(obj: Any) -> bytes:
    copy = _copies.get(obj)
    if copy is None:
        out = KeptStream(COPY_LIMIT, stop=True)
        try:
            _copier()(out, protocol=5).dump(obj)
        except TooLong:
            _log.log(
                logging.DEBUG if whole.get() else logging.WARNING,
                "%s of __main__ uses more than %d MiB of global data: it is kept by name only, and its "
                "checkpoints can be resumed with its program alone (they do not grow by that data)",
                obj.__qualname__,
                COPY_LIMIT >> 20,
            )
        copy = _copies[obj] = out.data() or b""
    return copy


# --- in --------------------------------------------------------------------------------


@contextmanager
def reading(source: Source) -> Iterator[io.BufferedIOBase]:
    """Yield a source as a file that a pickle has to fill."""
    file = io.BufferedReader(_Raw(source), _READ)
    yield file
    if file.read(1):
        raise CheckpointCorrupt("Something follows where a pickle has ended.")


def _unpickled(load_it: Callable[[], Any]) -> Any:
    try:
        return load_it()
    except (pickle.UnpicklingError, EOFError) as error:
        raise CheckpointCorrupt(f"Not a whole pickle: {error}.") from error
    except (ImportError, AttributeError) as error:
        other = f", or it needs Python {minor}, which has stored it" if (minor := other_python()) else ""
        raise CheckpointError(
            f"A stored value cannot be loaded here: {error}.",
            hint=f"Its class or function has moved, or its library is not installed{other}.",
        ) from error


@contextmanager
def collector_at_rest(large: bool = True) -> Iterator[None]:
    """Stop the collector where objects are made by the million, and no garbage: it takes half the time."""
    rest = large and gc.isenabled()
    if rest:
        gc.disable()
    try:
        yield
    finally:
        if rest:
            gc.enable()


class _Raw(io.RawIOBase):
    """A source as a raw file. Under a BufferedReader a large read goes straight to its place."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    # The buffer is a memoryview: BufferedReader passes nothing else.
    def readinto(self, buffer: Any, /) -> int:
        return self._source.readinto(buffer)


# --- what cannot be pickled ------------------------------------------------------------

_STEPS: Final = 100

Part = tuple[str, Any]
"""How a part of an object is written, and itself."""


def find_unpicklable(value: Any, root: str) -> tuple[str, type]:
    """Return the path from `root` to the innermost object that fails, and its type.

    Called when a pickle has failed, so it may take its time. From the value down, the parts of each object
    are tried, halving a list of them until one is left; what was passed on the way counts as good, so that a
    part that points back does not lead around in circles.
    """
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

    class Trial(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def __init__(self, passed: dict[int, Any]) -> None:
            super().__init__(Out(), protocol=5, buffer_callback=lambda _: None)
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
    """Yield what its own reduction names: attributes, constructor arguments, items."""
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
