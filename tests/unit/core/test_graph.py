"""The graph: what is declared, which edges are loops, and what completing a node sends onward."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core.errors import GraphError, UnknownTask
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import All, AtLeast, BestEffort, Group, GroupPolicy, Options, Task


def graph_of(*edges: str, starts: str = "a", **groups: tuple[GroupPolicy, str]) -> TaskGraph:
    """`"ab"` is an edge; `g=(policy, "ab")` a group g of a and b."""
    graph = TaskGraph()
    for name in "".join([*edges, *(members for _, members in groups.values())]):
        if name not in graph.nodes and name not in groups:
            graph.add(Task(name, len))
    for name, (policy, members) in groups.items():
        graph.add(Group(name, policy, tuple(members), frozenset(members)))
        for member in members:
            graph.add_edge(member, name)
    for source, target in edges:
        graph.add_edge(source, target)
    graph.compile(starts)
    return graph


def sends(graph: TaskGraph, name: str) -> list[tuple[str, str]]:
    return [(op[0], op[1]) for op in graph.routes[name].done]


# --- declaring -------------------------------------------------------------------------


def test_the_same_task_twice_is_one_node() -> None:
    graph, task = TaskGraph(), Task("a", len)

    graph.add(task)
    graph.add(task)

    assert graph.task_names() == ["a"]


def test_the_same_name_for_two_tasks_is_refused() -> None:
    graph = TaskGraph()
    graph.add(Task("a", len))

    with pytest.raises(GraphError, match="Two different tasks are called 'a'") as caught:
        graph.add(Task("a", len))

    assert caught.value.task == "a"


def test_an_edge_to_a_task_that_is_not_there_names_those_that_are() -> None:
    graph = TaskGraph()
    graph.add(Task("a", len))

    with pytest.raises(UnknownTask, match=r"The graph has no task 'b'\. It has: a\."):
        graph.add_edge("a", "b")
    with pytest.raises(UnknownTask, match=r"It has: none\."):
        TaskGraph().compile(["a"])


def test_an_edge_drawn_twice_is_one_edge() -> None:
    graph = graph_of("ab", "ab")

    assert list(graph.edges()) == [("a", "b")]
    assert graph.routes["b"].indegree == 1


def test_roots_are_what_nothing_leads_to() -> None:
    graph = graph_of("ac", "bc", "cd")

    assert graph.roots() == ["a", "b"]
    assert graph.task_names() == ["a", "c", "b", "d"]


# --- routes ----------------------------------------------------------------------------


def test_a_chain_enqueues_its_next() -> None:
    graph = graph_of("ab", "bc")

    assert [sends(graph, name) for name in "abc"] == [[("enqueue", "b")], [("enqueue", "c")], []]
    assert not graph.routes["b"].waits


def test_both_sides_of_a_diamond_arrive_at_its_join() -> None:
    graph = graph_of("ab", "ac", "bd", "cd")

    assert sends(graph, "b") == sends(graph, "c") == [("arrive", "d")]
    assert graph.routes["d"].done == ()
    assert graph.routes["b"].done[0] == ("arrive", "d", 1, 2, 0, 0, 0, "default", "direct")


def test_options_travel_with_the_spec() -> None:
    graph = TaskGraph()
    graph.add(Task("a", len, Options(priority=4, max_retries=2, queue="gpu")))
    graph.compile(["a"])

    assert graph.routes["a"].enqueue() == ("enqueue", "a", None, 4, 2, "gpu", "direct")


def test_an_edge_that_closes_a_cycle_is_a_loop_and_feeds_no_join() -> None:
    graph = graph_of("ab", "bc", "cb", "cd")

    assert graph.routes["c"].loops == ("b",)
    assert graph.routes["b"].indegree == 1
    assert sends(graph, "c") == [("enqueue", "d"), ("enqueue", "b")]
    assert graph.looped == {"c": ("b",)}


def test_a_task_may_lead_to_itself() -> None:
    graph = graph_of("aa", "ab")

    assert sends(graph, "a") == [("enqueue", "b"), ("enqueue", "a")]


def test_which_edge_is_the_loop_follows_from_the_start() -> None:
    assert graph_of("ab", "ba", starts="a").looped == {"b": ("a",)}
    assert graph_of("ab", "ba", starts="b").looped == {"a": ("b",)}


def test_an_edge_from_where_the_start_never_leads_holds_nothing_up() -> None:
    graph = graph_of("ac", "bc")

    assert graph.live == {"a", "c"}
    assert graph.routes["c"].indegree == 1
    assert sends(graph, "a") == [("enqueue", "c")]
    assert sends(graph, "b") == [("enqueue", "c")]


def test_tasks_that_the_start_never_leads_to_wait_for_each_other() -> None:
    graph = graph_of("ab", "ce", "de")

    assert graph.routes["e"].indegree == 2


def test_a_group_waits_even_for_one_member_and_passes() -> None:
    graph = graph_of("gc", g=(All(), "a"))

    assert graph.routes["a"].done == (("arrive", "g", 1, 1, 0, 0, 0, "default", "pass"),)
    assert sends(graph, "g") == [("enqueue", "c")]


@pytest.mark.parametrize(
    ("policy", "need", "lenient"), [(All(), 0, False), (BestEffort(), -1, True), (AtLeast(1), 1, True)]
)
def test_members_of_a_group_that_can_do_without_them_are_lenient(
    policy: GroupPolicy, need: int, lenient: bool
) -> None:
    graph = graph_of("gc", starts="ab", g=(policy, "ab"))

    assert graph.routes["g"].need == need
    assert graph.routes["a"].lenient == graph.routes["b"].lenient == lenient
    assert not graph.routes["c"].lenient


def test_a_policy_that_can_never_be_met_is_refused_when_the_graph_is_checked() -> None:
    with pytest.raises(GraphError, match="can never be met"):
        graph_of(g=(AtLeast(2), "a"))


# --- cycles ----------------------------------------------------------------------------


def test_a_cycle_with_two_entries_is_refused_by_name() -> None:
    with pytest.raises(GraphError, match=r"has two entries\. Let every way into it lead through") as caught:
        graph_of("ab", "ac", "bc", "cb")

    assert {caught.value.source, caught.value.target} == {"b", "c"}


def test_a_second_start_inside_a_cycle_is_an_entry_too() -> None:
    with pytest.raises(GraphError, match="two entries"):
        graph_of("ab", "bc", "ca", starts="ab")


def test_a_cycle_that_the_start_never_leads_to_is_nobodys_business() -> None:
    graph = graph_of("ab", "cd", "ed", "de", "fe")

    assert graph.live == {"a", "b"}


edge_lists = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).map("".join), max_size=14
)


@given(edge_lists, st.sampled_from(["a", "b", "ab"]))
def test_forward_edges_never_close_a_cycle_and_loops_lead_back_to_a_dominator(
    edges: list[str], starts: str
) -> None:
    edges = ["ab", *edges]
    live = reachable(edges, starts)
    of_live = [edge for edge in edges if edge[0] in live]
    if not reducible(of_live, starts):
        with pytest.raises(GraphError, match="two entries"):
            graph_of(*edges, starts=starts)
        return

    graph = graph_of(*edges, starts=starts)

    assert graph.live == live
    for name, route in graph.routes.items():
        assert set(route.forward) | set(route.loops) == {e[1] for e in edges if e[0] == name}
        assert not any(graph.is_ancestor(target, name) for target in route.forward)
        if name in live:
            assert all(graph.is_ancestor(target, name) for target in route.loops)
            assert route.indegree == sum(name in graph.routes[p].forward for p in live)
            for target in route.loops:  # whoever comes from the start to here has passed the loop's head
                around = [e for e in edges if target not in e]
                assert name == target or name not in reachable(around, starts.replace(target, ""))


def reachable(edges: list[str], starts: str) -> set[str]:
    found, work = set(starts), list(starts)
    while work:
        here = work.pop()
        for source, target in edges:
            if source == here and target not in found:
                found.add(target)
                work.append(target)
    return found


def reducible(edges: list[str], starts: str) -> bool:
    """By intervals: drop self loops, merge every node into its only predecessor, until nothing changes."""
    arcs = {(s, t) for s, t in edges} | {("^", s) for s in starts}
    while True:
        arcs = {(s, t) for s, t in arcs if s != t}
        for node in {t for _, t in arcs}:
            preds = {s for s, t in arcs if t == node}
            if len(preds) == 1:
                into = preds.pop()
                arcs = {(into if s == node else s, t) for s, t in arcs if t != node}
                break
        else:
            return not arcs


# --- made at run time ------------------------------------------------------------------


def test_a_task_made_at_run_time_stands_before_a_successor() -> None:
    graph = graph_of("ab")

    graph.extend("a", Task("x", len), ("b",))

    assert sends(graph, "x") == sends(graph, "a") == [("arrive", "b")]
    assert graph.routes["x"].preds == ("a",)
    assert (graph.routes["b"].preds, graph.routes["b"].ways) == (("a",), 2)
    assert "x" in graph.live


def test_a_task_made_again_by_a_loop_is_no_second_node() -> None:
    graph = graph_of("ab")
    for _ in range(100):
        newest = Task("x", len)
        graph.extend("a", newest, ("b",))

    assert list(graph.nodes) == ["a", "b", "x"]
    assert graph.nodes["x"] is newest
    assert graph.routes["b"].ways == 2


def test_of_a_join_only_the_first_task_made_before_it_changes_what_its_predecessors_send() -> None:
    graph = graph_of("ab", "bc")
    for name in ("x", "y"):
        graph.extend("a", Task(name, len), ("b",))
        if name == "x":
            before = graph.routes["a"].done

    assert graph.routes["a"].done is before  # else each of ten thousand would cost what all do
    assert graph.cut_off(graph.routes["x"], frozenset(), True) == ([], {"b": 1})


def test_a_task_made_at_run_time_is_taken_back_in_the_reverse_order() -> None:
    graph = graph_of("ab", "bc")
    first, second = Task("x", len), Task("x", max)
    before = ({*graph.nodes}, {*graph.live}, graph.cut_off(graph.routes["a"], frozenset(), True))

    undo = [graph.extend("a", one, ("b",)) for one in (first, second)]

    assert graph.routes["b"].ways == 2
    undo.pop()()
    assert graph.nodes["x"] is graph.routes["x"].node is first
    undo.pop()()
    assert before == ({*graph.nodes}, {*graph.live}, graph.cut_off(graph.routes["a"], frozenset(), True))
    assert graph.made == set()


def test_compiling_anew_forgets_what_was_made_at_run_time() -> None:
    graph = graph_of("ab")
    graph.extend("a", Task("x", len), ("b",))

    graph.compile("a")

    assert list(graph.nodes) == ["a", "b"]
    assert sends(graph, "a") == [("enqueue", "b")]


# --- not taken -------------------------------------------------------------------------


def cut_off(graph: TaskGraph, name: str, stop: str = "", groups: bool = True) -> tuple[set[str], list[str]]:
    cut, ops = graph.not_taken(graph.routes[name], frozenset(stop), groups)
    assert {op[1] for op in ops if op[0] == "skipped"} == cut
    assert all(op[2] == 0 for op in ops if op[0] == "arrive")
    return cut, [op[1] for op in ops if op[0] == "arrive"]


def test_a_start_at_a_group_is_a_start_at_what_its_members_begin_with() -> None:
    graph = TaskGraph()
    for name in "sabcxyz":
        graph.add(Task(name, len))
    graph.add(Group("inner", All(), ("b", "x"), frozenset("bx")))
    graph.add(Group("g", All(), ("c", "z"), frozenset("abxcyz")))
    for edge in ("sa", "sy", "ab", "ax", "yz", "zy"):
        graph.add_edge(*edge)
    for source, target in (("b", "inner"), ("x", "inner"), ("inner", "c"), ("c", "g"), ("z", "g")):
        graph.add_edge(source, target)

    graph.compile(["g"])

    assert graph.starts == ("a", "y")


def test_what_only_follows_a_node_is_cut_off_with_it() -> None:
    assert cut_off(graph_of("ab", "bc"), "a") == ({"b", "c"}, [])


def test_a_join_that_others_lead_to_is_told_once_per_edge() -> None:
    graph = graph_of("ab", "ac", "bd", "be", "dj", "ej", "cj")

    assert cut_off(graph, "b") == ({"d", "e"}, ["j", "j"])


def test_nothing_is_sent_to_where_a_goto_leads() -> None:
    assert cut_off(graph_of("ab", "bc", "cd"), "a", stop="c") == ({"b"}, [])


def test_a_group_that_can_do_without_a_member_judges_for_itself() -> None:
    graph = graph_of("gc", g=(BestEffort(), "a"))

    assert cut_off(graph, "a", groups=False) == (set(), ["g"])
    assert cut_off(graph, "a", groups=True) == ({"g", "c"}, [])


def test_a_loop_edge_cuts_nothing_off() -> None:
    assert cut_off(graph_of("ab", "bc", "cb", "cd"), "c") == ({"d"}, [])


def test_a_dead_end_that_the_start_never_leads_to_is_not_counted() -> None:
    graph = graph_of("ab", "bd", "xd")

    assert cut_off(graph, "b") == ({"d"}, [])
    assert cut_off(graph, "x") == (set(), [])
