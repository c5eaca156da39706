"""Parameters: one source each, known before the run, refused by name if there are two or none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from graflow_ckpt.core.errors import GraphError, TaskError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import All, Group, Options, Task
from graflow_ckpt.engine.bind import MISSING, Binding, bind, check, fill, signature

CONTEXT = Options(inject_context=True)


def graph_of(*tasks: Task, edges: str = "", start: str = "a") -> TaskGraph:
    """`edges="ab bc"`."""
    graph = TaskGraph()
    for task in tasks:
        graph.add(task)
    for source, target in edges.split():
        graph.add_edge(source, target)
    graph.compile([start])
    return graph


def checked(graph: TaskGraph, *channel: str) -> None:
    check(
        graph,
        {name: bind(graph, node) for name, node in graph.nodes.items() if isinstance(node, Task)},
        channel,
    )


def filled(binding: Binding, data: Any = MISSING, results: Any = None, channel: Any = None) -> dict[str, Any]:
    results, channel = results or {}, channel or {}
    return fill(
        binding,
        "t",
        data,
        lambda name: results.get(name.removesuffix(".__result__"), MISSING),
        lambda name: channel.get(name, MISSING),
    )


def nothing() -> None: ...
def one(x: Any) -> None: ...
def two(a: Any, b: Any = 5) -> None: ...


# --- signatures ------------------------------------------------------------------------


def test_a_signature_is_read_off_the_code() -> None:
    def body(a: int, b: int = 2, *rest: int, c: int, d: int = 4, **more: int) -> None: ...

    assert signature(body) == (["a", "b", "c", "d"], {"b": 2, "d": 4})


def test_other_callables_have_signatures_too() -> None:
    @functools.wraps(two)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    class Callee:
        def __call__(self, x: int, *, y: int = 1) -> None: ...
        def method(self, z: int) -> None: ...

    assert signature(wrapped) == (["a", "b"], {"b": 5})
    assert signature(Callee()) == (["x", "y"], {"y": 1})
    assert signature(Callee().method) == (["z"], {})
    assert signature(functools.partial(two, b=7))[0] == ["a", "b"]


def positional(x: int, /, y: int) -> None: ...


@pytest.mark.parametrize("func", [positional, functools.partial(positional)], ids=["function", "partial"])
def test_a_positional_only_parameter_is_refused_by_name(func: Callable[..., Any]) -> None:
    with pytest.raises(GraphError, match=r"'x' of .* is positional only") as caught:
        Binding(Task("t", func), {}, {})

    assert caught.value.parameter == "x"


def test_the_context_is_found_by_its_name_or_is_the_first_parameter() -> None:
    def named(a: int, ctx: Any) -> None: ...
    def first(c: Any, a: int) -> None: ...

    assert Binding(Task("t", named, CONTEXT), {}, {}).context == "ctx"
    assert Binding(Task("t", first, CONTEXT), {}, {}).context == "c"
    assert [p.name for p in Binding(Task("t", named, CONTEXT), {}, {}).parameters] == ["a"]


def test_a_body_that_takes_nothing_is_plain() -> None:
    assert Binding(Task("t", nothing), {}, {}).plain
    assert not Binding(Task("t", one), {}, {}).plain


def test_a_context_that_no_parameter_takes_is_refused() -> None:
    with pytest.raises(GraphError, match="'t' has inject_context=True and takes no parameter"):
        Binding(Task("t", nothing, CONTEXT), {}, {})


def test_an_argument_that_no_parameter_takes_is_refused_by_name() -> None:
    with pytest.raises(GraphError, match="'t' takes no parameter 'y'"):
        Binding(Task("t", one, arguments={"y": 1}), {}, {})


# --- filling ---------------------------------------------------------------------------


def test_results_of_predecessors_come_first_and_then_the_channel_and_then_the_default() -> None:
    graph = graph_of(Task("a", nothing), Task("t", lambda a, x, y=3: None), edges="at")

    arguments = filled(bind(graph, graph.nodes["t"]), None, {"a": 1}, {"x": 2})  # type: ignore[arg-type]

    assert arguments == {"a": None, "x": 2}  # data goes to the first parameter
    arguments = filled(bind(graph, graph.nodes["t"]), MISSING, {"a": 1}, {"x": 2, "y": 4})  # type: ignore[arg-type]
    assert arguments == {"a": 1, "x": 2, "y": 4}


def test_data_goes_to_the_parameter_of_that_name_else_to_the_first() -> None:
    def named(x: int, data: int) -> None: ...

    assert filled(Binding(Task("t", one), {}, {}), 7) == {"x": 7}
    assert filled(Binding(Task("t", named), {}, {}), 7, channel={"x": 1}) == {"x": 1, "data": 7}
    assert filled(Binding(Task("t", nothing), {}, {}), 7) == {}


def test_data_none_is_data() -> None:
    assert filled(Binding(Task("t", one), {}, {}), None) == {"x": None}


def test_an_argument_that_is_bound_stays() -> None:
    assert filled(Binding(Task("t", two, arguments={"a": 1}), {}, {}), channel={"a": 9}) == {"a": 1}


def test_a_predecessor_without_a_result_is_the_default_or_none() -> None:
    graph = graph_of(Task("a", nothing), Task("b", nothing), Task("t", two), edges="at bt")

    assert filled(bind(graph, graph.nodes["t"])) == {"a": None}  # type: ignore[arg-type]


def test_a_group_is_a_dict_of_the_results_that_are_there() -> None:
    graph = TaskGraph()
    for name in "ab":
        graph.add(Task(name, nothing))
    graph.add(Group("g", All(), ("a", "b"), frozenset("ab")))
    graph.add(Task("t", lambda g, a: None))
    for source, target in ("ag", "bg", "gt"):
        graph.add_edge(source, target)
    graph.compile(["a", "b"])

    binding = bind(graph, graph.nodes["t"])  # type: ignore[arg-type]

    assert filled(binding, results={"a": 1}) == {"g": {"a": 1}, "a": 1}


def test_a_group_in_a_group_stands_for_its_tasks() -> None:
    graph = TaskGraph()
    for name in "ab":
        graph.add(Task(name, nothing))
    graph.add(Group("h", All(), ("b",), frozenset("b")))
    graph.add(Group("g", All(), ("a", "h"), frozenset("ab")))
    graph.add(Task("t", lambda g, h, b: None))
    for source, target in ("bh", "ag", "hg", "gt"):
        graph.add_edge(source, target)
    graph.compile(["a", "b"])

    binding = bind(graph, graph.nodes["t"])  # type: ignore[arg-type]

    assert filled(binding, results={"a": 1, "b": 2}) == {"g": {"a": 1, "b": 2}, "h": {"b": 2}, "b": 2}


def test_what_leads_back_by_a_loop_is_a_predecessor_too() -> None:
    graph = graph_of(Task("a", lambda b=0: None), Task("b", nothing), edges="ab ba")

    binding = bind(graph, graph.nodes["a"])  # type: ignore[arg-type]

    assert filled(binding) == {}
    assert filled(binding, results={"b": 4}) == {"b": 4}


def test_what_nothing_fills_is_named() -> None:
    with pytest.raises(TaskError, match="Nothing fills the parameter 'x' of task 't'") as caught:
        filled(Binding(Task("t", one), {}, {}))

    assert (caught.value.task, caught.value.parameter) == ("t", "x")


# --- before the run --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "edges", "channel", "words"),
    [
        ({"a": 1}, "at", (), "an argument bound to the task and the result of a predecessor"),
        ({"a": 1}, "", ("a",), "an argument bound to the task and a channel value"),
        ({}, "at", ("a",), "the result of a predecessor and a channel value"),
    ],
)
def test_two_sources_for_one_parameter_are_refused_by_name(
    arguments: dict[str, Any], edges: str, channel: tuple[str, ...], words: str
) -> None:
    graph = graph_of(
        Task("a", nothing), Task("t", two, arguments=arguments), edges=edges, start="a" if edges else "t"
    )

    with pytest.raises(GraphError, match=f"'a' of task 't' has two sources: {words}") as caught:
        checked(graph, *channel)

    assert (caught.value.task, caught.value.parameter) == ("t", "a")


def test_an_input_stands_for_the_result_of_a_task_that_the_start_has_passed() -> None:
    graph = graph_of(Task("a", nothing), Task("t", lambda a: None), edges="at", start="t")

    checked(graph, "a")
    checked(graph)  # a result of an earlier run may be there

    binding = bind(graph, graph.nodes["t"])  # type: ignore[arg-type]
    assert filled(binding, channel={"a": 7}) == {"a": 7}
    assert filled(binding, results={"a": 1}, channel={"a": 7}) == {"a": 1}
    assert filled(binding) == {"a": None}


def test_no_source_for_a_parameter_is_refused_by_name() -> None:
    graph = graph_of(Task("a", nothing), Task("t", lambda a, q: None), edges="at")

    with pytest.raises(GraphError, match="Nothing can fill the parameter 'q' of task 't'"):
        checked(graph)


def test_the_remedy_for_a_parameter_is_what_its_name_suggests() -> None:
    far = graph_of(Task("a", nothing), Task("b", nothing), Task("t", lambda a: None), edges="ab bt")
    with pytest.raises(GraphError, match=r"'a' is no predecessor of 't'.*get_result\('a'\)"):
        checked(far)
    with pytest.raises(GraphError, match=r"write @task\(inject_context=True\)"):
        checked(graph_of(Task("a", lambda context: None)))


def test_the_first_task_has_no_data_to_take_its_first_parameter_from() -> None:
    with pytest.raises(GraphError, match="Nothing can fill the parameter 'x' of task 'a'"):
        checked(graph_of(Task("a", one)))
    with pytest.raises(GraphError, match="Nothing can fill the parameter 'x' of task 'b'"):
        checked(graph_of(Task("a", nothing), Task("b", one), edges="ab"))
    checked(graph_of(Task("a", one)), "x")


def test_a_task_that_others_may_send_data_to_is_not_refused() -> None:
    def sender(context: Any) -> None: ...

    checked(graph_of(Task("a", sender, CONTEXT), Task("b", one), edges="ab"))


def helper(context: Any) -> None:
    context.get_channel().set("quantity", 1)


def test_a_channel_name_that_some_body_mentions_may_be_set_by_it() -> None:
    def body(context: Any) -> None:
        def inner() -> None:
            context.get_channel().set("price", 1)

        inner()

    graph = graph_of(Task("a", body, CONTEXT), Task("b", lambda x, quantity, price: None), edges="ab")

    checked(graph)
    with pytest.raises(GraphError, match="'weight'"):
        checked(graph_of(Task("a", body, CONTEXT), Task("b", lambda x, weight: None), edges="ab"))


def test_a_body_that_is_no_function_mentions_nothing() -> None:
    class Callee:
        def __call__(self, context: Any) -> None: ...

    with pytest.raises(GraphError, match="'quantity'"):
        checked(graph_of(Task("a", Callee(), CONTEXT), Task("b", lambda x, quantity: None), edges="ab"))


def test_a_task_that_the_start_never_leads_to_is_not_checked() -> None:
    checked(graph_of(Task("a", nothing), Task("t", lambda x, q: None)))
