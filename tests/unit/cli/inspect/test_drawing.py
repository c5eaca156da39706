"""Values in one short line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint.care.difference import Held
from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.cli.inspect.comparison import change_of, picture, shown
from graflow_ckpt.core.redaction import HIDDEN
from graflow_ckpt.stores.pieces import BytesSource


def held(value: Any, size: int = 0) -> Held:
    return Held(True, type(value).__name__, size, "", value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.123456789, "0.123457"),
        (True, "True"),
        (None, "None"),
        ("short", "'short'"),
        ("long " * 20, "'long long long long long long long long… (100 characters)"),
        ([1, 2, 4], "list of 3 ▁▃█ 1 … 4"),
        ((5, 5), "tuple of 2 ▁▁ 5"),
        ([1], "list of 1"),
        (["a", "b"], "list of 2"),
        ({"a": 1}, "dict of 1"),
        ([1, float("nan"), 3], "list of 3 ▁ █ 1 … 3"),
    ],
)
def test_what_is_shown_of_a_value(value: Any, text: str) -> None:
    assert shown("name", held(value)) == text


def test_arrays_are_pictures() -> None:
    import pickle

    array = inert.load(BytesSource(pickle.dumps(np.arange(6.0).reshape(2, 3), protocol=5)))

    assert shown("w", Held(False, "numpy.ndarray", 9, "", array)) == "array of 2×3 ▁▂▄▅▇█ 0 … 5"


def test_what_is_called_like_a_secret_is_hidden() -> None:
    assert shown("api_key", held("hunter2")) == HIDDEN
    assert shown(".db.password", held("hunter2")) == HIDDEN


def test_a_long_row_is_a_picture_of_fixed_width() -> None:
    row = [float(n) for n in range(10_000)]

    assert len(picture(row)) == 24
    assert picture(row) == "".join(sorted(picture(row)))
    assert picture([]) == picture([float("inf")]) == ""


def test_a_change_is_a_percentage_or_a_size() -> None:
    assert change_of(held(2), held(3)) == "+50 %"
    assert change_of(held(-2.0), held(-3.0)) == "-50 %"
    assert change_of(held(0), held(3)) == "+3"
    assert change_of(held("a", 10), held("b", 2_010)) == "+2 kB"
    assert change_of(held("a", 10), held("b", 10)) == ""
