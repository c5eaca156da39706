"""decide: what follows from an outcome. It knows the graph and never the state.

done       put what was changed, end the spec, tell the successors
again      next_iteration: the same task once more, nobody is told
goto       other tasks instead of the successors; what is cut off is skipped
failed     a retry while there are retries; else as the session's on_failure has it
cancelled  nothing of the body is committed
"""

from __future__ import annotations

from typing import assert_never

from graflow_ckpt.core.facts import NO_DATA, Cancelled, Claim, Done, Effects, Failed, Next, Op, Outcome
from graflow_ckpt.core.graph import Route, TaskGraph
from graflow_ckpt.core.task import OnInterrupted
from graflow_ckpt.core.values import Cell

_NOWHERE: frozenset[str] = frozenset()


def decide(graph: TaskGraph, claim: Claim, outcome: Outcome, on_failure: str) -> list[Op]:
    """The ops of one transition."""
    spec, number = claim
    route = graph.routes[spec.task_id]
    if isinstance(outcome, Done):
        effects = outcome.effects
        ops = [*effects.ops, ("end", spec.key, number, "completed", outcome.result)]
        ops += _onward(graph, route, effects)
        if effects.terminate is not None:
            ops.append(("status", "closing", effects.terminate))
        return ops
    if isinstance(outcome, Cancelled):
        return [("end", spec.key, number, "dropped"), ("status", "cancelled", outcome.reason)]
    return _failed(graph, route, claim, outcome, on_failure)


def pass_on(graph: TaskGraph, claim: Claim) -> list[Op]:
    """A spec without a body to run: a group that is through, or a task that is not taken."""
    spec, number = claim
    route = graph.routes[spec.task_id]
    if spec.execution_strategy == "skip":
        return [("end", spec.key, number, "skipped"), *graph.not_taken(route, _NOWHERE, True)[1]]
    return [("end", spec.key, number, "passed"), *route.done]


def in_doubt(graph: TaskGraph, claim: Claim, choice: OnInterrupted) -> list[Op]:
    """A spec whose worker died while it ran, by what was chosen for that."""
    spec, number = claim
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
    """A spec that was in doubt, and is to count as failed; when the session goes on, it runs."""
    why = f"WorkerDied: {claim.spec.task_id} was running when its worker died"
    return [("end", claim.spec.key, claim.number, "failed", why), ("status", "failing", why)]


def _failed(graph: TaskGraph, route: Route, claim: Claim, outcome: Failed, on_failure: str) -> list[Op]:
    spec, number = claim
    if outcome.retry and spec.retry_count < spec.max_retries:
        return [("end", spec.key, number, "retry", outcome.due, outcome.error)]
    if route.lenient or on_failure == "continue":
        end = ("end", spec.key, number, "lost", outcome.error)
        return [end, *graph.not_taken(route, _NOWHERE, False)[1]]
    return [("end", spec.key, number, "failed", outcome.error), ("status", "failing", outcome.error)]


def _onward(graph: TaskGraph, route: Route, effects: Effects) -> list[Op]:
    ops: list[Op] = []
    for spawned in effects.spawned:
        ops.append(("task", spawned.task.name, spawned.record))
        for name in spawned.before:
            target = graph.routes[name]
            ops.append(("expect", name, 1, target.indegree, target.need))
    gotos = [item for item in effects.nexts if item.goto]
    if effects.again is not None:
        ops.append(_with_data(route.enqueue(), effects.again))
    elif gotos:
        ops += _goto(graph, route, gotos)
    else:
        ops += route.done
    for item in effects.nexts:
        if not item.goto or effects.again is not None:
            ops.append(_with_data(graph.routes[item.task].enqueue(), item.data))
    return ops


def _with_data(op: Op, data: Cell | None) -> Op:
    return op if data is None or data == NO_DATA else (*op[:2], data, *op[3:])


def _goto(graph: TaskGraph, route: Route, gotos: list[Next]) -> list[Op]:
    """Other tasks instead of the successors.

    Going back up sends nothing onward: the way down will be walked again, and joins beside it are
    told to expect that. Going elsewhere skips what is cut off, up to the targets. A target that
    other branches still lead to is joined there, as if the way that was cut short had arrived.
    """
    targets = frozenset(item.task for item in gotos)
    cut: set[str] = set()
    ops: list[Op] = []
    if all(graph.is_ancestor(target, route.name) for target in targets):
        for above in sorted(targets):
            ops += graph.walked_again(route, above)
    else:
        cut, ops = graph.not_taken(route, targets, True)
    for item in gotos:
        target = graph.routes[item.task]
        edges = sum(1 for pred in target.preds if pred == route.name or pred in cut)
        if target.waits and 0 < edges < target.indegree:
            ops.append(target.arrive(1))
            ops += [target.arrive(0)] * (edges - 1)
        else:
            ops.append(_with_data(target.enqueue(), item.data))
    return ops
