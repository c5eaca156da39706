"""The arguments of calls: bound as Python would, refused by name where the call is made."""

from __future__ import annotations

import threading
from collections import namedtuple
from typing import Any

import pytest

from graflow_ckpt import task
from graflow_ckpt.checkpoint.codec import decode
from graflow_ckpt.core.errors import NotStorable
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.core.values import Live
from graflow_ckpt.engine.bind import SPREAD, Binding, bind
from graflow_ckpt.fleet.accepting import call_of, data_of, pages


@task
def scale(rows: Any, factor: int = 2, *, note: str = "") -> Any:
    return rows


@task(inject_context=True)
def told(context: Any, data: Any, other: int) -> None: ...


@task
def nothing() -> None: ...


def binding(one: Task) -> Binding:
    graph = TaskGraph()
    graph.add(one)
    graph.compile([one.name])
    return bind(graph, one)


def given(one: Task, *args: Any, **kwargs: Any) -> Any:
    cell = data_of(binding(one), args, kwargs)
    assert not isinstance(cell, Live)
    return None if cell is None else decode(cell)


def test_one_argument_is_the_data_and_several_are_spread() -> None:
    assert given(nothing) is None
    assert given(scale, 3) == 3
    assert given(scale, [1, 2]) == [1, 2]
    assert given(scale, 3, 4) == {SPREAD: {"rows": 3, "factor": 4}}
    assert given(scale, 3, note="n") == {SPREAD: {"rows": 3, "note": "n"}}
    assert given(told, 1, 2) == {SPREAD: {"data": 1, "other": 2}}


def test_a_dict_is_an_argument_like_any_other() -> None:
    assert given(scale, {"a": 1}) == {SPREAD: {"rows": {"a": 1}}}


@pytest.mark.parametrize(
    ("args", "kwargs", "told_"),
    [
        ((1, 2, "n", 4), {}, r"scale\(\) takes 3 arguments, and 4 were given"),
        ((1,), {"rows": 2}, r"scale\(\) got two values for argument 'rows'"),
        ((1,), {"row": 2}, r"scale\(\) got an unknown argument 'row'"),
        ((), {"factor": 2}, r"scale\(\) lacks the argument 'rows'"),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(args: Any, kwargs: Any, told_: str) -> None:
    with pytest.raises(TypeError, match=told_):
        data_of(binding(scale), args, kwargs)


def test_a_task_without_parameters_takes_none() -> None:
    with pytest.raises(TypeError, match=r"nothing\(\) takes no arguments, and 1 were given"):
        data_of(binding(nothing), (1,), {})


def test_a_bound_argument_need_not_be_given_and_can_be() -> None:
    bound = scale.bind(rows=1)

    assert given(bound) is None
    assert given(bound, 2) == 2


def test_what_cannot_be_stored_is_named_by_its_parameter() -> None:
    for args, kwargs in (((threading.Lock(),), {}), ((1,), {"note": threading.Lock()})):
        with pytest.raises(NotStorable) as raised:
            data_of(binding(scale), args, kwargs)
        assert raised.value.path == ("note" if kwargs else "rows")


def test_an_item_is_an_argument_a_tuple_of_them_or_a_dict_by_name() -> None:
    point = namedtuple("point", "x y")(1, 2)

    assert call_of("a.png") == (("a.png",), {})
    assert call_of((1, 2)) == ((1, 2), {})
    assert call_of({"rows": 1}) == ((), {"rows": 1})
    assert call_of(({"rows": 1},)) == (({"rows": 1},), {})
    assert call_of([1, 2]) == (([1, 2],), {})
    assert call_of(point) == ((point,), {})
    assert call_of(()) == ((), {})


def test_specs_are_sent_in_portions_by_number_and_by_size() -> None:
    def sizes(*ops: tuple[Any, ...]) -> list[int]:
        return [len(page) for page in pages(ops)]

    assert sizes() == [0]
    assert sizes(*[("enqueue", "t", None)] * 2500) == [1000, 1000, 500]
    assert sizes(*[("enqueue", "t", None)] * 2000) == [1000, 1000, 0]
    assert sizes(*[("enqueue", "t", bytes(400_000))] * 7) == [3, 3, 1]
