"""Repairs: the ops of resumes, takeovers and crashes. `apply.py` carries them out with the others."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import Any

from graflow_ckpt.core.facts import RESULT, Claim, Op
from graflow_ckpt.core.gate import Gate
from graflow_ckpt.core.state import SessionState

_REOPENED = {"lost": "again", "failed": "direct"}
"""What has failed without a body to run, and how it is scheduled when the session goes on."""


def _reopen(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """A new owner goes on: what had failed runs again, and a larger limit counts."""
    state.epoch, state.max_steps, state.gap = op[1], op[2], None
    if state.status == "closing" and state.specs:  # terminated: what ran beside it is not started again
        if not state.claimed:
            state.settle()
        return
    if state.status != "completed" or state.ready or state.delayed:  # somebody has queued more since
        state.status, state.reason = "running", ""
    for key in state.dead:
        spec = state.specs[key]
        how = _REOPENED.get(spec.execution_strategy, spec.execution_strategy)
        spec = spec._replace(retry_count=0, not_before=0.0, crashes=0, execution_strategy=how)
        state.specs[key] = spec
        state.make_ready(spec)
    state.dead.clear()


def _gap(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """From here on the journal lacks what was committed, until a checkpoint holds it."""
    state.gap = op[1], op[2]


def _release(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """The claim of a dead owner is void; the spec comes before everything else of its priority."""
    key = op[1]
    del state.claimed[key]
    spec = state.specs[key] = state.specs[key]._replace(crashes=op[2])
    heappush(state.ready, (-spec.priority, -state.next_order, key))
    state.next_order += 1


def _doubt(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """The same, and whoever claims it next goes by the task's `on_interrupted`."""
    state.specs[op[1]] = state.specs[op[1]]._replace(execution_strategy="doubt")
    _release(state, op, now, claims)


def _quarantine(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """It has taken its process down too often: kept aside, and the session pauses."""
    key, error = op[1], op[2]
    del state.claimed[key]
    task = state.specs[key].task_id
    state.errors[task] = state.dead[key] = error
    if state.status == "running":
        state.status, state.reason = "paused", error


def _answer(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """A spec that was in doubt, or set aside, is scheduled as `how`; one that is neither stays as it is."""
    key, how = op[1], op[2]
    if key not in state.claimed and key not in state.dead:
        return
    state.claimed.pop(key, None)
    state.dead.pop(key, None)
    spec = state.specs[key] = state.specs[key]._replace(execution_strategy=how)
    state.errors.pop(spec.task_id, None)
    heappush(state.ready, (-spec.priority, -state.next_order, key))
    state.next_order += 1


def _again(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Completed tasks are taken back, with what they wait for; the plan enqueues their heads."""
    gone = set(op[1:])
    for task in gone:
        state.completed.pop(task, None)
        state.passed.pop(task, None)
        state.skipped.pop(task, None)
        state.gates.pop(task, None)
        state.values.pop(task + RESULT, None)
        state.appended.pop(task + RESULT, None)
    for key in [k for k, spec in state.specs.items() if spec.task_id in gone]:
        del state.specs[key]
        state.dead.pop(key, None)
        state.claimed.pop(key, None)
    state.ready = [item for item in state.ready if item[2] in state.specs]
    state.delayed = [item for item in state.delayed if item[1] in state.specs]
    heapify(state.ready)
    heapify(state.delayed)


def _absorb(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """So many arrivals are still to come at a join that is done without them."""
    state.gates[op[1]] = Gate(op[2], 0, fired=True)


def _clear(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Nothing is scheduled any more; the caller starts elsewhere, also in a session that had ended."""
    state.status, state.reason = "running", ""
    for table in (state.specs, state.ready, state.delayed, state.claimed, state.dead, state.gates):
        table.clear()


REPAIRS: dict[str, Callable[[SessionState, Op, float, list[Claim]], Any]] = {
    "gap": _gap,
    "reopen": _reopen,
    "release": _release,
    "doubt": _doubt,
    "quarantine": _quarantine,
    "answer": _answer,
    "again": _again,
    "absorb": _absorb,
    "clear": _clear,
}
