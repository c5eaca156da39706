"""Cells: plain as bytes, live as themselves, neither where nothing could keep them."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint.codec import check_storable, decode, to_cell
from graflow_ckpt.core.errors import NotStorable
from graflow_ckpt.core.facts import Live


class Model:
    def __init__(self, part: Any) -> None:
        self.part = part


def test_a_plain_value_is_its_bytes() -> None:
    for make in (to_cell, lambda value: check_storable("x", value)):
        cell = make({"a": (1, 2)})

        assert isinstance(cell, bytes)
        assert decode(cell) == {"a": (1, 2)}


def test_a_live_value_is_itself() -> None:
    model = Model(1)

    for cell in (to_cell(model), check_storable("x", model)):
        assert isinstance(cell, Live)
        assert cell.value is model


def test_a_list_that_is_in_two_places_stays_one() -> None:
    row = [0]

    cell = to_cell([row, row])

    assert isinstance(cell, Live)
    assert cell.value[0] is cell.value[1]


def test_what_nothing_could_keep_is_refused_with_its_path() -> None:
    with pytest.raises(NotStorable) as caught:
        check_storable("channel['model']", Model([1, threading.Lock()]))

    assert caught.value.path == "channel['model'].part[1]"


def test_checking_an_array_does_not_copy_it() -> None:
    check_storable("x", Model(1))
    array = np.ones(1 << 20)

    tracemalloc.start()
    check_storable("x", Model(array))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < array.nbytes // 4
