"""What a loop is over, and the objects that it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.engine.body.loop_values import END, Items, checked_state, load, state_of


class Labelled(dict[int, str]):
    """Items by label, as those of a series of pandas are."""

    def __init__(self) -> None:
        super().__init__({1: "a", 0: "b"})


class Numbered:
    """Items by number, and no other way to walk them: a data set of torch."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> int:
        return number


def taken(items: Items) -> list[Any]:
    found = []
    while (item := items.take()) is not END:
        found.append(item)
    return found


@pytest.mark.parametrize(
    ("items", "count", "indexed"),
    [
        (range(3), 3, True),
        ([1, 2], 2, True),
        ("ab", 2, True),
        (np.arange(3), 3, True),
        (Labelled(), 2, False),
        (Numbered(), 2, True),
        ({"a": 1}, 1, False),
        ({1, 2}, 2, False),
        (iter([1]), None, False),
    ],
)
def test_a_sequence_is_one_that_has_a_length_and_an_order(
    items: Any, count: int | None, indexed: bool
) -> None:
    found = Items(items)

    assert (found.count, found.indexed) == (count, indexed)


@pytest.mark.parametrize("wrong", [3, None, len, object()])
def test_what_cannot_be_walked_is_refused(wrong: Any) -> None:
    with pytest.raises(errors.GraphError, match=r"range\(100\)"):
        Items(wrong)


def test_items_are_taken_one_after_the_other_also_those_that_come_meanwhile() -> None:
    listed = ["a"]
    items = Items(listed)
    assert items.take() == "a"
    listed.append("b")

    assert taken(items) == ["b"]


def test_the_digest_is_that_of_all_that_were_taken_or_of_all_but_the_last() -> None:
    items, others = Items([1, 2, 3]), Items([1, 2, 4])
    for found in (items, others):
        found.take(), found.take()
    both = items.digest(2)
    assert both == others.digest(2) != items.digest(1)
    for found in (items, others):
        found.take()

    assert items.digest(2) == others.digest(2) == both
    assert items.digest(3) != others.digest(3)


def test_an_item_counts_as_it_was_before_the_body_had_it() -> None:
    items = Items([{"n": 1}, {"n": 2}])
    items.take()["n"] = 7
    digest = items.digest(1)
    again = Items([{"n": 1}, {"n": 2}])
    again.skip("", 1, digest, "train")

    assert taken(again) == [{"n": 2}]


def test_what_was_skipped_has_to_be_what_it_was() -> None:
    items = Items(["a", "b", "c"])
    taken(items)

    with pytest.raises(errors.RoundsChanged, match="rounds 'files' of 'train' continue at 2") as caught:
        Items(["a", "c"]).skip("files", 2, items.digest(2), "train")
    assert caught.value.ids["name"] == "files"


class Model:
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


def test_state_is_loaded_into_the_objects_that_are_there() -> None:
    inner, array, words = {"a": 1, "b": 2}, np.zeros(2), ["x"]
    whole = {"inner": inner, "array": array, "words": words, "gone": 1, "shape": np.zeros(2)}

    load(
        whole,
        {"inner": {"b": 3}, "array": np.ones(2), "words": ["y", "z"], "new": 4, "shape": np.ones(3)},
        "whole",
    )

    assert whole["inner"] is inner
    assert whole["array"] is array
    assert whole["words"] is words
    assert [inner, array.tolist(), words] == [{"b": 3}, [1, 1], ["y", "z"]]
    assert [*whole] == ["inner", "array", "words", "new", "shape"]
    assert whole["shape"].tolist() == [1, 1, 1]


def test_arrays_and_objects_with_state_are_loaded_in_place() -> None:
    array, model = np.zeros((2, 2)), Model(1)
    load(array, np.ones((2, 2)), "array")
    load(model, {"weights": 5}, "model")

    assert array.tolist() == [[1, 1], [1, 1]]
    assert (model.weights, state_of(model)) == (5, {"weights": 5})


@pytest.mark.parametrize(
    ("target", "saved"), [({}, []), ([], {}), (np.zeros(2), np.zeros(3)), (np.zeros(2), [0, 0])]
)
def test_what_was_something_else_is_named(target: Any, saved: Any) -> None:
    with pytest.raises(errors.NotStorable, match=r"train\.x was a .* and is a "):
        load(target, saved, "train.x")


@pytest.mark.parametrize("name", ["", "__random__", 3, "a\nb"])
def test_names_of_state_are_checked(name: Any) -> None:
    with pytest.raises(errors.GraphError, match="no name"):
        checked_state({name: {}})
