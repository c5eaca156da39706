"""Expressions: what `>>` and `|` remember, and the graph that is made of it."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import All, AtLeast, BestEffort, Group
from graflow_ckpt.frontends.expressions import (
    Chain,
    DecoratedTask,
    Parallel,
    add_to,
    called,
    collector,
    group,
    registered,
)


def body() -> None: ...


a, b, c, d, e = (DecoratedTask(name, body) for name in "abcde")


def made(*expressions: Any) -> TaskGraph:
    graph = TaskGraph()
    for expression in expressions:
        add_to(graph, expression)
    return graph


def edges(*expressions: Any) -> set[str]:
    return {f"{s}-{t}" for s, t in made(*expressions).edges()}


def groups(graph: TaskGraph) -> dict[str, Group]:
    return {name: node for name, node in graph.nodes.items() if isinstance(node, Group)}


# --- chains ----------------------------------------------------------------------------


def test_a_chain_is_flat_and_in_order_however_it_was_joined() -> None:
    assert ((a >> b) >> (c >> d) >> e).parts == (a, b, c, d, e)
    assert (a >> (b >> (c >> d))).parts == (a, b, c, d)
    assert repr((a >> b) >> (c >> d)) == "<task a> >> <task b> >> <task c> >> <task d>"
    assert edges((a >> b) >> c) == edges(a >> (b >> c)) == {"a-b", "b-c"}


def test_a_chain_may_be_very_long() -> None:
    tasks = [DecoratedTask(f"t{number}", body) for number in range(20_000)]
    chain = a >> tasks[0]
    for task in tasks[1:]:
        chain = chain >> task

    assert chain.parts == (a, *tasks)


def test_a_chain_may_come_back_to_where_it_was() -> None:
    assert edges(a >> b >> a) == {"a-b", "b-a"}


def test_a_chain_may_be_put_before_a_group_and_after_it() -> None:
    graph = made(a >> (b | c) >> d)

    assert {f"{s}-{t}" for s, t in graph.edges()} == {"a-b", "a-c", "b-group_1", "c-group_1", "group_1-d"}
    assert groups(graph)["group_1"].members == ("b", "c")


def test_a_list_is_a_group() -> None:
    assert edges(a >> [b, c]) == {"a-b", "a-c", "b-group_1", "c-group_1"}
    assert edges([b, c] >> d) == {"b-group_1", "c-group_1", "group_1-d"}
    assert edges((b >> c) | (d, e)) == edges((b >> c) | d | e)
    assert edges([b, c] | d) == edges(b | c | d)


@pytest.mark.parametrize("wrong", [5, len, None, "b", [], {b}])
def test_what_is_no_task_is_refused_with_what_to_do(wrong: Any) -> None:
    for join in (lambda: a >> wrong, lambda: wrong >> a, lambda: a | wrong, lambda: group(a, wrong)):
        with pytest.raises(GraphError, match=r"joins tasks, chains and groups, not .* @task"):
            join()


# --- groups ----------------------------------------------------------------------------


def test_members_of_nested_plain_groups_are_members_of_one_group() -> None:
    for nested in ((a | b) | c, a | (b | c), (a | b) | [c]):
        assert repr(nested) == "(<task a> | <task b> | <task c>)"
        assert groups(made(nested))["group_1"].members == ("a", "b", "c")


def test_a_group_with_a_policy_or_a_name_stays_a_member_of_its_own() -> None:
    graph = made((a | (b | c).best_effort()) >> d)

    assert {name: node.members for name, node in groups(graph).items()} == {
        "group_1": ("b", "c"),
        "group_2": ("a", "group_1"),
    }
    assert groups(made(a | (b | c).named("inner")))["group_1"].members == ("a", "inner")


def test_members_may_be_chains() -> None:
    graph = made(a >> (b >> c | d) >> e)

    node = groups(graph)["group_1"]
    assert (node.members, node.inside) == (("c", "d"), frozenset("bcd"))
    assert {t for s, t in graph.edges() if s == "a"} == {"b", "d"}


def test_groups_are_named_by_order_of_declaration() -> None:
    program = [a >> (b | c) >> d, (d | e) >> a]

    first, second = made(*program), made(*program)

    assert list(groups(first)) == list(groups(second)) == ["group_1", "group_2"]
    assert list(groups(made(program[1]))) == ["group_1"]  # a name is not kept from another graph


def test_a_group_in_two_expressions_is_one_node() -> None:
    both = b | c

    graph = made(both >> d, both >> e)

    assert list(groups(graph)) == ["group_1"]
    assert graph.successors["group_1"] == ["d", "e"]


def test_two_groups_of_one_name_are_refused() -> None:
    with pytest.raises(GraphError, match="called 'g'"):
        made(group(a, b, name="g"), group(c, d, name="g"))
    with pytest.raises(GraphError, match="called 'g'"):
        made(group(a, b, name="g"), group(a, b, name="g", policy=AtLeast(1)))


def test_a_name_that_the_user_gave_is_not_given_again() -> None:
    graph = made(group(a, b, name="group_1"), c | d)

    assert {name: node.members for name, node in groups(graph).items()} == {
        "group_1": ("a", "b"),
        "group_2": ("c", "d"),
    }


def test_policies_are_given_to_a_group_and_leave_the_one_before_alone() -> None:
    plain = a | b

    assert (plain.best_effort().policy, plain.at_least(2).policy) == (BestEffort(), AtLeast(2))
    assert (plain.policy, plain.named("g").policy, plain.named("g").name) == (None, All(), "g")
    assert plain.named("g").at_least(1).name == "g"
    assert plain.with_policy(All(), "h").name == "h"


@pytest.mark.parametrize("members", [(a, b), (a >> c, b), (a, a, b)])
def test_a_policy_that_can_never_be_met_is_refused(members: tuple[Any, ...]) -> None:
    with pytest.raises(GraphError, match=r"AtLeast\(3\) in a group of 2 can never be met"):
        made(group(*members, policy=AtLeast(3)))


def test_a_group_without_members_is_refused() -> None:
    with pytest.raises(GraphError, match="A group needs members"):
        group()


names = st.sampled_from([a, b, c, d, e])
expressions = st.recursive(
    names,
    lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] >> t[1] if t[2] else t[0] | t[1]),
    max_leaves=6,
)


@given(expressions)
def test_any_expression_makes_the_same_graph_twice(expression: Any) -> None:
    first, second = made(expression), made(expression)

    assert list(first.nodes) == list(second.nodes)
    assert list(first.edges()) == list(second.edges())
    for name, node in groups(first).items():
        assert set(node.members) == {s for s, t in first.edges() if t == name and s in node.members}
        assert node.inside <= set(first.task_names())


# --- tasks -----------------------------------------------------------------------------


def test_a_decorated_task_can_be_called_like_its_function() -> None:
    assert DecoratedTask("add", lambda x, y=1: x + y)(2, y=3) == 5


def test_a_bound_task_is_another_task_of_the_same_body() -> None:
    first = DecoratedTask("t", lambda x, y: (x, y), arguments={"x": 1})

    second = first.bind(id="u", y=2)

    assert (second.id, second.name, second.func) == ("u", "u", first.func)
    assert (first.arguments, second.arguments) == ({"x": 1}, {"x": 1, "y": 2})
    assert first.bind(x=5).name == "t"


def test_a_task_is_found_by_its_name_as_long_as_somebody_holds_it() -> None:
    held = registered(DecoratedTask("held-for-this-test", body))
    again = registered(DecoratedTask("held-for-this-test", body))

    assert called("held-for-this-test") == [held, again]
    del again
    gc.collect()

    assert called("held-for-this-test") == [held]
    assert called("never made") == []


def test_a_task_made_in_every_round_of_a_loop_does_not_stay() -> None:
    first = DecoratedTask("first", body)
    for number in range(100):
        first.bind(id=f"round_{number % 2}")
    gc.collect()

    assert called("round_0") == called("round_1") == []


def test_a_task_can_be_pickled_and_copied() -> None:
    back = pickle.loads(pickle.dumps(a))

    assert (back.name, back.func) == ("a", body)
    assert copy.copy(a).name == "a"


# --- collecting ------------------------------------------------------------------------


class Collected:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, tuple[Any, ...]]] = []

    def collect(self, expression: Chain | Parallel, parts: tuple[Any, ...]) -> None:
        self.seen.append((expression, parts))


def test_a_new_expression_is_told_to_who_collects_with_its_parts() -> None:
    mine = Collected()
    token = collector.set(mine)
    try:
        inner = b | c
        outer = a >> inner
        lenient = inner.best_effort()
    finally:
        collector.reset(token)
    _ = a >> b

    assert mine.seen[0] == (inner, (b, c))
    assert mine.seen[1] == (outer, (a, inner))
    assert mine.seen[-1] == (lenient, (inner,))
    assert all(expression in (inner, outer, lenient) for expression, _ in mine.seen)
