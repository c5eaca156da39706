"""Specs without a body: what is committed for them, or that they run after all."""

from __future__ import annotations

from typing import Any

import pytest

from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Claim, Op
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import AtLeast, Group, Options, Task
from graflow_ckpt.engine.bodiless import without_body
from graflow_ckpt.sessions.memory import MemorySession


def graph_of(on_interrupted: Any = "rerun") -> TaskGraph:
    """start, a group of a, b and c of which two have to succeed, after."""
    graph = TaskGraph()
    for name in ("start", "a", "b", "c", "after"):
        graph.add(Task(name, lambda: None, Options(on_interrupted=on_interrupted)))
    graph.add(Group("g", AtLeast(2), ("a", "b", "c"), frozenset("abc")))
    for member in "abc":
        graph.add_edge("start", member)
        graph.add_edge(member, "g")
    graph.add_edge("g", "after")
    graph.compile(("start",))
    return graph


def session_of(graph: TaskGraph, *bad: str) -> MemorySession:
    """A session that has failed: the members in `bad` were lost, the others have completed."""
    session = MemorySession(SessionState("s", graph.starts))
    ops: list[Op] = [graph.routes["start"].enqueue(), ("claim", 9)]
    while claims := session.commit(ops):
        ops = []
        for claim in claims:
            task = claim.spec.task_id
            if claim.spec.execution_strategy == "lost":
                ops += [("end", claim.spec.key, claim.number, "failed", "x"), ("status", "failing", "x")]
            elif task in bad:
                ops += [
                    ("end", claim.spec.key, claim.number, "lost", "x"),
                    *graph.not_taken(graph.routes[task], frozenset(), False)[1],
                ]
            else:
                ops += [("end", claim.spec.key, claim.number, "completed", b"\xc0"), *graph.routes[task].done]
        ops.append(("claim", 9))
    return session


def claimed(session: MemorySession) -> Claim:
    """The failed group, claimed once more."""
    (claim,) = session.commit([("reopen", 2, None), ("claim", 1)])
    assert (claim.spec.task_id, claim.spec.execution_strategy) == ("g", "again")
    return claim


def test_a_group_that_failed_waits_for_its_lost_members_and_they_run_again() -> None:
    graph = graph_of()
    session = session_of(graph, "a", "b")
    assert session.status == "failed"

    ops, _ = without_body(graph, session, claimed(session))
    assert ops is not None
    again = session.commit([*ops, ("claim", 9)])

    assert [claim.spec.task_id for claim in again] == ["a", "b"]
    assert session.state.gates["g"].facts() == [2, 1, 0, 0, 0]


def test_a_group_of_which_too_few_can_come_fails_again() -> None:
    graph = graph_of()
    session = session_of(graph, "a", "b", "c")
    session.state.skipped["a"] = session.state.skipped["b"] = 1
    for name in "ab":
        del session.state.errors[name]

    ops, claim = without_body(graph, session, claimed(session))

    assert ops is None
    assert claim.spec.execution_strategy == "lost"


def test_a_group_with_too_few_successes_is_to_be_run_so_that_it_can_fail() -> None:
    graph = graph_of()
    session = session_of(graph, "a", "b")
    (spec,) = session.state.specs.values()

    assert spec.execution_strategy == "lost"
    assert without_body(graph, session, Claim(spec, 1)) == (None, Claim(spec, 1))


@pytest.mark.parametrize(
    ("choice", "kind", "status"),
    [("skip", "end", "skipped"), ("fail", "end", "failed"), ("ask", "quarantine", "InDoubt")],
)
def test_a_spec_in_doubt_goes_by_its_task(choice: str, kind: str, status: str) -> None:
    graph = graph_of(choice)
    session = MemorySession(SessionState("s", graph.starts))
    (claim,) = session.commit([graph.routes["start"].enqueue(), ("claim", 1)])
    apply(session.state, [("doubt", claim.spec.key, 1)], 0.0)
    (doubtful,) = session.commit([("claim", 1)])

    ops, _ = without_body(graph, session, doubtful)

    assert ops is not None
    assert ops[0][0] == kind
    assert status in " ".join(map(str, ops[0]))


def test_a_spec_in_doubt_of_a_task_that_asks_for_nothing_runs_again() -> None:
    graph = graph_of("rerun")
    session = MemorySession(SessionState("s", graph.starts))
    (claim,) = session.commit([graph.routes["start"].enqueue(), ("claim", 1)])
    doubtful = claim._replace(spec=claim.spec._replace(execution_strategy="doubt"))

    ops, found = without_body(graph, session, doubtful)

    assert ops is None
    assert found == claim
