"""Specs that have no body to run: what becomes of one, by how it was scheduled.

pass    a group is through: its successors are told
skip    a task that is not taken: what only it leads to is not taken either
jump    a join that is not taken, because branches jump past it: the session continues where they jump to
lost    a group with too few successes: it fails, like a body that raises
again   a group that had failed the session, which goes on: it waits for its lost members once more
doubt   its worker died while it ran: its task says what then, or somebody who was asked
left    somebody has said to go on without it
failed  somebody has said that it has failed

Specs that must not run: a task that came round too often, a group with too few successes.
"""

from __future__ import annotations

from collections.abc import Sequence

from graflow_ckpt.core.decide import given_up, in_doubt, pass_on
from graflow_ckpt.core.errors import GraflowError, GroupFailed, MaxCyclesExceeded
from graflow_ckpt.core.facts import Claim, Failed, Op
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import Group, OnInterrupted
from graflow_ckpt.sessions.protocol import Session

ANSWERS: dict[str, str] = {"rerun": "direct", "skip": "left", "fail": "failed"}
"""How a spec in doubt is scheduled, by what somebody has answered."""


def without_body(
    graph: TaskGraph, session: Session, claim: Claim, answers: Sequence[tuple[str, str]] = ()
) -> tuple[list[Op] | None, Claim]:
    """What is committed for a spec instead of running it; or None, and the claim that is to be run."""
    spec = claim.spec
    match spec.execution_strategy:
        case "again":
            lost = claim._replace(spec=spec._replace(execution_strategy="lost"))
            return _wait_again(graph, session.known(), claim), lost
        case "doubt":
            choice = graph.routes[spec.task_id].options.on_interrupted
            if choice == "ask":
                choice = _answered(dict(answers).get(spec.task_id))
            return in_doubt(graph, claim, choice), claim
        case "left":
            return in_doubt(graph, claim, "skip"), claim
        case "failed":
            return given_up(claim), claim
        case "lost":
            return None, claim
        case _:
            return pass_on(graph, claim), claim


def _answered(answer: str | None) -> OnInterrupted:
    match answer:
        case "rerun" | "skip" | "fail":
            return answer
        case _:
            return "ask"


def _wait_again(graph: TaskGraph, state: SessionState, claim: Claim) -> list[Op] | None:
    """The group waits for the members that it has lost, and they run again; None if too few can come."""
    failed = graph.nodes[claim.spec.task_id]
    assert isinstance(failed, Group)
    ops: list[Op] = [("end", claim.spec.key, claim.number, "dropped")]
    waiting = {spec.task_id for key, spec in state.specs.items() if key not in (claim.spec.key, *state.dead)}
    failed_last = state.errors.keys() - state.passed.keys()
    through = (state.completed.keys() | state.passed.keys()) - failed_last - state.skipped.keys()
    lost = [name for name in graph.nodes if name in failed_last and name not in waiting]
    if failed.name not in lost:
        return ops  # a later round has passed it: what follows it must not run once more
    tasks = [name for name in lost if name in failed.inside]
    for name in lost:
        node = graph.nodes[name]
        if isinstance(node, Group) and node.inside <= failed.inside:
            ok = len(through.intersection(node.members))
            coming = sum(
                m not in through and any(graph.is_ancestor(n, m) for n in tasks) for m in node.members
            )
            need = node.policy.need(len(node.members)) - ok
            ops += [("again", name), ("expect", name, 0, coming, need)]
            if need > coming or not coming:
                return None  # members that were skipped, or jumped elsewhere, will not come: it fails again
    return [*ops, *(graph.routes[name].enqueue() for name in tasks)]


def refused(graph: TaskGraph, claim: Claim) -> Failed | None:
    """The failure of a spec that must not run, or None."""
    spec = claim.spec
    if not spec.cycle and spec.execution_strategy != "lost":
        return None  # the first time: no limit is below one
    limit = graph.routes[spec.task_id].options.max_cycles
    error: GraflowError
    if spec.execution_strategy == "lost":
        gate = f"group {spec.task_id!r}"
        error = GroupFailed(f"Fewer members of {gate} succeeded than it needs.", task=spec.task_id)
    elif limit is not None and spec.cycle >= limit:
        error = MaxCyclesExceeded(
            f"Task {spec.task_id!r} was to run for the {spec.cycle + 1}th time; max_cycles={limit}.",
            task=spec.task_id,
        )
    else:
        return None
    return Failed(f"{type(error).__name__}: {error}", error, retry=False)
