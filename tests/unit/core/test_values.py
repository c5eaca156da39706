"""Cells: a live value is boxed, so that nobody takes it for bytes."""

from __future__ import annotations

from graflow_ckpt.core.facts import Live


def test_a_box_shows_the_kind_of_its_value_and_never_the_value() -> None:
    assert repr(Live({"password": "secret"})) == "Live(dict)"


def test_two_boxes_are_two_even_around_one_object() -> None:
    shared = object()

    assert Live(shared) != Live(shared)
    assert Live(b"\x01") != b"\x01"
