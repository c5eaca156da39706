"""Decide: what follows from an outcome. Whole sessions are walked here without an engine.

`Walk` plays the engine: it claims what is ready, decides as a test's script says, and applies. It is the
contract between decide, graph and state that is tested: who runs, how often, and who never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

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


# --- walks -----------------------------------------------------------------------------


def spawn(name: str, *before: str, more: Effects | None = None) -> Done:
    made = Spawned(Task(name, len), before, b"\x09")
    return Done(b"\xc0", (more or Effects())._replace(spawned=(made,), nexts=(Next(name, None, False),)))


def shown(done: Walk) -> dict[str, Any]:
    """What a table may say of a walk that is over: what ran (also sorted), and the tables of its state."""
    state = done.state
    return {
        **vars(state),
        "ran": "".join(done.ran),
        "sorted": "".join(sorted(done.ran)),
        "last": done.ran[-1],
        "end": "".join(done.ran[-2:]),
        "data": [spec.task_data for spec in done.specs],
        "cycles": [spec.cycle for spec in done.specs],
        "pending": [spec.task_id for spec in state.pending()],
        **{name: list(getattr(state, name)) for name in ("completed", "passed", "skipped", "tasks")},
        "nodes": list(done.graph.nodes),
    }


def check(done: Walk, expected: dict[str, Any]) -> None:
    found = shown(done)
    expected = {"status": "completed", **expected}
    assert {name: found[name] for name in expected} == expected, done.state.reason


Case = tuple[TaskGraph, dict[str, list[Outcome]], dict[str, Any]]
AGAIN, ENOUGH = Effects(again=NO_DATA), Effects(terminate="enough")
GROUP = graph_of("sl", "sr", "gmjk", starts="s", g=(All(), "lr"))

WALKS: dict[str, Case] = {
    "a chain runs in order": (graph_of("abc"), {}, {"ran": "abc"}),
    "a join inside a loop waits anew each time round": (
        graph_of("abdb", "bcd"),
        {"d": [OK, OK, Done(b"\xc0", ENOUGH)]},
        {"ran": "abcdbcdbcd"},
    ),
    "terminate starts nothing more and commits the task": (
        graph_of("abc"),
        {"b": [Done(b"\x01", ENOUGH)]},
        {"ran": "ab", "reason": "enough", "completed": ["a", "b"]},
    ),
    "cancelling commits nothing of the task": (
        graph_of("abc"),
        {"b": [Cancelled("no more")]},
        {"status": "cancelled", "reason": "no more", "completed": ["a"], "specs": {}},
    ),
    # again and elsewhere
    "next_iteration tells nobody until the last one": (
        graph_of("abc"),
        {"b": [Done(b"\xc0", Effects(again=b"\x05"))] * 2},
        {"ran": "abbbc", "cycles": [0, 0, 1, 2, 0], "data": [None, None, b"\x05", b"\x05", None]},
    ),
    "a goto beside a next_iteration runs too and skips nothing": (
        graph_of("ab", "x"),
        {"a": [Done(b"\xc0", AGAIN._replace(nexts=(Next("x", b"\x05", True),)))]},
        {"sorted": "aabx", "skipped": []},
    ),
    "next_iteration without data has none": (
        graph_of("ab"),
        {"a": [Done(b"\xc0", AGAIN)]},
        {"data": [None, None, None]},
    ),
    "next_task runs beside the successors": (
        graph_of("ab", "x"),
        {"a": [Done(b"\xc0", Effects(nexts=(Next("x", b"\x05", False),)))]},
        {"ran": "abx", "data": [None, None, b"\x05"]},
    ),
    "goto runs its target instead of the successors": (
        graph_of("abc", "x"),
        {"a": [goto("x", data=b"\x07")]},
        {"ran": "ax", "skipped": ["b", "c"], "data": [None, b"\x07"]},
    ),
    "goto past a task skips it up to the target": (
        graph_of("abcd"),
        {"a": [goto("c")]},
        {"ran": "acd", "skipped": ["b"]},
    ),
    "goto back up sends nothing and the way down is walked again": (
        graph_of("abcd"),
        {"c": [goto("a")]},
        {"ran": "abcabcd", "skipped": []},
    ),
    "goto to oneself is another round": (graph_of("abc"), {"b": [goto("b")]}, {"ran": "abbc"}),
    "goto to a join all of whose branches are cut runs it directly, with its data": (
        graph_of("abd", "acd"),
        {"a": [goto("d", data=b"\x05")]},
        {"ran": "ad", "data": [None, b"\x05"]},
    ),
    "goto to a join all of whose branches are cut runs it directly": (
        graph_of("abd", "acd"),
        {"a": [goto("d")]},
        {"ran": "ad"},
    ),
    "goto to a join that others lead to counts as what was cut": (
        graph_of("aj", "bcj", "bdj", starts="ab"),
        {"b": [goto("j")]},
        {"sorted": "abj"},
    ),
    "goto from one branch past its task joins the other branch": (
        graph_of("sbmj", "scj", starts="s"),
        {"b": [goto("j")]},
        {"sorted": "bcjs"},
    ),
    "goto elsewhere tells the join that its branch does not come": (
        graph_of("sbj", "scj", "x", starts="s"),
        {"b": [goto("x")]},
        {"sorted": "bcjsx"},
    ),
    "goto to two tasks runs both": (
        graph_of("ab", "x", "y"),
        {"a": [goto("x", "y")]},
        {"sorted": "axy"},
    ),
    "goto of members to different tasks past their group runs both": (
        GROUP,
        {"l": [goto("j")], "r": [goto("k")]},
        {"sorted": "jkklrs"},
    ),
    "goto from the branch that was taken to the one that was not": (
        graph_of("sb", "sc", "gj", starts="s", g=(All(), "bc")),
        {"s": [goto("b")], "b": [goto("c")]},
        {"ran": "sbcj"},
    ),
    "goto back into one branch of a diamond does not wait for the other one": (
        graph_of("abd", "acd"),
        {"d": [goto("b")]},
        {"ran": "abcdbd"},
    ),
    # skipped
    "a join with one branch that was taken runs": (
        graph_of("abd", "acd", "x"),
        {"b": [goto("x")]},
        {"sorted": "abcdx"},
    ),
    "a join none of whose branches were taken is skipped and says so": (
        graph_of("sbj", "scj", "jkl", "sl", "x", starts="s"),
        {"b": [goto("x")], "c": [goto("x")]},
        {"sorted": "bclsxx", "skipped": ["j", "k"]},
    ),
    # failed
    "a failed task is not completed and nothing follows it": (
        graph_of("abc"),
        {"b": [failed()]},
        {"status": "failed", "ran": "ab", "completed": ["a"], "errors": {"b": "E: no"}, "pending": ["b"]},
    ),
    "a loop in the graph goes on both ways": (
        graph_of("abcb", "cd"),
        {"c": [OK, failed()]},
        {"status": "failed", "ran": "abcdbc"},
    ),
    "a task with retries runs again": (graph_of("ar"), {"r": [failed()]}, {"ran": "arr"}),
    "a task with retries runs again and then fails": (
        graph_of("ar"),
        {"r": [failed(), failed()]},
        {"status": "failed", "ran": "arr"},
    ),
    "what must not be retried is not": (
        graph_of("ar"),
        {"r": [failed(retry=False)]},
        {"status": "failed", "ran": "ar"},
    ),
    # groups
    "a group goes on when all its chains are through": (
        graph_of("abc", "ad", "gz", g=(All(), "cd")),
        {},
        {"sorted": "abcdz", "last": "z", "passed": ["g"], "steps": 5, "completed": ["a", "b", "d", "c", "z"]},
    ),
    "a failed member of a strict group fails the session": (
        graph_of("ab", "ac", "gz", g=(All(), "bc")),
        {"b": [failed()]},
        {"status": "failed", "ran": "abc"},
    ),
    "best effort goes on without those that failed": (
        graph_of("abm", "ac", "gz", g=(BestEffort(), "mc")),
        {"b": [failed()], "c": [failed()]},
        {"sorted": "abcz", "errors": {"b": "E: no", "c": "E: no"}, "skipped": ["m"]},
    ),
    "best effort goes on even if its only member failed": (
        graph_of("ab", "gz", g=(BestEffort(), "b")),
        {"b": [failed()]},
        {"ran": "abz"},
    ),
    "best effort is gone past when its only way in is not taken": (
        graph_of("sab", "x", "gz", starts="s", g=(BestEffort(), "b")),
        {"s": [goto("x")]},
        {"ran": "sx"},
    ),
    "at least goes on early and runs its successor once": (
        graph_of("ab", "ac", "ad", "gz", g=(AtLeast(2), "bcd")),
        {"b": [failed()]},
        {"sorted": "abcdz", "gates": {}},
    ),
    "at least with too few fails the session as the group": (
        graph_of("ab", "ac", "gz", g=(AtLeast(2), "bc")),
        {"b": [failed()]},
        {"status": "failed", "errors": {"b": "E: no", "g": "E: no"}, "sorted": "abc"},
    ),
    # made at run time
    "a task made at run time runs before the successor that waits for it": (
        graph_of("ab"),
        {"a": [spawn("x", "b")]},
        {"ran": "axb", "tasks": ["x"], "gates": {}},
    ),
    "tasks made by every round of a loop are all waited for": (
        graph_of("ab"),
        {"a": [spawn("x", "b", more=AGAIN), spawn("x", "b", more=AGAIN)]},
        {"sorted": "aaabxx", "last": "b", "nodes": ["a", "b", "x"]},
    ),
    "a join waits for a task made at run time too": (
        graph_of("abd", "acd"),
        {"b": [spawn("x", "d")]},
        {"sorted": "abcdx", "last": "d"},
    ),
}


@pytest.mark.parametrize(("graph", "script", "expected"), WALKS.values(), ids=WALKS.keys())
def test_a_walk_ends_as_it_should(
    graph: TaskGraph, script: dict[str, list[Outcome]], expected: dict[str, Any]
) -> None:
    check(walk(graph, **script), expected)


def test_continue_skips_what_follows_a_failed_task() -> None:
    done = walk(graph_of("abd", "acd", "be"), "continue", b=[failed()])

    errors = {"b": "E: no"}
    check(done, {"sorted": "abcd", "completed": ["a", "c", "d"], "skipped": ["e"], "errors": errors})


def test_what_a_body_changed_is_committed_with_its_end() -> None:
    put: Op = ("put", "x", b"\x01", -1)

    ops = decide(graph_of("ab"), Claim(TaskSpec("a", key=4), 7), Done(b"\x02", Effects((put,))), "pause")

    assert ops[:2] == [put, ("end", 4, 7, "completed", b"\x02")]
    assert ops[2][:2] == ("enqueue", "b")


def test_goto_to_oneself_tells_no_join_that_the_branch_is_through() -> None:
    done = Walk(graph_of("sbj", "scj", starts="s"), b=[goto("b"), goto("b")]).go(lambda n: n - 1)

    check(done, {"sorted": "bbbcjs", "last": "j"})


@pytest.mark.parametrize(
    ("graph", "jump", "said"),
    [
        pytest.param(
            GROUP,
            {"l": [goto("j", data=b"\x05")]},
            r"'j', goto=True\): other branches of 'g' lead to 'j'",
            id="past a join that others feed, with data",
        ),
        pytest.param(
            graph_of("sbxd", "scxd", "se", "gj", starts="s", g=(All(), "de")),
            {"e": [goto("b")]},
            r"'e' cannot go to 'b'.*before the join 'x'",
            id="into another branch above a join of its own",
        ),
    ],
)
def test_a_goto_that_could_not_be_joined_is_refused(
    graph: TaskGraph, jump: dict[str, list[Outcome]], said: str
) -> None:
    with pytest.raises(GraphError, match=said):
        walk(graph, **jump)


# --- in any order ----------------------------------------------------------------------

ORDERS = st.randoms(use_true_random=False)
POLICIES = [All(), BestEffort(), AtLeast(1), AtLeast(2)]


def order_of(random: object) -> Callable[[int], int]:
    return lambda n: random.randrange(n)  # type: ignore[attr-defined,no-any-return]


def with_group(policy: GroupPolicy) -> TaskGraph:
    """Of one task and of a chain of two, with a task behind it."""
    return graph_of("sl", "srx", "gz", starts="s", g=(policy, "lx"))


ANY_ORDER: dict[str, Case] = {
    "the join of a diamond runs once whoever comes last": (
        graph_of("abd", "acd", "de"),
        {},
        {"sorted": "abcde", "end": "de", "gates": {}},
    ),
    "goto from the left out of a group to what follows it waits for the other member": (
        graph_of("sl", "sr", "gj", starts="s", g=(All(), "lr")),
        {"l": [goto("j")]},
        {"sorted": "jlrs", "last": "j"},
    ),
    "goto from the right out of a group to what follows it waits for the other member": (
        graph_of("sl", "sr", "gj", starts="s", g=(All(), "lr")),
        {"r": [goto("j")]},
        {"sorted": "jlrs", "last": "j"},
    ),
    "goto past what follows a group is joined by the members that go there": (
        graph_of("sl", "sr", "gmj", starts="s", g=(All(), "lr")),
        {"l": [goto("j")]},
        {"sorted": "jlmrs", "end": "mj"},
    ),
    **{
        f"goto of all members past what follows their group runs the target alone and once, {policy}": (
            graph_of("sl", "sr", "gmj", starts="s", g=(policy, "lr")),
            {"l": [goto("j")], "r": [goto("j")]},
            {"sorted": "jlrs", "last": "j", "skipped": ["g", "m"]},
        )
        for policy in POLICIES
    },
    "goto into another branch runs the target for both and their join once": (
        graph_of("sbcd", "se", "gj", starts="s", g=(All(), "de")),
        {"e": [goto("c")]},
        {"sorted": "bccddejs", "last": "j", "gates": {}},
    ),
    **{
        f"goto back into one member of a group runs what follows it once more, {policy}": (
            with_group(policy),
            {"z": [goto("r")]},
            {"sorted": "lrrsxxzz", "gates": {}},
        )
        for policy in POLICIES
    },
    "goto back beside a join that follows another one runs both once": (
        graph_of("abced", "abfd", "cf"),
        {"c": [goto("a")]},
        {"sorted": "aabbccdef"},
    ),
    **{
        f"goto into {target} of a group runs that member alone and the group once, {policy}": (
            with_group(policy),
            {"s": [goto(target)]},
            {"sorted": {"l": "lsz", "r": "rsxz", "x": "sxz"}[target], "gates": {}},
        )
        for policy in POLICIES[:3]
        for target in "lrx"
    },
}


@pytest.mark.parametrize(("graph", "script", "expected"), ANY_ORDER.values(), ids=ANY_ORDER.keys())
@given(random=ORDERS)
def test_a_walk_ends_the_same_in_any_order(
    graph: TaskGraph, script: dict[str, list[Outcome]], expected: dict[str, Any], random: object
) -> None:
    check(Walk(graph, **script).go(order_of(random)), expected)


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


# --- specs without a body --------------------------------------------------------------


@pytest.mark.parametrize(("how", "end"), [("pass", "passed"), ("skip", "skipped")])
def test_a_spec_without_a_body_is_passed_on(how: str, end: str) -> None:
    graph = graph_of("abd", "acd")

    ops = pass_on(graph, Claim(TaskSpec("b", execution_strategy=how, key=3), 8))

    assert ops == [("end", 3, 8, end), graph.routes["d"].arrive(int(how == "pass"))]
