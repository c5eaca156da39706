"""Random state: captured, put back, and of those libraries only that are loaded."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint.values.codec import decode
from graflow_ckpt.engine import rng


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()]


def test_the_same_numbers_come_after_it_was_put_back() -> None:
    draw()  # leaves half a pair of gauss behind in both
    cell = rng.capture()
    expected = [draw(), draw()]

    rng.restore(cell)

    assert [draw(), draw()] == expected


def test_it_is_one_plain_cell_that_is_equal_if_nothing_was_drawn() -> None:
    cell = rng.capture()
    assert rng.capture() == cell

    random.random()

    assert rng.capture() != cell
    assert {"random", "numpy"} <= set(decode(cell))


def test_what_was_remembered_is_put_back_as_often_as_it_is_wanted() -> None:
    put_back = rng.remember()
    expected = draw()

    for _ in range(2):
        put_back()
        assert draw() == expected


def test_a_library_that_is_not_loaded_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "numpy.random", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    cell = rng.capture()

    assert decode(cell) == {}
    rng.restore(cell)
    rng.remember()()
    assert "torch" not in sys.modules


class Bits:
    """A tensor of bytes, as far as rng.py goes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def numpy(self) -> Any:
        return np.frombuffer(self.data, np.uint8)


def test_the_generator_of_torch_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    state = SimpleNamespace(now=b"\x01\x02")

    def from_buffer(data: bytearray, dtype: object) -> Bits:
        assert dtype == "uint8"
        return Bits(bytes(data))

    def set_state(bits: Bits) -> None:
        state.now = bits.data

    vars(torch).update(
        get_rng_state=lambda: Bits(state.now), set_rng_state=set_state, frombuffer=from_buffer, uint8="uint8"
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    cell, put_back = rng.capture(), rng.remember()
    for restore in (lambda: rng.restore(cell), put_back):
        state.now = b"\xff"

        restore()

        assert state.now == b"\x01\x02"
