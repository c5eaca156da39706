"""Specs that must not run: a task that came round too often, a group with too few successes."""

from __future__ import annotations

from graflow_ckpt.core.errors import GraflowError, GroupFailed, MaxCyclesExceeded
from graflow_ckpt.core.facts import Claim, Failed
from graflow_ckpt.core.graph import TaskGraph


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
