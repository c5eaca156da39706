"""What counts as one object under two names, and what does not."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import gc
import logging
import pathlib
import re
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint.values.pickles import load_live, pickle_once
from graflow_ckpt.checkpoint.values.sharing import bundles, lasting, reach


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
