"""Parameters: one source each, known before the run; what else is found out before the first task."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from graflow_ckpt.core.errors import CheckpointError, GraphError, ReadOnlyChanged, TaskError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import All, Group, Options, Task
from graflow_ckpt.engine.body.bind import (
    MISSING,
    Binding,
    bind,
    check,
    check_answers,
    check_inputs,
    fill,
    may_call,
    signature,
)
from graflow_ckpt.engine.settings import Settings
from tests.acceptance.places import LONG, Box
from tests.loops import chain

CONTEXT = Options(inject_context=True)


def graph_of(*tasks: Task, edges: str = "", start: str = "a") -> TaskGraph:
    """`edges="ab bc"`."""
    graph = TaskGraph()
    for one in tasks:
        graph.add(one)
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
    assert [*Binding(Task("t", named, CONTEXT), {}, {}).parameters] == ["a"]


def test_a_body_that_takes_nothing_is_plain() -> None:
    assert Binding(Task("t", nothing), {}, {}).plain
    assert not Binding(Task("t", one), {}, {}).plain


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Task("t", nothing, CONTEXT), "'t' has inject_context=True and takes no parameter"),
        (Task("t", one, arguments={"y": 1}), "'t' takes no parameter 'y'"),
    ],
)
def test_what_no_parameter_takes_is_refused_by_name(task: Task, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        Binding(task, {}, {})


# --- filling ---------------------------------------------------------------------------


def test_results_of_predecessors_come_first_and_then_the_channel_and_then_the_default() -> None:
    graph = graph_of(Task("a", nothing), Task("t", lambda a, x, y=3: None), edges="at")

    arguments = filled(bind(graph, graph.nodes["t"]), None, {"a": 1}, {"x": 2})  # type: ignore[arg-type]

    assert arguments == {"a": None, "x": 2}  # data goes to the first parameter
    arguments = filled(bind(graph, graph.nodes["t"]), MISSING, {"a": 1}, {"x": 2, "y": 4})  # type: ignore[arg-type]
    assert arguments == {"a": 1, "x": 2, "y": 4}


def named(x: Any, data: Any) -> None: ...


@pytest.mark.parametrize(
    ("task", "data", "channel", "arguments"),
    [
        pytest.param(Task("t", one), 7, {}, {"x": 7}, id="data goes to the first parameter"),
        pytest.param(Task("t", named), 7, {"x": 1}, {"x": 1, "data": 7}, id="or to the one of that name"),
        pytest.param(Task("t", nothing), 7, {}, {}, id="or nowhere"),
        pytest.param(Task("t", one), None, {}, {"x": None}, id="None is data"),
        pytest.param(
            Task("t", two, arguments={"a": 1}), MISSING, {"a": 9}, {"a": 1}, id="what is bound stays"
        ),
    ],
)
def test_an_argument_is_filled_from(task: Task, data: Any, channel: Any, arguments: Any) -> None:
    assert filled(Binding(task, {}, {}), data, channel=channel) == arguments


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


class Callee:
    def __call__(self, context: Any) -> None: ...


A, SENDER = Task("a", nothing), Task("a", lambda context: None, CONTEXT)


@pytest.mark.parametrize(
    ("tasks", "edges", "words"),
    [
        ((A, Task("t", lambda a, q: None)), "at", "Nothing can fill the parameter 'q' of task 't'"),
        ((Task("a", one),), "", "Nothing can fill the parameter 'x' of task 'a'"),
        ((A, Task("b", one)), "ab", "Nothing can fill the parameter 'x' of task 'b'"),
        (
            (A, Task("b", nothing), Task("t", lambda a: None)),
            "ab bt",
            r"'a' is no predecessor of 't'.*get_result\('a'\)",
        ),
        ((Task("a", lambda context: None),), "", r"write @task\(inject_context=True\)"),
        ((Task("a", Callee(), CONTEXT), Task("b", lambda x, quantity: None)), "ab", "'quantity'"),
    ],
    ids=["nothing has it", "no data at the start", "no sender", "no predecessor", "a context", "no function"],
)
def test_no_source_for_a_parameter_is_refused_by_name(tasks: Any, edges: str, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        checked(graph_of(*tasks, edges=edges))


@pytest.mark.parametrize(
    ("tasks", "edges", "channel"),
    [
        pytest.param((Task("a", one),), "", "x", id="an input fills it"),
        pytest.param((SENDER, Task("b", one)), "ab", "", id="another task may send data"),
        pytest.param((A, Task("t", lambda x, q: None)), "", "", id="the start never leads to it"),
    ],
)
def test_what_may_be_filled_is_not_refused(tasks: Any, edges: str, channel: str) -> None:
    checked(graph_of(*tasks, edges=edges), *channel)


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


# --- before the first task ------------------------------------------------------------


def ask_in_a_helper(context: Any) -> None:
    context.checkpoint()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, False),
        ({"session_id": "s"}, True),
        ({"session_id": "s", "durability": "none"}, False),
        ({"durability": "journal"}, True),
        ({"checkpoint": EveryTask()}, True),
    ],
)
def test_a_session_that_nobody_will_come_back_to_leaves_nothing_on_the_disk(
    options: dict[str, Any], kept: bool
) -> None:
    chain(a=lambda: None, **options).execute()

    trios = list(Path().glob("checkpoints/*.pkl"))
    assert bool(trios) == kept


def test_without_a_session_id_there_is_no_journal_and_nothing_to_warn_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flow = chain(a=lambda: None)
    with caplog.at_level(logging.WARNING):
        flow.execute()

    assert flow.execution_context.settings.durability == "checkpoint"
    assert caplog.text == ""


def test_a_body_or_a_helper_that_asks_for_checkpoints_is_seen() -> None:
    inside: list[bool] = []

    def build(body: Any) -> Any:
        with workflow("w") as flow:
            task(id="look")(lambda: inside.append(Path("checkpoints").exists()))
            task(id="ask", inject_context=True)(body)
        return flow

    build(lambda context: context.checkpoint()).execute()
    build(ask_in_a_helper).execute()

    assert inside == [True, True]


def test_nothing_runs_if_the_key_could_be_changed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    key = tmp_path / "key"
    key.write_text("k1:" + "ab" * 32)
    key.chmod(0o666)
    monkeypatch.setenv("GRAFLOW_CKPT_KEY_FILE", str(key))

    def a() -> None:
        ran.append(1)

    with pytest.raises(CheckpointError, match="Others can read"):
        chain(a, session_id="s", durability="journal").execute()

    assert ran == []


def test_a_parameter_that_nothing_can_fill_is_refused_before_anything_runs() -> None:
    ran = []

    def a() -> None:
        ran.append(1)

    with pytest.raises(GraphError, match="'first' of task 'b'"):
        chain(a, b=lambda a, first: None).execute()

    assert ran == []


# --- checks -----------------------------------------------------------------------------


def test_who_changes_a_result_of_another_task_is_named() -> None:
    def make() -> Box:
        return Box(1)

    def use(make: Box) -> None:
        make.items.append(2)

    with pytest.raises(ReadOnlyChanged, match=r"'use' changed 'make\.__result__'") as changed:
        chain(make, use, max_retries=3).execute()

    assert changed.value.task == "use"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_who_changes_a_readonly_value_is_named_and_it_is_not_saved(isolation: Any) -> None:
    def first() -> None: ...

    def use(context) -> None:
        context.get_channel().get("box", readonly=True).items.append(2)

    flow = chain(first, use, isolation=isolation, session_id="s", checkpoint=EveryTask())
    flow.get_channel().set("box", Box(1))
    with pytest.raises(ReadOnlyChanged, match="'use' changed 'box'"):
        flow.execute()

    restored, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s"))
    assert restored.get_channel().get("box").items == [1]


def test_a_task_that_fails_after_such_a_change_is_named_too() -> None:
    def use(context) -> None:
        context.get_channel().get("box", readonly=True).items.append(2)
        raise OSError("x")

    flow = chain(use)
    flow.get_channel().set("box", Box(1))
    with pytest.raises(ReadOnlyChanged) as changed:
        flow.execute()

    assert isinstance(changed.value.__cause__, OSError)


def test_who_has_the_value_on_loan_may_change_it_while_others_look() -> None:
    looked, changed = threading.Event(), threading.Event()

    with workflow("w") as flow:
        flow.get_channel().set("box", Box(1))

        @task(inject_context=True)
        def looker(context) -> int:
            box = context.get_channel().get("box", readonly=True)
            looked.set()
            assert changed.wait(LONG)
            return len(box.items)

        @task(inject_context=True)
        def changer(context) -> None:
            assert looked.wait(LONG)
            context.get_channel().get("box").items.append(2)
            changed.set()

        @task(inject_context=True)
        def both(context) -> None:
            channel = context.get_channel()
            channel.get("box", readonly=True)
            channel.get("box").items.append(3)

        (looker | changer) >> both
        flow.execute()

    assert flow.execution_context.get_result("looker") == 2
    assert flow.get_channel().get("box").items == [1, 2, 3]


def test_without_the_setting_nothing_is_digested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_CHECK", "0")

    def make() -> Box:
        return Box(1)

    def use(make: Box) -> int:
        make.items.append(2)
        return len(make.items)

    assert chain(make, use).execute() == 2


def reading(rows: int, extract: int = 0) -> int:
    return rows + extract


@pytest.mark.parametrize(
    ("given", "declared", "said"),
    [
        ("row", None, "takes an input 'row'.*Did you mean 'rows'"),
        ("row", ["rows"], "no input 'row'.*Did you mean 'rows'"),
        ("far", ["rows"], "no input 'far'.*It declares: rows"),
        ("far", [], "It declares: none"),
    ],
)
def test_an_input_that_is_mistyped_or_not_declared_is_refused(
    given: str, declared: list[str] | None, said: str
) -> None:
    with pytest.raises(GraphError, match=f"(?s){said}"):
        check_inputs(graph_of(Task("a", reading)), [given], declared)


def test_an_input_that_a_task_may_read_by_name_is_let_pass_and_said(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(Task("a", reading))

    check_inputs(graph, ["rows", "a", "anything"], None)
    check_inputs(graph, ["rows"], ["rows"])
    check_answers(graph, ["later"], Settings(in_doubt=(("a", "skip"), ("later", "skip"), ("zebra", "skip"))))

    assert [record.getMessage().partition(" as ")[0] for record in caplog.records] == [
        "no task takes an input 'anything'",
        "in doubt: there is no task 'zebra' yet",
    ]


def test_an_answer_for_a_task_whose_name_is_mistyped_is_refused() -> None:
    with pytest.raises(GraphError, match=r"(?s)no task 'extrakt'.*Did you mean 'extract'"):
        check_answers(
            graph_of(Task("extract", reading), start="extract"), [], Settings(in_doubt=(("extrakt", "skip"),))
        )


def _helper(context: Any) -> None:
    for _ in context.rounds(range(3)):
        pass


def _beside(context: Any) -> None:
    _helper(context)


def test_a_body_may_have_rounds_if_it_or_what_it_calls_by_name_does() -> None:
    def inner(context: Any) -> None:
        def loop() -> None:
            _beside(context)

        loop()

    wrapped = lambda: None  # noqa: E731
    wrapped.__wrapped__ = _helper  # type: ignore[attr-defined]

    assert [may_call(func, "rounds") for func in (_helper, _beside, inner, wrapped, len)] == [True] * 5
    assert not may_call(draw, "rounds")


def draw(context: Any) -> str:
    return repr(context)
