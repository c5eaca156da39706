"""Inert reading: shapes and contents of pickles, and no code of anybody."""

from __future__ import annotations

import collections
import enum
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.stores.streams import BytesSource


@dataclass
class Model:
    weights: Any
    name: str = "m"
    more: dict[str, Any] = field(default_factory=dict)


class Slotted:
    __slots__ = ("a", "b")


class Color(enum.Enum):
    RED = 1


class Written:
    """Pickles as it is said to."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


class Sums(list[int]):
    pass


class Gadget:
    def __reduce__(self) -> Any:
        return exec, ("raise AssertionError('code was run')",)


def read(value: Any) -> Any:
    return inert.load(BytesSource(cloudpickle.dumps(value, protocol=5)))


def made_here(name: str) -> Any:
    """A class that can only travel by value, as those of a notebook do."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(f"class {name}:\n    def __init__(self, x): self.x = x", space)
    return space[name]


def test_builtins_are_themselves() -> None:
    value = {"a": [1, 2.5, None, True], "b": ("x", b"y", {3, 4}), 5: frozenset({6}), "big": 2**100}

    assert read(value) == value


def test_objects_show_their_attributes() -> None:
    slotted = Slotted()
    slotted.a, slotted.b = 1, [2]

    assert inert.plainer(read(Model([1, 2]))) == {"weights": [1, 2], "name": "m", "more": {}}
    assert inert.plainer(read(slotted)) == {"a": 1, "b": [2]}
    assert inert.plainer(read(made_here("Local")(7))) == {"x": 7}
    assert inert.plainer([read(Model(1))])[0]["weights"] == 1


def test_classes_are_told_by_name() -> None:
    assert inert.kind_of(read(Model(1))).endswith("test_inert.Model")
    assert inert.kind_of(read(made_here("Local")(7))) == "__main__.Local"
    assert inert.kind_of(read(Model)).endswith("test_inert.Model")
    assert inert.kind_of(read(np.ones(3))) == "numpy.ndarray"
    assert inert.kind_of(read({})) == "dict"


def test_members_of_an_enum_are_told_as_the_python_that_wrote_them_has_named_them() -> None:
    """From 3.11.0 to 3.11.3 a member is an attribute of its class, which may be a class just as well."""
    as_an_instance, as_an_attribute = Written(Color, (1,)), Written(getattr, (Color, "RED"))

    assert inert.kind_of(read(as_an_instance)).endswith("test_inert.Color")
    assert inert.kind_of(read(as_an_attribute)).endswith("test_inert.Color.RED")
    assert inert.kind_of(read(Color.RED)).rpartition("test_inert.")[2] in ("Color", "Color.RED")


@pytest.mark.parametrize(
    "value",
    [Gadget(), [Gadget()], {"a": Gadget()}, Path("x"), collections.OrderedDict(a=1), collections.deque([1]),
     lambda x: x, Sums([1, 2]), np.float64(2.5), np.array(["text"]), np.array([None, {}], dtype=object),
     Color.RED, made_here("Local"), range(3), print, ValueError("x"), np.random.default_rng(1)],
)  # fmt: skip
def test_nothing_that_a_pickle_names_is_imported_or_called(value: Any) -> None:
    found = read(value)

    size, digest = inert.weigh(found)
    assert size > 0
    assert digest == inert.weigh(read(value))[1]


def test_names_that_do_not_exist_do_not_matter() -> None:
    data = pickle.dumps(Model([3])).replace(b"test_inert", b"gone_inert")

    found = inert.load(BytesSource(data))

    assert inert.kind_of(found).endswith("gone_inert.Model")
    assert inert.plainer(found)["weights"] == [3]


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i2", "u1", ">f8", ">i4"])
def test_arrays_of_numbers_are_lists_of_numbers(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)

    assert inert.plainer(read(array)) == array.tolist()
    assert inert.plainer({"a": read(array[0])}) == {"a": array[0].tolist()}


def test_arrays_that_are_no_rows_of_numbers_stay_what_they_are() -> None:
    for array in (np.array(["a"]), np.array([1j]), np.asfortranarray(np.ones((3, 2))), np.array([b"x"])):
        assert inert.array_of(read(array)) is None
    assert inert.plainer(read(np.zeros(inert.ELEMENTS + 1))) is None


def test_a_digest_differs_when_a_value_does() -> None:
    base = Model(np.arange(5.0))

    def digest(value: Any) -> str:
        return inert.weigh(read(value))[1]

    assert digest(base) == digest(Model(np.arange(5.0)))
    others = [np.arange(5.0) + 1, np.arange(5), [0, 1, 2, 3, 4], np.arange(6.0)]
    for other in (*map(Model, others), Model(base.weights, "n"), Model(base.weights, more={"a": Model(1)})):
        assert digest(other) != digest(base)
    assert digest(Sums([1])) != digest(Sums([2]))


def test_what_holds_itself_can_be_weighed() -> None:
    model = Model(1)
    model.more["self"] = model

    assert inert.weigh(read(model))[0] > 0


def test_what_is_no_pickle_is_refused() -> None:
    for data in (b"", b"nonsense", pickle.dumps([1, 2])[:-4], pickle.dumps(1) + b"more"):
        with pytest.raises(CheckpointCorrupt):
            inert.load(BytesSource(data))


@pytest.mark.parametrize(
    "data",
    [b"\x80\x04Nr\xff\xff\xff\x7f.", b"\x80\x04h\x07.", b"\x80\x04\x8e" + b"\xff" * 8, b"\x80\x04\x82\x07."],
)
def test_a_pickle_that_refers_to_what_is_not_there_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointCorrupt):
        inert.load(BytesSource(data))
