"""Random state: taken, kept as a cell, and put back."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from graflow_ckpt.checkpoint.values.codec import decode
from graflow_ckpt.engine.body.random_state import (
    capture_random,
    cell_of,
    look,
    remember_random,
    restore_random,
)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()]


def test_the_same_numbers_come_after_it_was_put_back() -> None:
    draw()  # leaves half a pair of gauss behind in both
    cell = capture_random()
    expected = [draw(), draw()]

    restore_random(cell)

    assert [draw(), draw()] == expected


def test_it_is_one_plain_cell_that_is_equal_if_nothing_was_drawn() -> None:
    cell = capture_random()
    assert capture_random() == cell

    random.random()

    assert capture_random() != cell
    assert {"random", "numpy"} <= set(decode(cell))


def test_what_was_remembered_is_put_back_as_often_as_it_is_wanted() -> None:
    put_back = remember_random()
    expected = draw()

    for _ in range(2):
        put_back()
        assert draw() == expected


def test_a_library_that_is_not_loaded_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "numpy.random", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    cell = capture_random()

    assert decode(cell) == {}
    restore_random(cell)
    remember_random()()
    assert "torch" not in sys.modules


def test_a_look_becomes_the_cell_that_a_capture_is() -> None:
    seen = look()
    cell = capture_random()
    draw()

    assert cell_of(seen) == cell


class Tensor(bytearray):
    """What torch gives."""

    def numpy(self) -> Tensor:
        return self

    def tobytes(self) -> bytes:
        return bytes(self)


class Torch:
    """As much of torch as keeps a state."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.state = Tensor(b"first")

    def get_rng_state(self) -> Tensor:
        return self.state

    def set_rng_state(self, state: Tensor) -> None:
        self.state = state

    def frombuffer(self, data: bytearray, dtype: str) -> Tensor:
        assert dtype == self.uint8
        return Tensor(data)


def test_that_of_torch_is_kept_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    cell, put_back = capture_random(), remember_random()

    torch.set_rng_state(Tensor(b"second"))
    restore_random(cell)
    assert torch.state == b"first"
    torch.set_rng_state(Tensor(b"third"))
    put_back()
    assert torch.state == b"first"
