"""Decide: what follows from an outcome. Whole sessions are walked here without an engine.

`Walk` plays the engine: it claims what is ready, decides as a test's script says, and applies. It is the
contract between decide, graph and state that is tested: who runs, how often, and who never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.decide import decide, pass_on
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.facts import (
    JUMP,
    NO_DATA,
    Cancelled,
    Claim,
    Done,
    Effects,
    Failed,
    Next,
    Op,
    Outcome,
    Spawned,
    TaskSpec,
)
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import All, AtLeast, BestEffort, Group, GroupPolicy, Options, Task

OK = Done(b"\xc0")


def failed(**more: object) -> Failed:
    return Failed("E: no", ValueError("no"), **more)  # type: ignore[arg-type]


def goto(*names: str, data: bytes | None = None) -> Done:
    return Done(b"\xc0", Effects(nexts=tuple(Next(name, data, True) for name in names)))


def graph_of(*chains: str, starts: str = "a", **groups: tuple[GroupPolicy, str]) -> TaskGraph:
    """`"abc"` is a chain; `g=(policy, "ab")` a group g, whose last tasks are a and b."""
    graph = TaskGraph()
    for name in "".join([*chains, *(members for _, members in groups.values())]):
        if name not in graph.nodes and name not in groups:
            graph.add(Task(name, len, Options(max_retries=1 if name == "r" else 0)))
    for name, (policy, members) in groups.items():
        inside = {c for chain in chains for c in chain if chain[-1] in members} | set(members)
        graph.add(Group(name, policy, tuple(members), frozenset(inside)))
        for member in members:
            graph.add_edge(member, name)
    for chain in chains:
        for source, target in pairwise(chain):
            graph.add_edge(source, target)
    graph.compile(starts)
    return graph


class Walk:
    """Runs a graph; `script` gives the outcomes of a task, one after the other, then plain completions."""

    def __init__(self, graph: TaskGraph, on_failure: str = "pause", **script: Sequence[Outcome]) -> None:
        self.graph = graph
        self.on_failure = on_failure
        self.script = {name: list(outcomes) for name, outcomes in script.items()}
        self.ran: list[str] = []
        self.specs: list[TaskSpec] = []
        self.state = SessionState("s", graph.starts)
        apply(self.state, [graph.routes[name].enqueue() for name in graph.starts], 0.0)

    def go(self, pick: Callable[[int], int] = lambda n: 0, most: int = 200) -> Walk:
        """Until nothing is ready; `pick` chooses whose outcome arrives next."""
        held = apply(self.state, [("claim", 9)], 0.0)
        while held:
            claim = held.pop(pick(len(held)))
            held += apply(self.state, [*self._ops(claim), ("claim", 9)], 0.0)
            assert len(self.ran) < most
        return self

    def _ops(self, claim: Claim) -> list[Op]:
        name = claim.spec.task_id
        if claim.spec.execution_strategy in ("pass", "skip") or JUMP in claim.spec.execution_strategy:
            return pass_on(self.graph, claim)
        outcomes = self.script.get(name)
        outcome = outcomes.pop(0) if outcomes else OK
        if claim.spec.execution_strategy == "lost":
            outcome = failed(retry=False)
        else:
            self.ran.append(name)
            self.specs.append(claim.spec)
        if isinstance(outcome, Done):
            for spawned in outcome.effects.spawned:
                self.graph.extend(name, spawned.task, spawned.before)
        return decide(self.graph, claim, outcome, self.on_failure)


def walk(graph: TaskGraph, on_failure: str = "pause", **script: Sequence[Outcome]) -> Walk:
    return Walk(graph, on_failure, **script).go()


def ran(graph: TaskGraph, on_failure: str = "pause", **script: Sequence[Outcome]) -> str:
    done = walk(graph, on_failure, **script)
    assert done.state.status == "completed", done.state.reason
    return "".join(done.ran)


# --- done ------------------------------------------------------------------------------


def test_a_chain_runs_in_order() -> None:
    assert ran(graph_of("abc")) == "abc"


@given(st.randoms(use_true_random=False))
def test_the_join_of_a_diamond_runs_once_whoever_comes_last(random: object) -> None:
    graph = graph_of("abd", "acd", "de")

    done = Walk(graph).go(lambda n: random.randrange(n))  # type: ignore[attr-defined]

    assert sorted(done.ran) == list("abcde")
    assert "".join(done.ran[3:]) == "de"
    assert done.state.gates == {}


def test_a_loop_in_the_graph_goes_on_both_ways() -> None:
    done = walk(graph_of("abcb", "cd"), c=[OK, failed()])

    assert "".join(done.ran[:5]) == "abcdb"
    assert done.state.status == "failed"


def test_a_join_inside_a_loop_waits_anew_each_time_round() -> None:
    stop = Done(b"\xc0", Effects(terminate="enough"))

    done = walk(graph_of("abdb", "bcd"), d=[OK, OK, stop])

    assert "".join(done.ran) == "a" + "bcd" * 3
    assert done.state.status == "completed"


def test_terminate_starts_nothing_more_and_commits_the_task() -> None:
    done = walk(graph_of("abc"), b=[Done(b"\x01", Effects(terminate="enough"))])

    assert ("".join(done.ran), done.state.status, done.state.reason) == ("ab", "completed", "enough")
    assert list(done.state.completed) == ["a", "b"]


def test_cancelling_commits_nothing_of_the_task() -> None:
    done = walk(graph_of("abc"), b=[Cancelled("no more")])

    assert (done.state.status, done.state.reason) == ("cancelled", "no more")
    assert list(done.state.completed) == ["a"]
    assert done.state.specs == {}


def test_what_a_body_changed_is_committed_with_its_end() -> None:
    put: Op = ("put", "x", b"\x01", -1)

    ops = decide(graph_of("ab"), Claim(TaskSpec("a", key=4), 7), Done(b"\x02", Effects((put,))), "pause")

    assert ops[:2] == [put, ("end", 4, 7, "completed", b"\x02")]
    assert ops[2][:2] == ("enqueue", "b")


# --- again and elsewhere ---------------------------------------------------------------


def test_next_iteration_tells_nobody_until_the_last_one() -> None:
    again = Done(b"\xc0", Effects(again=b"\x05"))

    done = walk(graph_of("abc"), b=[again, again])

    assert "".join(done.ran) == "abbbc"
    assert [spec.cycle for spec in done.specs] == [0, 0, 1, 2, 0]
    assert [spec.task_data for spec in done.specs] == [None, None, b"\x05", b"\x05", None]


def test_a_goto_beside_a_next_iteration_runs_too_and_skips_nothing() -> None:
    both = Done(b"\xc0", Effects(again=NO_DATA, nexts=(Next("x", b"\x05", True),)))

    done = walk(graph_of("ab", "x"), a=[both])

    assert sorted(done.ran) == ["a", "a", "b", "x"]
    assert done.state.skipped == {}


def test_next_iteration_without_data_has_none() -> None:
    done = walk(graph_of("ab"), a=[Done(b"\xc0", Effects(again=NO_DATA))])

    assert [spec.task_data for spec in done.specs] == [None, None, None]


def test_next_task_runs_beside_the_successors() -> None:
    also = Done(b"\xc0", Effects(nexts=(Next("x", b"\x05", False),)))

    done = walk(graph_of("ab", "x"), a=[also])

    assert sorted(done.ran) == ["a", "b", "x"]
    assert next(spec.task_data for spec in done.specs if spec.task_id == "x") == b"\x05"


def test_goto_runs_its_target_instead_of_the_successors() -> None:
    done = walk(graph_of("abc", "x"), a=[goto("x", data=b"\x07")])

    assert "".join(done.ran) == "ax"
    assert sorted(done.state.skipped) == ["b", "c"]
    assert done.specs[1].task_data == b"\x07"


def test_goto_past_a_task_skips_it_up_to_the_target() -> None:
    done = walk(graph_of("abcd"), a=[goto("c")])

    assert "".join(done.ran) == "acd"
    assert list(done.state.skipped) == ["b"]


def test_goto_back_up_sends_nothing_and_the_way_down_is_walked_again() -> None:
    done = walk(graph_of("abcd"), c=[goto("a")])

    assert "".join(done.ran) == "abcabcd"
    assert done.state.skipped == {}


def test_goto_to_oneself_is_another_round() -> None:
    assert ran(graph_of("abc"), b=[goto("b")]) == "abbc"


def test_goto_to_a_join_all_of_whose_branches_are_cut_runs_it_directly() -> None:
    assert ran(graph_of("abd", "acd"), a=[goto("d")]) == "ad"


def test_goto_to_a_join_all_of_whose_branches_are_cut_hands_over_its_data() -> None:
    done = walk(graph_of("abd", "acd"), a=[goto("d", data=b"\x05")])

    assert [spec.task_data for spec in done.specs] == [None, b"\x05"]


def test_goto_to_oneself_tells_no_join_that_the_branch_is_through() -> None:
    done = Walk(graph_of("sbj", "scj", starts="s"), b=[goto("b"), goto("b")]).go(lambda n: n - 1)

    assert (sorted(done.ran), done.ran[-1]) == (list("bbbcjs"), "j")


def test_goto_to_a_join_that_others_lead_to_counts_as_what_was_cut() -> None:
    graph = graph_of("aj", "bcj", "bdj", starts="ab")

    done = walk(graph, b=[goto("j")])

    assert sorted(done.ran) == ["a", "b", "j"]
    assert done.state.status == "completed"


def test_goto_from_one_branch_past_its_task_joins_the_other_branch() -> None:
    graph = graph_of("sbmj", "scj", starts="s")

    assert sorted(ran(graph, b=[goto("j")])) == ["b", "c", "j", "s"]


def test_goto_elsewhere_tells_the_join_that_its_branch_does_not_come() -> None:
    graph = graph_of("sbj", "scj", "x", starts="s")

    assert sorted(ran(graph, b=[goto("x")])) == ["b", "c", "j", "s", "x"]


def test_goto_to_two_tasks_runs_both() -> None:
    assert sorted(ran(graph_of("ab", "x", "y"), a=[goto("x", "y")])) == ["a", "x", "y"]


# --- goto and joins that others feed ---------------------------------------------------

ORDERS = st.randoms(use_true_random=False)


def order_of(random: object) -> Callable[[int], int]:
    return lambda n: random.randrange(n)  # type: ignore[attr-defined,no-any-return]


@given(ORDERS, st.sampled_from(["l", "r"]))
def test_goto_out_of_a_group_to_what_follows_it_waits_for_the_other_members(random: object, who: str) -> None:
    graph = graph_of("sl", "sr", "gj", starts="s", g=(All(), "lr"))

    done = Walk(graph, **{who: [goto("j")]}).go(order_of(random))

    assert (sorted(done.ran), done.ran[-1], done.state.status) == (list("jlrs"), "j", "completed")


@given(ORDERS)
def test_goto_past_what_follows_a_group_is_joined_by_the_members_that_go_there(random: object) -> None:
    graph = graph_of("sl", "sr", "gmj", starts="s", g=(All(), "lr"))

    done = Walk(graph, l=[goto("j")]).go(order_of(random))

    assert (sorted(done.ran), done.ran[-2:], done.state.status) == (list("jlmrs"), ["m", "j"], "completed")


@given(ORDERS)
@pytest.mark.parametrize("policy", [All(), BestEffort(), AtLeast(1), AtLeast(2)])
def test_goto_of_all_members_past_what_follows_their_group_runs_the_target_alone_and_once(
    policy: GroupPolicy, random: object
) -> None:
    graph = graph_of("sl", "sr", "gmj", starts="s", g=(policy, "lr"))

    done = Walk(graph, l=[goto("j")], r=[goto("j")]).go(order_of(random))

    assert (sorted(done.ran), done.ran[-1], done.state.status) == (list("jlrs"), "j", "completed")
    assert {"g", "m"} <= done.state.skipped.keys()


def test_goto_of_members_to_different_tasks_past_their_group_runs_both() -> None:
    graph = graph_of("sl", "sr", "gmjk", starts="s", g=(All(), "lr"))

    done = walk(graph, l=[goto("j")], r=[goto("k")])

    assert done.state.status == "completed"
    assert sorted(done.ran)[:2] == ["j", "k"]
    assert "m" not in done.ran


def test_goto_past_a_join_that_others_feed_takes_no_data() -> None:
    graph = graph_of("sl", "sr", "gmj", starts="s", g=(All(), "lr"))

    with pytest.raises(GraphError, match=r"'j', goto=True\): other branches of 'g' lead to 'j'"):
        walk(graph, l=[goto("j", data=b"\x05")])


@given(ORDERS)
def test_goto_into_another_branch_runs_the_target_for_both_and_their_join_once(random: object) -> None:
    graph = graph_of("sbcd", "se", "gj", starts="s", g=(All(), "de"))

    done = Walk(graph, e=[goto("c")]).go(order_of(random))

    assert sorted(done.ran) == list("bccddejs")
    assert (done.ran[-1], done.state.status, done.state.gates) == ("j", "completed", {})


def test_goto_from_the_branch_that_was_taken_to_the_one_that_was_not() -> None:
    graph = graph_of("sb", "sc", "gj", starts="s", g=(All(), "bc"))

    done = walk(graph, s=[goto("b")], b=[goto("c")])

    assert ("".join(done.ran), done.state.status) == ("sbcj", "completed")


def test_goto_into_another_branch_above_a_join_of_its_own_is_refused() -> None:
    graph = graph_of("sbxd", "scxd", "se", "gj", starts="s", g=(All(), "de"))

    with pytest.raises(GraphError, match=r"'e' cannot go to 'b'.*before the join 'x'"):
        walk(graph, e=[goto("b")])


@given(ORDERS)
@pytest.mark.parametrize("policy", [All(), BestEffort(), AtLeast(1), AtLeast(2)])
def test_goto_back_into_one_member_of_a_group_runs_what_follows_it_once_more(
    policy: GroupPolicy, random: object
) -> None:
    graph = graph_of("sl", "srx", "gz", starts="s", g=(policy, "lx"))

    done = Walk(graph, z=[goto("r")]).go(order_of(random))

    assert (sorted(done.ran), done.state.status, done.state.gates) == (list("lrrsxxzz"), "completed", {})


def test_goto_back_into_one_branch_of_a_diamond_does_not_wait_for_the_other_one() -> None:
    assert ran(graph_of("abd", "acd"), d=[goto("b")]) == "abcdbd"


@given(ORDERS)
def test_goto_back_beside_a_join_that_follows_another_one_runs_both_once(random: object) -> None:
    graph = graph_of("abced", "abfd", "cf")

    done = Walk(graph, c=[goto("a")]).go(order_of(random))

    assert (sorted(done.ran), done.state.status) == (list("aabbccdef"), "completed")


@given(ORDERS, st.sampled_from("lrx"))
@pytest.mark.parametrize("policy", [All(), BestEffort(), AtLeast(1)])
def test_goto_into_a_member_of_a_group_runs_that_member_alone_and_the_group_once(
    policy: GroupPolicy, random: object, target: str
) -> None:
    graph = graph_of("sl", "srx", "gz", starts="s", g=(policy, "lx"))

    done = Walk(graph, s=[goto(target)]).go(order_of(random))

    assert "".join(sorted(done.ran)) == {"l": "lsz", "r": "rsxz", "x": "sxz"}[target]
    assert (done.state.status, done.state.gates) == ("completed", {})


@given(ORDERS, st.data())
def test_one_jump_leaves_no_join_waiting_and_what_follows_the_jumper_runs_once(
    random: object, data: st.DataObject
) -> None:
    names = "abcdefgh"
    ways = [
        (source, data.draw(st.integers(0, n), f"before {target}"))
        for n, target in enumerate(names[1:])
        for source in [target] * data.draw(st.integers(1, 2), f"ways to {target}")
    ]
    graph = graph_of(*{names[source] + target for target, source in ways})
    jumper = data.draw(st.sampled_from(names), "from")
    along = [n for n in names if graph.is_ancestor(n, jumper) or graph.is_ancestor(jumper, n)]

    done = Walk(graph, **{jumper: [goto(data.draw(st.sampled_from(along), "to"))]}).go(order_of(random))

    assert done.state.status == "completed", done.state.reason
    assert all(done.ran.count(n) <= 1 + (n == jumper or not graph.is_ancestor(jumper, n)) for n in names)


# --- skipped ---------------------------------------------------------------------------


def test_a_join_with_one_branch_that_was_taken_runs() -> None:
    assert sorted(ran(graph_of("abd", "acd", "x"), b=[goto("x")])) == list("abcdx")


def test_a_join_none_of_whose_branches_were_taken_is_skipped_and_says_so() -> None:
    graph = graph_of("sbj", "scj", "jkl", "sl", "x", starts="s")

    done = walk(graph, b=[goto("x")], c=[goto("x")])

    assert sorted(done.ran) == ["b", "c", "l", "s", "x", "x"]
    assert {"j", "k"} <= set(done.state.skipped)
    assert done.state.status == "completed"


# --- failed ----------------------------------------------------------------------------


def test_a_failed_task_is_not_completed_and_nothing_follows_it() -> None:
    done = walk(graph_of("abc"), b=[failed()])

    assert ("".join(done.ran), done.state.status) == ("ab", "failed")
    assert list(done.state.completed) == ["a"]
    assert done.state.errors == {"b": "E: no"}
    assert [spec.task_id for spec in done.state.pending()] == ["b"]


def test_a_task_with_retries_runs_again_and_then_fails() -> None:
    assert ran(graph_of("ar"), r=[failed()]) == "arr"

    done = walk(graph_of("ar"), r=[failed(), failed()])

    assert ("".join(done.ran), done.state.status) == ("arr", "failed")


def test_what_must_not_be_retried_is_not() -> None:
    done = walk(graph_of("ar"), r=[failed(retry=False)])

    assert ("".join(done.ran), done.state.status) == ("ar", "failed")


def test_continue_skips_what_follows_a_failed_task() -> None:
    done = walk(graph_of("abd", "acd", "be"), "continue", b=[failed()])

    assert (sorted(done.ran), done.state.status) == (["a", "b", "c", "d"], "completed")
    assert "b" not in done.state.completed
    assert set(done.state.skipped) == {"e"}
    assert done.state.errors == {"b": "E: no"}


# --- groups ----------------------------------------------------------------------------


def test_a_group_goes_on_when_all_its_chains_are_through() -> None:
    graph = graph_of("abc", "ad", "gz", g=(All(), "cd"))

    done = walk(graph)

    assert sorted(done.ran) == list("abcdz")
    assert done.ran[-1] == "z"
    assert (list(done.state.passed), done.state.steps) == (["g"], 5)
    assert "g" not in done.state.completed


def test_a_failed_member_of_a_strict_group_fails_the_session() -> None:
    done = walk(graph_of("ab", "ac", "gz", g=(All(), "bc")), b=[failed()])

    assert done.state.status == "failed"
    assert "z" not in done.ran


def test_best_effort_goes_on_without_those_that_failed() -> None:
    graph = graph_of("abm", "ac", "gz", g=(BestEffort(), "mc"))

    done = walk(graph, b=[failed()], c=[failed()])

    assert ("".join(sorted(done.ran)), done.state.status) == ("abcz", "completed")
    assert set(done.state.errors) == {"b", "c"}
    assert set(done.state.skipped) == {"m"}


def test_best_effort_goes_on_even_if_its_only_member_failed() -> None:
    assert ran(graph_of("ab", "gz", g=(BestEffort(), "b")), b=[failed()]) == "abz"


def test_best_effort_is_gone_past_when_its_only_way_in_is_not_taken() -> None:
    graph = graph_of("sab", "x", "gz", starts="s", g=(BestEffort(), "b"))

    assert ran(graph, s=[goto("x")]) == "sx"


def test_at_least_goes_on_early_and_runs_its_successor_once() -> None:
    graph = graph_of("ab", "ac", "ad", "gz", g=(AtLeast(2), "bcd"))

    done = walk(graph, b=[failed()])

    assert (sorted(done.ran), done.state.status) == (list("abcdz"), "completed")
    assert done.state.gates == {}


def test_at_least_with_too_few_fails_the_session_as_the_group() -> None:
    graph = graph_of("ab", "ac", "gz", g=(AtLeast(2), "bc"))

    done = walk(graph, b=[failed()])

    assert (done.state.status, set(done.state.errors)) == ("failed", {"b", "g"})
    assert "z" not in done.ran


@given(
    st.sampled_from([BestEffort(), AtLeast(1), AtLeast(2), AtLeast(3)]),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.randoms(use_true_random=False),
)
def test_a_group_fires_once_or_fails_by_how_many_succeeded(
    policy: GroupPolicy, good: list[bool], random: object
) -> None:
    script = {name: [OK if ok else failed()] for name, ok in zip("bcd", good, strict=True)}
    graph = graph_of("ab", "ac", "ad", "gz", g=(policy, "bcd"))

    done = Walk(graph, **script).go(lambda n: random.randrange(n))  # type: ignore[attr-defined]

    met = isinstance(policy, BestEffort) or sum(good) >= policy.count  # type: ignore[union-attr]
    assert done.ran.count("z") == int(met)
    assert done.state.status == ("completed" if met else "failed")
    assert done.state.gates == {}


# --- made at run time ------------------------------------------------------------------


def spawn(name: str, *before: str, more: Effects | None = None) -> Done:
    made = Spawned(Task(name, len), before, b"\x09")
    return Done(b"\xc0", (more or Effects())._replace(spawned=(made,), nexts=(Next(name, None, False),)))


def test_a_task_made_at_run_time_runs_before_the_successor_that_waits_for_it() -> None:
    done = walk(graph_of("ab"), a=[spawn("x", "b")])

    assert "".join(done.ran) == "axb"
    assert (list(done.state.tasks), done.state.gates) == (["x"], {})


def test_tasks_made_by_every_round_of_a_loop_are_all_waited_for() -> None:
    again = Effects(again=NO_DATA)
    graph = graph_of("ab")

    done = walk(graph, a=[spawn("x", "b", more=again), spawn("x", "b", more=again)])

    assert (sorted(done.ran), done.ran[-1]) == (list("aaabxx"), "b")
    assert list(graph.nodes) == ["a", "b", "x"]


def test_a_join_waits_for_a_task_made_at_run_time_too() -> None:
    done = walk(graph_of("abd", "acd"), b=[spawn("x", "d")])

    assert (sorted(done.ran), done.ran[-1]) == (list("abcdx"), "d")


# --- specs without a body --------------------------------------------------------------


@pytest.mark.parametrize(("how", "end"), [("pass", "passed"), ("skip", "skipped")])
def test_a_spec_without_a_body_is_passed_on(how: str, end: str) -> None:
    graph = graph_of("abd", "acd")

    ops = pass_on(graph, Claim(TaskSpec("b", execution_strategy=how, key=3), 8))

    assert ops == [("end", 3, 8, end), graph.routes["d"].arrive(int(how == "pass"))]
