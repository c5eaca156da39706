"""Constants: exact types, compared by content."""

from __future__ import annotations

import re
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import pytest

from graflow_ckpt.checkpoint.bytecode import pack
from graflow_ckpt.checkpoint.constants import amounts_to, contents_of, is_constant


class Level(IntEnum):
    LOW = 1


def test_only_what_cannot_change_and_has_no_code_is_a_constant() -> None:
    assert all(map(is_constant, [None, 1, 1.5, 2j, True, "a", b"a", ..., (), (1, ("a",)), frozenset({(1,)})]))
    assert not any(map(is_constant, [[], {}, set(), (1, []), Level.LOW, object(), bytearray(), int, len]))


@pytest.mark.parametrize(
    "values",
    [
        ([1], [2], (1,), {1}, frozenset({1}), {1: 1}, bytearray(b"1"), [[1]], [(1,)], "[1]"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),  # the order of a dict is part of what it says
        ({"a": [1, {"b": {2}}]}, {"a": [1, {"b": {3}}]}),
    ],
)
def test_containers_of_constants_are_compared_by_content_and_type(values: tuple[Any, ...]) -> None:
    found = [contents_of(value) for value in values]

    assert None not in found
    assert len({pack((each,)) for each in found}) == len(values)


def test_sets_are_the_same_in_any_order() -> None:
    one, other = {8, 0, "a"}, {"a", 0, 8}

    assert pack((contents_of(one),)) == pack((contents_of(other),))


def test_a_container_with_anything_else_in_it_has_no_contents() -> None:
    endless: list[Any] = []
    endless.append(endless)

    assert [
        contents_of(x) for x in ([object()], {"a": len}, {1: Level.LOW}, {Level.LOW}, endless, OrderedDict())
    ] == ([None] * 6)


def test_immutable_values_of_the_library_amount_to_constants() -> None:
    pairs: list[tuple[Any, Any]] = [
        (date(2026, 1, 1), date(2026, 1, 2)),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC)),
        (time(1), time(2)),
        (timedelta(1), timedelta(2)),
        (Decimal("1"), Decimal("1.0")),
        (Fraction(1, 2), Fraction(1, 3)),
        (Path("a"), Path("b")),
        (PurePosixPath("a"), PureWindowsPath("a")),
        (range(3), range(4)),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
        (UUID(int=1), UUID(int=2)),
    ]

    for one, other in pairs:
        assert pack((amounts_to(one),)) != pack((amounts_to(other),))
        assert amounts_to(one) == amounts_to(one)
    assert amounts_to(object()) is None
