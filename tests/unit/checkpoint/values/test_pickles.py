"""Pickles: plain, streamed without copies, refused by path; what is one object under two names; and code by
name, with copies: what a copy may hold, and what is said when there is none."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import gc
import io
import logging
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc
import zoneinfo
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from graflow_ckpt.checkpoint.values.pickles import (
    COPY_LIMIT,
    dump,
    live_bytes,
    live_digest,
    load,
    load_live,
    pickle_once,
)
from graflow_ckpt.checkpoint.values.sharing import bundles, lasting, reach
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, NotStorable
from graflow_ckpt.core.protocols import Buffer

LARGE = 300_000
BIG = 8 << 20


class Part:
    """A source over bytes that gives at most `most` of them at a time."""

    def __init__(self, data: bytes, most: int = sys.maxsize) -> None:
        self._file, self._most = io.BytesIO(data), most
        self.size = len(data)
        self.largest = 0

    def readinto(self, buffer: memoryview, /) -> int:
        self.largest = max(self.largest, buffer.nbytes)
        return self._file.readinto(buffer[: self._most])

    def close(self) -> None:
        self._file.close()


class Model:
    def __init__(self, *layers: Any) -> None:
        self.layers = list(layers)


class Layer:
    __slots__ = ("lock", "model", "size")

    def __init__(self, size: int, lock: Any = None, model: Any = None) -> None:
        self.size, self.lock, self.model = size, lock, model


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "c order": np.arange(LARGE, dtype="f4").reshape(3, -1),
    "fortran order": np.asfortranarray(np.arange(LARGE).reshape(300, -1)),
    "transposed": np.arange(LARGE).reshape(10, 100, -1).transpose(1, 0, 2),
    "strided": np.arange(LARGE)[::2],
    "reversed": np.arange(LARGE)[::-1],
    "a view": np.arange(LARGE)[5:-5],
    "read only": frozen(np.arange(LARGE)),
    "no dimension": np.array(1.5),
    "empty": np.zeros((0, 3)),
    "small": np.arange(10),
    "structured": np.zeros(LARGE, dtype=[("a", "i4"), ("b", "f8", (2,))]),
    "objects": np.array([{"a": 1}, None, "x"], dtype=object),
    "dates": np.arange(LARGE).astype("M8[s]"),
    "other byte order": np.arange(LARGE, dtype=">i8"),
    "at the frame limit": np.zeros(64 * 1024, dtype="u1"),
    "below the frame limit": np.zeros(64 * 1024 - 1, dtype="u1"),
    "a big one": np.arange(BIG // 4 + 10, dtype="u4"),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_come_back_as_they_were(array: np.ndarray[Any, Any]) -> None:
    data = live_bytes({"first": array, "again": array, "after": "end"})

    for back in (load(Part(data)), load_live(data), pickle.loads(data), pickle.load(io.BytesIO(data))):
        assert back["first"].dtype == array.dtype
        assert back["first"].shape == array.shape
        assert np.array_equal(back["first"], array)
        assert back["first"].flags.writeable == array.flags.writeable
        assert back["first"].flags.f_contiguous == array.flags.f_contiguous or not array.flags.forc
        assert back["again"] is back["first"]
        assert back["after"] == "end"


@pytest.mark.parametrize("payload", [b"x" * LARGE, bytearray(b"y" * LARGE), "é" * LARGE, b"z" * (BIG + 1)])
def test_large_payloads_that_are_no_arrays_come_back(payload: Any) -> None:
    data = live_bytes([payload, 1, payload])

    back = load(Part(data))

    assert back == pickle.loads(data) == [payload, 1, payload]
    assert back[0] is back[2]
    assert type(back[0]) is type(payload)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype) and one.tobytes() == other.tobytes()
    return bool(one == other)


@given(
    st.lists(
        st.one_of(
            arrays.arrays(st.sampled_from(["u1", "f8"]), st.integers(0, 40_000)),
            st.binary(max_size=200),
            st.integers(65_000, 140_000).map(bytes),
            st.text(),
        ),
        max_size=6,
    ),
    st.sampled_from([1_000, 70_000, sys.maxsize]),
)
def test_any_mixture_of_small_and_large_comes_back(values: list[Any], most: int) -> None:
    data = live_bytes(values)

    for back in (load(Part(data, most)), pickle.loads(data)):
        assert len(back) == len(values)
        assert all(same(one, other) for one, other in zip(back, values, strict=True))


def test_the_memory_of_an_array_goes_to_the_sink_uncopied() -> None:
    array = np.ones(5 * BIG // 8 + 3)
    address, size = array.ctypes.data, array.nbytes
    inside: list[int] = []

    class Watching:
        def write(self, data: Buffer, /) -> int:
            if address <= np.frombuffer(data, "u1").ctypes.data < address + size:
                inside.append(len(data))
            return len(data)

    tracemalloc.start()
    dump({"model": Model(array, frozen(array.view()))}, Watching())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert sum(inside) == 2 * size
    assert peak < BIG


def test_a_large_array_is_read_straight_into_its_place() -> None:
    array = np.ones(2 * BIG // 8)
    part = Part(live_bytes(array))

    tracemalloc.start()
    load(part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert part.largest > array.nbytes * 0.9
    assert peak < array.nbytes + BIG // 2


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda lock: lock, "v"),
        (lambda lock: {"a": [1, (2, lock)]}, "v['a'][1][1]"),
        (lambda lock: Model(1, 2, 3, Layer(4, lock)), "v.layers[3].lock"),
        (lambda lock: OrderedDict(x=lock), "v['x']"),
        (lambda lock: deque([0, lock]), "v[1]"),
        (lambda lock: partial(print, lock), "v.__getstate__()[1][0]"),
        (lambda lock: {lock: 1}, "v.keys()[0]"),
        (lambda lock: lambda: lock, "v.<closure>.lock"),
        (lambda lock: Model(np.array([None, lock], dtype=object)), "v.layers[0].__getstate__()[4][1]"),
        (lambda lock: Model(lock).__class__.__init__.__get__(Model(lock)), "v.__self__.layers[0]"),
        (lambda lock: {"many": [*range(5000), lock]}, "v['many'][5000]"),
    ],
)
def test_what_cannot_be_pickled_is_named_with_its_path(build: Callable[[Any], Any], path: str) -> None:
    with pytest.raises(NotStorable) as caught:
        live_bytes(build(threading.Lock()), root="v")

    assert caught.value.path == path
    assert caught.value.kind == "_thread.lock"
    assert path in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("mode", ["r", "w", "rb"])
@pytest.mark.parametrize("build", [lambda file: {"f": file}, lambda file: [lambda: file.read()]])
def test_an_open_file_is_refused_whatever_it_holds(
    mode: str, build: Callable[[Any], Any], tmp_path: Path
) -> None:
    path = tmp_path / "text"
    path.write_text("what it says")

    with path.open(mode) as file, pytest.raises(NotStorable, match=r"an open file|BufferedReader"):
        live_bytes(build(file), root="v")


def test_what_a_process_writes_to_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "stderr").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)

        assert load_live(live_bytes([file])) == [file]


def test_a_culprit_is_found_past_parts_that_point_back() -> None:
    model = Model(1)
    model.layers += [Layer(1, model=model), Layer(2, threading.Lock(), model)]

    with pytest.raises(NotStorable) as caught:
        live_bytes({"model": model}, root="channel")

    assert caught.value.path == "channel['model'].layers[2].lock"


def test_a_value_whose_own_code_fails_is_the_culprit() -> None:
    class Shy:
        def __getstate__(self) -> Any:
            raise KeyError("not today")

    with pytest.raises(NotStorable, match="not today") as caught:
        live_bytes([1, Shy()], root="v")

    assert caught.value.path == "v[1]"


def test_a_value_that_is_too_deep_is_not_storable() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(NotStorable) as caught:
        live_bytes(deep, root="v")

    assert caught.value.path == "v"


def test_an_error_of_the_sink_stays_what_it_is() -> None:
    full = OSError(28, "No space left on device")

    class Full:
        def write(self, _: Buffer, /) -> int:
            raise full

    for value in (1, np.zeros(LARGE)):
        with pytest.raises(OSError, match="No space") as caught:
            dump(value, Full())

        assert caught.value is full


@pytest.mark.parametrize("cut", [0, 1, 30, -1])
def test_a_short_pickle_is_corrupt(cut: int) -> None:
    data = live_bytes(Model(np.zeros(LARGE), "x"))

    with pytest.raises(CheckpointCorrupt):
        load(Part(data[:cut]))
    with pytest.raises(CheckpointCorrupt):
        load_live(data[:cut])


def test_what_follows_a_pickle_is_corrupt() -> None:
    with pytest.raises(CheckpointCorrupt, match="follows"):
        load(Part(live_bytes(1) + b"x"))


def test_a_class_that_is_gone_is_named_and_not_called_damage() -> None:
    data = live_bytes(Counter("a")).replace(b"Counter", b"Cuonter")

    with pytest.raises(CheckpointError, match="Cuonter") as caught:
        load_live(data)

    assert not isinstance(caught.value, CheckpointCorrupt)


def test_the_collector_rests_while_much_is_loaded_and_goes_on_after() -> None:
    states: list[bool] = []

    class Looking(Part):
        def readinto(self, buffer: memoryview, /) -> int:
            states.append(gc.isenabled())
            return super().readinto(buffer)

    for value in (bytes(2 << 20), 1):
        load(Looking(live_bytes(value)))
        assert gc.isenabled()

    assert not states[0]
    assert states[-1]


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["model"].layers[0].__setitem__(7, 1.0),
        lambda value: value["model"].layers[1].__setitem__((0, 0), 1),
        lambda value: value["model"].layers.append(None),
        lambda value: value.update(step=2),
        lambda value: value["raw"].__setitem__(0, 1),
        lambda value: value["model"].layers.__setitem__(0, value["model"].layers[0].astype("f4")),
        lambda value: value["model"].layers.__setitem__(0, value["model"].layers[0].reshape(10, -1)),
    ],
)
def test_a_digest_differs_after_any_change(change: Callable[[Any], None]) -> None:
    value = {
        "model": Model(np.zeros(LARGE), np.zeros((100, 100), "i8")[:, ::2]),
        "step": 1,
        "raw": bytearray(LARGE),
    }
    before = live_digest(value)

    assert live_digest(value) == before
    assert len(before) == 16
    change(value)
    assert live_digest(value) != before


def test_a_digest_does_not_copy_big_buffers() -> None:
    value = Model(np.ones(BIG // 8), bytes(BIG))

    live_digest(Model(1))
    tracemalloc.start()
    live_digest(value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < BIG // 4


class Raw:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def __reduce_ex__(self, _: Any) -> Any:
        return Raw, (pickle.PickleBuffer(self.content),)


def test_where_one_buffer_ends_and_the_next_begins_counts() -> None:
    assert live_digest([Raw(b"ab"), Raw(b"c")]) != live_digest([Raw(b"a"), Raw(b"bc")])


# --- one object under two names -------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Thing:
    def __init__(self) -> None:
        self.parts: list[Any] = []

    def method(self) -> None: ...


class Meta(type):
    pass


class WithMeta(metaclass=Meta):
    pass


class Fickle:
    def __getstate__(self) -> dict[str, Any]:
        return {"made": [[1], {"a": [2]}], "also": collections.deque([3])}


SINGLE = Thing()


class Single:
    def __reduce__(self) -> str:
        return "ONLY"


class Lookup:
    def __reduce__(self) -> Any:
        return the_lookup, ()


ONLY, LOOKUP = Single(), Lookup()
GLOBAL: list[int] = []


def the_lookup() -> Lookup:
    return LOOKUP


def with_default() -> Callable[[], Any]:
    return lambda items=[]: items


def with_global() -> Callable[[], Any]:
    return lambda: GLOBAL


def local_class() -> type:
    class Local(Thing):
        def method(self) -> None:
            super().method()

    return Local


def counters() -> tuple[Callable[[], int], Callable[[], int]]:
    count = 0

    def up() -> int:
        nonlocal count
        count += 1
        return count

    return up, lambda: count


def numbers() -> Iterator[int]:
    yield from range(3)


def frozen_array() -> Any:
    array = np.arange(3.0)
    array.flags.writeable = False
    return array


NOT_SHARED: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a text": lambda: "text" * 9,
    "bytes": lambda: b"bytes" * 9,
    "a large int": lambda: 10**40,
    "a tuple": lambda: (1, "a"),
    "a frozenset": lambda: frozenset({1, 2}),
    "a range": lambda: range(3),
    "a decimal": lambda: decimal.Decimal("1.5"),
    "a date": lambda: datetime.date(2026, 1, 1),
    "UTC": lambda: datetime.UTC,
    "a zone": lambda: zoneinfo.ZoneInfo("UTC"),
    "a path": lambda: pathlib.PurePosixPath("a/b"),
    "a regex": lambda: re.compile("a+"),
    "an enum's member": lambda: Colour.RED,
    "a logger": lambda: logging.getLogger("tests.sharing"),
    "a class": lambda: Thing,
    "a class of a metaclass": lambda: WithMeta,
    "a local class": local_class,
    "a module": lambda: collections,
    "a function": lambda: the_lookup,
    "a builtin": lambda: len,
    "a lambda with a global": with_global,
    "a dtype": lambda: np.dtype("f8"),
    "a numpy scalar": lambda: np.float64(1.5),
    "a read-only array": frozen_array,
    "an object with a name": lambda: ONLY,
    "an object that is looked up": lambda: LOOKUP,
}

SHARED: dict[str, Callable[[], Any]] = {
    "a list": list,
    "a dict": lambda: {"a": 1},
    "a set": lambda: {1},
    "a bytearray": lambda: bytearray(b"a"),
    "an array": lambda: np.arange(3.0),
    "an array of objects": lambda: np.array([[], None], dtype=object),
    "a random generator": lambda: np.random.default_rng(1),
    "a deque": lambda: collections.deque([1]),
    "a Counter": lambda: collections.Counter("aab"),
    "an instance": Thing,
    "an instance of a local class": lambda: local_class()(),
    "a method of an instance": lambda: Thing().method,
    "a lambda with a mutable default": with_default,
}


def holder(value: Any) -> Thing:
    thing = Thing()
    thing.parts.append([value])
    return thing


@pytest.mark.parametrize("kind", NOT_SHARED)
def test_what_cannot_be_changed_or_is_one_anywhere_joins_nothing(kind: str) -> None:
    value = NOT_SHARED[kind]()

    assert bundles({"a": [holder(value)], "b": [holder(value)]}) == [["a"], ["b"]]


@pytest.mark.parametrize("kind", SHARED)
def test_what_can_be_changed_joins_the_names_that_it_stands_under(kind: str) -> None:
    value = SHARED[kind]()
    one, other = holder(value), holder(value)

    assert bundles({"a": [one], "c": [holder(SHARED[kind]())], "b": [other]}) == [["a", "b"], ["c"]]


def test_two_closures_share_what_one_of_them_changes() -> None:
    up, now = counters()

    assert bundles({"a": [up], "b": [now], "c": [counters()[0]]}) == [["a", "b"], ["c"]]


def test_views_of_one_array_are_not_taken_for_one() -> None:
    array = np.arange(4.0)

    assert bundles({"a": [array[:2]], "b": [array[2:]]}) == [["a"], ["b"]]


def test_names_are_joined_through_a_third_one() -> None:
    one, other = [1], [2]

    found = bundles({"a": [[one]], "b": [[other]], "c": [[3]], "d": [[one, other]]})

    assert found == [["a", "b", "d"], ["c"]]


def test_what_a_pickle_makes_for_itself_is_not_taken_for_a_part_of_the_value() -> None:
    value = [Fickle() for _ in range(100)]

    memo = pickle_once(value, 0).memo()
    found = lasting(memo)

    assert {id(one) for one in value} <= found
    assert len(found) <= 2 * len(value) + 1  # an error may keep some, and never drops an object
    assert bundles({"a": [value], "b": [[Fickle() for _ in range(100)]]}) == [["a"], ["b"]]


def test_nothing_that_lasts_is_dropped() -> None:
    value = [{"a": [n], "b": holder({n})} for n in range(50)]
    expected = [value, *value, *(one["a"] for one in value), *(one["b"] for one in value)]
    expected += [one["b"].parts for one in value] + [one["b"].parts[0] for one in value]

    found = lasting(pickle_once(value, 0).memo())

    assert {id(one) for one in expected} <= found


def test_a_walk_keeps_nothing_alive_when_it_is_over() -> None:
    value = holder(np.arange(3.0))
    before = sys.getrefcount(value.parts)

    reach([value], "value")
    gc.collect()
    after = sys.getrefcount(value.parts)

    assert after == before


@pytest.mark.parametrize("order", ["C", "F"])
def test_one_pass_takes_large_arrays(order: Any) -> None:
    value = [np.arange(60_000.0).reshape(300, 200).copy(order), np.arange(9)[::2], bytearray(100_000)]

    once = pickle_once(value, 1 << 20)

    assert once.data is not None
    found = load_live(once.data)
    assert all((a == b).all() for a, b in zip(found[:2], value[:2], strict=True))
    assert found[2] == value[2]
    value[0][7, 7] += 1.0
    assert pickle_once(value, 0).digest != once.digest


@pytest.mark.parametrize("size", [0, 1, 100, 200_000])
def test_one_pass_keeps_a_pickle_up_to_a_size_and_digests_any(size: int) -> None:
    value = [bytes(size), holder(1)]

    large, small = pickle_once(value, 1 << 20), pickle_once(value, 10)

    assert large.data is not None
    assert large.size == len(large.data) == small.size
    assert small.data is None
    assert small.digest == large.digest != pickle_once([bytes(size), holder(2)], 10).digest
    assert pickle_once(value, large.size).data == large.data
    assert pickle_once(value, large.size - 1).data is None


# --- code by name, with copies ---------------------------------------------------------

PROGRAM = """
import logging, sys
from graflow_ckpt.checkpoint.values.pickles import live_bytes
logging.basicConfig(stream=sys.stderr)
data = bytes({size})
def count(): return len(data)
sys.stdout.buffer.write(live_bytes([count, count]))
"""


def made_by_a_program(size: int) -> tuple[bytes, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(size=size)], capture_output=True, check=True)
    return done.stdout, done.stderr.decode()


def test_a_copy_takes_the_small_data_that_its_code_uses() -> None:
    data, said = made_by_a_program(1000)

    assert [count() for count in load_live(data)] == [1000, 1000]
    assert said == ""


def test_large_data_that_code_uses_is_not_in_its_copy() -> None:
    data, said = made_by_a_program(COPY_LIMIT)

    assert len(data) < 1000
    assert said.count("count of __main__ uses more than 1 MiB of global data") == 1
    with pytest.raises(
        CheckpointError, match="__main__ has no 'count', and the checkpoint has only its name"
    ):
        load_live(data)


def elsewhere(program: str, opened: str, folder: Path) -> str:
    """What another process says that runs `opened` on the pickle of `made`, which `program` makes."""
    (folder / "made.py").write_text(
        f"from graflow_ckpt.checkpoint.values.pickles import live_bytes\n{dedent(program)}\n"
        "open('pickle', 'wb').write(live_bytes(made))\n"
    )
    (folder / "opened.py").write_text(
        "from graflow_ckpt.checkpoint.values.pickles import load_live\n"
        "def load(): return load_live(open('pickle', 'rb').read())\n" + dedent(opened)
    )
    for name in ("made.py", "opened.py"):
        done = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return done.stdout


ASKED = """
    from graflow_ckpt import _restore
    def main(): return "of the process that opens it"
    print(load()())
"""


def test_a_name_of_main_means_the_programs_own_where_it_runs(tmp_path: Path) -> None:
    said = elsewhere("def main(): return 'of the program'\nmade = main", ASKED, tmp_path)

    assert said == "of the process that opens it\n"


def test_in_a_foreign_main_a_name_means_what_was_pickled(tmp_path: Path) -> None:
    """A worker's `__main__` has a function `main`, too."""
    asked = ASKED.replace("    print", "    _restore.in_foreign_main()\n    print")

    said = elsewhere("def main(): return 'of the program'\nmade = main", asked, tmp_path)

    assert said == "of the program\n"


def test_a_cached_function_of_main_is_made_again(tmp_path: Path) -> None:
    program = """
        from functools import lru_cache
        @lru_cache(maxsize=7)
        def twice(n): return 2 * n
        def task(n): return twice(n)
        made = [task, twice]
    """
    asked = "task, twice = load(); print(task(4), twice.cache_parameters()['maxsize'])"

    assert elsewhere(program, asked, tmp_path) == "8 7\n"


@lru_cache
def known(n: int) -> int:
    return n


def test_a_cached_function_of_a_module_stays_itself() -> None:
    assert load_live(live_bytes(known)) is known


def test_a_module_that_was_registered_to_travel_is_not_needed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "lib.py").write_text(
        "from graflow_ckpt import task\n@task\ndef step(): return helper()\ndef helper(): return 7"
    )
    program = """
        import cloudpickle, lib, os
        cloudpickle.register_pickle_by_value(lib)
        made = lib.step.func
        os.remove('lib.py')
    """

    assert elsewhere(program, "print(load()())", tmp_path) == "7\n"
