"""Pickles of live values: streamed out and in without a copy of anything big.

What is written is a plain pickle of protocol 5 that `pickle.load` reads. The pickler gives a
large payload (an array's memory, bytes, bytearray) to its file as the very object, outside of
all frames; from here it goes on in slices, as it lies in memory, or is set aside (contents.py).
On the way back the unpickler has it read into its final place. cloudpickle does the pickling
(code.py), so that functions and classes of `__main__` work; it is loaded with the first live value.

Two limits: an array that is contiguous in no order is copied once by numpy, a text is there
twice while it is written. Not here: whether the bytes may be trusted (digest.py, seal.py).
"""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from blake3 import blake3

from graflow_ckpt._restore import Unpickler, other_python, written_by
from graflow_ckpt.checkpoint.culprit import find_unpicklable
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, NotStorable
from graflow_ckpt.core.protocols import Buffer, Sink, Source

SLICE: Final = 8 << 20
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
    """Writes the pickle of a value; NotStorable with the path from `root` to what has none.

    What `aside` takes of its large payloads is left out: the reader has to put it back in that place.
    """
    _pickle(value, _Slices(sink, aside), None, root)


def load(source: Source) -> Any:
    """The value of a pickle, which has to fill the source. The bytes must be trusted already."""
    reader = io.BufferedReader(_Raw(source), _READ)
    with collector_at_rest(source.size > _MANY):
        value = _unpickled(Unpickler(reader).load)
    if reader.read(1):
        raise CheckpointCorrupt("Something follows where a pickle has ended.")
    return value


def live_bytes(value: Any, root: str = "value") -> bytes:
    """The pickle of a value in one piece: for small ones."""
    out = io.BytesIO()
    dump(value, out, root)
    return out.getvalue()


def load_live(data: bytes, python: str = "") -> Any:
    """The value of `live_bytes`, stored by `python` if that is known. The bytes must be trusted already."""
    with written_by(python):
        return _unpickled(Unpickler(io.BytesIO(data)).load)


def live_digest(value: Any, root: str = "value") -> bytes:
    """Sixteen bytes that differ when the value does; its big buffers are read where they lie.

    A digest of the pickle: it can also differ when only the wiring has changed (which equal
    objects are one), never the other way round.
    """
    stream, buffers = _Digesting(), blake3()

    def digest_buffer(buffer: pickle.PickleBuffer) -> None:
        with buffer.raw() as view:
            buffers.update(view.nbytes.to_bytes(8, "big"))
            buffers.update(view)

    _pickle(value, stream, digest_buffer, root)
    return blake3(stream.hash.digest() + buffers.digest()).digest(16)


class Once(NamedTuple):
    """What one pass of pickling has made."""

    digest: bytes
    size: int
    data: bytes | None  # None: more than was asked for
    pickler: pickle.Pickler

    def memo(self) -> Memo:
        """What the pickle keeps as one. It can be taken once, and is all that holds it then."""
        memo = _memo_of(self.pickler)
        self.pickler.clear_memo()
        return memo


class TooLong(Exception):
    """A pickle has more bytes than it may."""


def pickle_once(value: Any, limit: int, root: str = "value", *, stop: bool = False) -> Once:
    """The pickle of a value, if it has no more than `limit` bytes, and its digest in any case. With `stop` a
    larger one is TooLong, and the rest of it is not looked at."""
    out = _Kept(limit, stop=stop)
    pickler = _pickle(value, out, None, root)
    return Once(out.hash.digest(16), out.size, out.data(), pickler)


def pickled_with(kind: type[Any], value: Any, root: str) -> Memo:
    """What a pickler of that kind has met, kept alive."""
    return _memo_of(_pickle(value, _Nothing(), lambda _: None, root, kind))


def _memo_of(pickler: Any) -> Memo:
    memo: Memo = pickler.memo.copy()
    return memo


def check_picklable(value: Any, root: str) -> None:
    """NotStorable with the path to what cannot be pickled. Big buffers are not touched."""
    _pickle(value, _Nothing(), lambda _: None, root)


# --- out -------------------------------------------------------------------------------


def _pickle(
    value: Any,
    out: _Out,
    take_buffer: Callable[[pickle.PickleBuffer], None] | None,
    root: str,
    kind: type[Any] | None = None,
) -> pickle.Pickler:
    from graflow_ckpt.checkpoint.code import Pickler

    pickler: pickle.Pickler = (kind or Pickler)(out, protocol=5, buffer_callback=take_buffer)
    try:
        pickler.dump(value)
    except MemoryError:
        raise
    except Exception as error:  # a save: the value's own code runs in here, and may raise anything
        if error is out.failure:
            raise
        raise _not_storable(value, root, error) from error
    return pickler


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
    """Where large payloads may go instead of the pickle."""

    def take(self, payload: memoryview, at: int, /) -> bool: ...  # `at`: its place in what is written


class _Out:
    """A pickler's file. `failure` tells what the file raised from what the value raised."""

    failure: BaseException | None = None

    def write(self, data: Buffer | pickle.PickleBuffer, /) -> int:
        return 0


class _Nothing(_Out):
    """Where a trial goes."""


class _Digesting(_Out):
    """A digest of the stream."""

    def __init__(self) -> None:
        self.hash = blake3()

    def write(self, data: Buffer | pickle.PickleBuffer, /) -> int:
        with memoryview(data) as view:
            self.hash.update(view)
        return 0


class _Kept(_Digesting):
    """A digest of the stream, and the stream itself as long as it is small."""

    def __init__(self, limit: int, *, stop: bool) -> None:
        super().__init__()
        self.size = 0
        self._limit = limit
        self._stop = stop
        self._parts: list[bytes] = []

    def write(self, data: Buffer | pickle.PickleBuffer, /) -> int:
        view = data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data).cast("B")
        self.size += view.nbytes
        if self._stop and self.size > self._limit:
            self.failure = TooLong()
            raise self.failure
        self.hash.update(view)
        if self.size <= self._limit:
            self._parts.append(bytes(view))
        else:
            self._parts.clear()
        return view.nbytes

    def data(self) -> bytes | None:
        return b"".join(self._parts) if self.size <= self._limit else None


class _Slices(_Out):
    """Large payloads go to the sink in slices, so that it can digest one while it writes the next."""

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
            size = view.nbytes
            if self._aside is not None and size >= LARGE and self._aside.take(view, self._written):
                return size
            for start in range(0, size, SLICE):
                self._sink.write(view[start : start + SLICE])
            self._written += size
            return size
        except BaseException as failure:
            self.failure = failure
            raise


def _is_frame(data: bytes) -> bool:
    """Whether these are small things that the pickler has collected. A payload that looks like them is
    only kept where it is."""
    start = 2 if data[:1] == b"\x80" else 0
    size = len(data) - start - 9 - int.from_bytes(data[start + 1 : start + 9], "little")
    return data[start : start + 1] == _FRAME and 0 <= size < _HEADER


# --- in --------------------------------------------------------------------------------


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
    """Where objects are made by the million, and no garbage, the collector takes half the time."""
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
