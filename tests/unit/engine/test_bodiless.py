"""Specs without a body: what is committed for them, or that they run after all."""

from __future__ import annotations

from typing import Any

import pytest

from graflow_ckpt.core.decide import ANSWERS
from graflow_ckpt.core.facts import Claim, Op, TaskSpec
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import AtLeast, Group, Options, Task
from graflow_ckpt.engine.invoke import without_body
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


def test_what_another_thread_queues_while_a_group_looks_for_its_members_is_no_error() -> None:
    class Interrupting(TaskSpec):
        @property
        def task_id(self) -> str:  # type: ignore[override]
            session.commit([graph.routes["start"].enqueue()])
            return "start"

    graph = graph_of()
    session = session_of(graph, "a", "b")
    claim = claimed(session)
    session.commit([graph.routes["start"].enqueue()])
    key, spec = session.state.specs.popitem()
    session.state.specs[key] = Interrupting(*spec)

    ops, _ = without_body(graph, session, claim)

    assert ops is not None


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


def test_a_group_whose_members_succeeded_without_coming_fails_again() -> None:
    graph = graph_of()
    session = session_of(graph, "a", "b")
    for name in "ab":  # they have run since, and jumped elsewhere
        session.state.completed[name] = session.state.steps
        del session.state.errors[name]

    ops, claim = without_body(graph, session, claimed(session))

    assert (ops, claim.spec.execution_strategy) == (None, "lost")


def test_a_group_that_a_later_round_has_passed_waits_for_nothing() -> None:
    graph = graph_of()
    session = session_of(graph, "a", "b")
    session.commit([("reopen", 2, None), graph.routes["g"].enqueue()])
    (claim,) = session.commit([("claim", 1)])

    ops, _ = without_body(graph, session, claim)

    assert claim.spec.execution_strategy == "again"
    assert ops == [("end", claim.spec.key, claim.number, "dropped")]


def test_a_group_with_too_few_successes_is_to_be_run_so_that_it_can_fail() -> None:
    graph = graph_of()
    session = session_of(graph, "a", "b")
    (spec,) = session.state.specs.values()

    assert spec.execution_strategy == "lost"
    assert without_body(graph, session, Claim(spec, 1)) == (None, Claim(spec, 1))


def doubtful(choice: str) -> tuple[TaskGraph, MemorySession, Claim]:
    """A task whose worker died, claimed by the next one."""
    graph = graph_of(choice)
    session = MemorySession(SessionState("s", graph.starts))
    (claim,) = session.commit([graph.routes["start"].enqueue(), ("claim", 1)])
    session.commit([("doubt", claim.spec.key, 1)])
    return graph, session, session.commit([("claim", 1)])[0]


def carried_out(
    graph: TaskGraph, session: MemorySession, claim: Claim, *answers: tuple[str, str]
) -> list[str]:
    """How what follows was scheduled, until there is something to run, or nothing."""
    hows = []
    while claim.spec.execution_strategy != "direct":
        ops, claim = without_body(graph, session, claim, answers)
        assert ops is not None
        claims = session.commit([*ops, ("claim", 1)])
        if not claims:
            break
        claim = claims[0]
        hows.append(f"{claim.spec.task_id} {claim.spec.execution_strategy}")
    return hows


@pytest.mark.parametrize(
    ("choice", "hows", "status"),
    [
        ("rerun", ["start direct"], "running"),
        ("skip", ["a direct"], "running"),
        ("fail", ["start failed"], "failed"),
        ("ask", [], "paused"),
    ],
)
def test_a_spec_in_doubt_goes_by_its_task(choice: str, hows: list[str], status: str) -> None:
    graph, session, claim = doubtful(choice)

    assert carried_out(graph, session, claim) == hows
    assert session.status == status


@pytest.mark.parametrize(("answer", "hows"), [("rerun", ["start direct"]), ("skip", ["a direct"])])
def test_an_answer_that_is_known_is_not_asked_for(answer: str, hows: list[str]) -> None:
    graph, session, claim = doubtful("ask")

    assert carried_out(graph, session, claim, ("start", answer)) == hows


@pytest.mark.parametrize(("answer", "hows"), [("rerun", ["start direct"]), ("skip", ["a direct"])])
def test_what_was_asked_for_is_carried_out_when_it_is_answered(answer: str, hows: list[str]) -> None:
    graph, session, claim = doubtful("ask")
    carried_out(graph, session, claim)
    assert session.state.dead == {claim.spec.key: "InDoubt: start was running when its worker died"}

    answered = ("answer", claim.spec.key, ANSWERS[answer])
    (claim,) = session.commit([answered, ("status", "running", ""), ("claim", 1)])

    assert (carried_out(graph, session, claim) or ["start direct"]) == hows
    assert session.state.errors == {}


def test_what_has_failed_in_doubt_runs_when_the_session_goes_on() -> None:
    graph, session, claim = doubtful("fail")
    carried_out(graph, session, claim)
    assert session.status == "failed"

    (again,) = session.commit([("reopen", 1, None), ("claim", 1)])

    assert (again.spec.task_id, again.spec.execution_strategy, again.spec.crashes) == ("start", "direct", 0)


def test_an_answer_to_what_is_not_in_doubt_changes_nothing() -> None:
    session = MemorySession(SessionState("s"))
    graph = graph_of()
    session.commit([graph.routes["start"].enqueue()])

    session.commit([("answer", 1, "left"), ("answer", 7, "left")])

    assert session.state.specs[1].execution_strategy == "direct"
