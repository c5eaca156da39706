"""decide: what follows from an outcome. It knows the graph and never the state.

done       put what was changed, end the spec, notify the successors
again      next_iteration: the same task once more, its successors are not told
goto       other tasks instead of the successors; what is cut off is skipped
failed     a retry while there are retries; else as the session's on_failure has it
cancelled  nothing of the body is committed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.facts import (
    JUMP,
    NO_DATA,
    NO_EFFECTS,
    Cancelled,
    Cell,
    Claim,
    Done,
    Effects,
    Failed,
    Left,
    Next,
    Op,
    Outcome,
)
from graflow_ckpt.core.graph import Route, TaskGraph
from graflow_ckpt.core.task import OnInterrupted

_AS_USUAL = NO_EFFECTS[1:5]
"""Nothing is asked for: the successors follow."""

_NOWHERE: frozenset[str] = frozenset()

ANSWERS: dict[str, str] = {"rerun": "direct", "skip": "left", "fail": "failed"}
"""How a spec in doubt is scheduled, by what a user has answered."""


def decide(graph: TaskGraph, claim: Claim, outcome: Outcome, on_failure: str) -> list[Op]:
    """Return the ops of one transition."""
    spec, number = claim[:2]
    route = graph.routes[spec.task_id]
    if isinstance(outcome, Done):
        effects = outcome.effects
        end = ("end", spec.key, number, "completed", outcome.result)
        if effects is NO_EFFECTS:
            return [end, *route.done]
        if effects[1:5] == _AS_USUAL:
            return [*effects.ops, end, *route.done]
        ops = [*effects.ops, end]
        ops += _onward(graph, route, effects)
        if effects.terminate is not None:
            ops.append(("status", "closing", effects.terminate))
        return ops
    if isinstance(outcome, Cancelled):
        return [("end", spec.key, number, "dropped"), ("status", "cancelled", outcome.reason)]
    if isinstance(outcome, Left):  # its claim is released, and no transition ends it
        raise TypeError(outcome)
    return _failed(graph, route, claim, outcome, on_failure)


def round_of(graph: TaskGraph, claim: Claim, effects: Effects, where: str, names: Sequence[str]) -> list[Op]:
    """Return the ops of a round that is over, of a body that goes on."""
    ops: list[Op] = [("round", claim.spec.key, claim.number, where, *names), *effects.ops]
    return [*ops, *_made(graph, effects), *_also(graph, effects)]


def pass_on(graph: TaskGraph, claim: Claim) -> list[Op]:
    """Return the ops of a spec without a body: a group that is through, or a task that is not taken."""
    spec, number = claim[:2]
    route = graph.routes[spec.task_id]
    if spec.execution_strategy == "skip":
        return [("end", spec.key, number, "skipped"), *graph.not_taken(route, _NOWHERE, True)[1]]
    how, *targets = spec.execution_strategy.split(JUMP)
    if how == "jump":
        gotos = [Next(target, None, True) for target in targets]
        return [("end", spec.key, number, "skipped"), *_goto(graph, route, gotos)]
    return [("end", spec.key, number, "passed"), *route.done]


def in_doubt(graph: TaskGraph, claim: Claim, choice: OnInterrupted) -> list[Op]:
    """Return the ops of a spec whose worker died while it ran, by what was chosen for that."""
    spec, number = claim[:2]
    match choice:
        case "rerun":
            return [("answer", spec.key, "direct")]
        case "skip":
            return [("end", spec.key, number, "skipped"), *graph.routes[spec.task_id].done]
        case "fail":
            return [("answer", spec.key, "failed")]
        case "ask":
            return [("quarantine", spec.key, f"InDoubt: {spec.task_id} was running when its worker died")]
        case never:
            assert_never(never)


def given_up(claim: Claim) -> list[Op]:
    """Return the ops of a spec that was in doubt, and counts as failed; if the session continues, it runs."""
    why = f"WorkerDied: {claim.spec.task_id} was running when its worker died"
    return [("end", claim.spec.key, claim.number, "failed", why), ("status", "failing", why)]


def _failed(graph: TaskGraph, route: Route, claim: Claim, outcome: Failed, on_failure: str) -> list[Op]:
    spec, number = claim[:2]
    if outcome.is_tried_again(spec):
        return [("end", spec.key, number, "retry", outcome.due, outcome.error)]
    if route.lenient or on_failure == "continue":
        end = ("end", spec.key, number, "lost", outcome.error)
        return [end, *graph.not_taken(route, _NOWHERE, False)[1]]
    return [("end", spec.key, number, "failed", outcome.error), ("status", "failing", outcome.error)]


def _onward(graph: TaskGraph, route: Route, effects: Effects) -> list[Op]:
    ops = _made(graph, effects)
    gotos = [item for item in effects.nexts if item.goto]
    if effects.again is not None:
        ops.append(_with_data(route.enqueue(), effects.again))
    elif gotos:
        ops += _goto(graph, route, gotos)
    else:
        ops += route.done
    return ops + _also(graph, effects)


def _made(graph: TaskGraph, effects: Effects) -> list[Op]:
    ops: list[Op] = []
    for spawned in effects.spawned:
        ops.append(("task", spawned.task.name, spawned.record))
        for name in spawned.before:
            target = graph.routes[name]
            ops.append(("expect", name, 1, target.indegree, target.need))
    return ops


def _also(graph: TaskGraph, effects: Effects) -> list[Op]:
    nexts = (item for item in effects.nexts if not item.goto or effects.again is not None)
    return [_with_data(graph.routes[item.task].enqueue(), item.data) for item in nexts]


def _with_data(op: Op, data: Cell | None) -> Op:
    return op if data is None or data == NO_DATA else (*op[:2], data, *op[3:])


def _goto(graph: TaskGraph, route: Route, gotos: list[Next]) -> list[Op]:
    """Return the ops of other tasks instead of the successors.

    Going back up sends nothing onward: the way down will be walked again, and joins are told of the
    ways that will come twice, or not again. Going elsewhere skips what is cut off, up to the targets.
    A target that other branches still lead to is joined there, as if the way that was cut short had
    arrived; so is one below a join that others feed. A target in another branch runs for this one as
    well, and arrives in its place.
    """
    targets = frozenset(item.task for item in gotos)
    cut: list[str] = []
    partly: dict[str, int] = {}
    ops: list[Op] = []
    runs: list[Op] = []
    if all(graph.is_ancestor(target, route.name) for target in targets):
        ops += graph.walked_again(route, targets)
    else:
        cut, partly = graph.cut_off(route, targets, True)
        ops = [("skipped", target) for target in cut]
    for item in gotos:
        target = graph.routes[item.task]
        edges = graph.edges_from({route.name, *cut}, target)
        past = [] if edges else [gate for gate in partly if graph.is_ancestor(gate, target.name)]
        if target.waits and 0 < edges < target.indegree:
            runs.append(target.arrive(1))
            runs += [target.arrive(0)] * (edges - 1)
            continue
        if past:
            ops += _jump_past(graph, route, past, item)
            continue
        if not edges and target.name in graph.live and not graph.is_ancestor(target.name, route.name):
            ops += _arrive_for(graph, route, target, partly)
        runs.append(_with_data(target.enqueue(), item.data))
    return [*ops, *graph.missed(partly), *runs]


def _jump_past(graph: TaskGraph, route: Route, gates: list[str], item: Next) -> list[Op]:
    """Return the jumps past joins that other branches feed: the target must not run before them."""
    if item.data is not None:
        raise GraphError(
            f"next_task({item.task!r}, goto=True): other branches of {gates[0]!r} lead to {item.task!r} as "
            "well, so it takes no data.",
            hint="Put the value into the channel.",
            task=route.name,
        )
    joins = [graph.routes[gate] for gate in gates]
    return [("toward", join.name, item.task, join.indegree, join.need) for join in joins]


def _arrive_for(graph: TaskGraph, route: Route, target: Route, partly: dict[str, int]) -> list[Op]:
    """Return the arrivals that a target in another branch sends a second time, for this branch."""
    ops: list[Op] = []
    for name, sent in graph.sent_by(target.name).items():
        join = graph.routes[name]
        if not graph.is_ancestor(route.name, name):
            raise GraphError(
                f"{route.name!r} cannot go to {target.name!r}: that task is in another branch, before "
                f"the join {name!r}, which does not wait for {route.name!r}.",
                hint=f"Go to a task after {name!r}, or lead there in the graph: "
                f"{route.name} >> {target.name}.",
                task=route.name,
            )
        own = min(sent, partly.get(name, 0))
        if own:
            partly[name] -= own
        if sent > own:
            ops.append(("expect", name, sent - own, join.indegree, join.need))
    return ops
