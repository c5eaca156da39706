"""apply: carries out one transition on a SessionState.

Promise: it is deterministic, does no I/O, and carries out all ops of a transition or, if a claim is
void or a base is stale, refuses before the first. It knows no graph, so that a journal can be
replayed although the program has changed. The Lua script of a Redis session does the same, op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from graflow_ckpt.core.errors import Fenced, WriteConflict
from graflow_ckpt.core.facts import RESULT, Claim, Live, Op, TaskSpec, new
from graflow_ckpt.core.state import Gate, SessionState

_OF_A_CLAIM = ("end", "round")


def apply(state: SessionState, ops: Sequence[Op], now: float) -> list[Claim]:
    """Carry out one transition; return the claims that it makes."""
    for op in ops:
        kind = op[0]
        if kind in _OF_A_CLAIM and state.claimed.get(op[1]) != op[2]:
            raise Fenced("The attempt is over; what it did is not committed.", session=state.session)
        if kind == "put" and op[3] != -1:
            _check_base(state, op)
    state.sequence += 1
    claims: list[Claim] = []
    for op in ops:
        _APPLY[op[0]](state, op, now, claims)
    return claims


def _check_base(state: SessionState, op: Op) -> None:
    current = state.values.get(op[1])
    if current is None or current[1] == op[3]:
        return
    cell, new = current[0], op[2]
    if isinstance(cell, Live) and isinstance(new, Live) and cell.value is new.value:
        return  # siblings that share one live object see each other's changes: none is lost
    raise changed_meanwhile(op[1])


def changed_meanwhile(name: str) -> WriteConflict:
    """Return what to raise for a write of a value that another task has committed since it was read."""
    return WriteConflict(
        f"{name!r} was changed by another task while this one worked on it.",
        hint="Use channel.append() for lists that several tasks extend, or let one follow the other.",
        name=name,
    )


# --- the ops ---------------------------------------------------------------------------


def _end(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    key, how = op[1], op[3]
    del state.claimed[key]
    if how == "completed":
        spec = state.specs.pop(key)
        if spec.retry_count:
            state.not_retried(spec)
        if state.rounds:
            state.end_rounds(key)
        task = spec.task_id
        state.steps += 1
        if task in state.completed:
            del state.completed[task]  # the order is that of the last completion
        state.completed[task] = state.steps
        result = task + RESULT
        state.values[result] = (op[4], state.sequence)
        if state.appended:
            state.appended.pop(result, None)  # a task may have appended to a result
        if state.errors or state.skipped:
            state.errors.pop(task, None)
            state.skipped.pop(task, None)
    elif how == "retry":
        later = op[4] > now  # not_before is set exactly while a spec is delayed
        old = state.specs[key]
        spec = old._replace(retry_count=old.retry_count + 1, not_before=op[4] if later else 0.0)
        state.keep(spec)
        state.errors[spec.task_id] = op[5]
        if later:
            heappush(state.delayed, (op[4], key))
        else:
            state.make_ready(spec)
    elif how == "failed":
        task = state.specs[key].task_id
        state.errors[task] = state.dead[key] = op[4]
        state.passed.pop(task, None)
    else:
        task = state.remove(key).task_id
        if how == "lost":
            state.errors[task] = op[4]
            state.passed.pop(task, None)
        elif how == "skipped":
            state.skipped[task] = state.steps
        elif how == "passed":
            state.passed[task] = state.steps
            state.skipped.pop(task, None)


def _round(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Note where the loops of a body are. It has come further, so what has failed before does not count."""
    key = op[1]
    known = state.rounds[key][1] if key in state.rounds else ()
    state.rounds[key] = op[3], (*known, *(name for name in op[4:] if name not in known))
    spec = state.specs[key]
    if spec.retry_count:
        state.not_retried(spec)
        state.errors.pop(spec.task_id, None)
    if spec.retry_count or spec.crashes:
        state.specs[key] = spec._replace(retry_count=0, crashes=0)


def _put(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.values[op[1]] = (op[2], state.sequence)
    if state.appended:
        state.appended.pop(op[1], None)


def _append(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    name = op[1]
    cell = state.values[name][0] if name in state.values else b"\x90"  # the plain empty list
    state.values[name] = (cell, state.sequence)
    state.appended.setdefault(name, []).append(op[2])


def _enqueue(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    heappush(state.ready, (-op[3], state.next_order, _new_spec(state, op, 0.0)))
    state.next_order += 1


def _later(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    heappush(state.delayed, (op[7], _new_spec(state, op, op[7])))


def _new_spec(state: SessionState, op: Op, due: float) -> int:
    task, data, priority, retries, queue, how = op[1:7]
    cycle = state.counts.get(task, 0)
    if how == "direct":  # neither a branch not taken nor a group is a visit of a task
        state.counts[task] = cycle + 1
    key = state.next_key
    state.next_key = key + 1
    spec = (task, data, "pending", priority, 0, retries, how, cycle, due, queue, key, 0)
    state.specs[key] = new(TaskSpec, spec)
    return key


def _arrive(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    _, task, ok, size, need, priority, retries, queue, how = op
    gate = state.gates.get(task)
    if gate is None:
        gate = state.gates[task] = Gate(size, need)
    gate.arrived += 1
    gate.ok += ok
    need, full = gate.need, gate.arrived >= gate.size  # less is needed where some arrived before
    if not gate.fired and (full or 0 < need <= gate.ok):
        gate.fired = True
        if gate.toward and gate.ok < max(1, need):
            how = "jump" + gate.toward
        else:
            how = "skip" if need == 0 and not gate.ok else "lost" if gate.ok < need else how
        _enqueue(state, ("enqueue", task, None, priority, retries, queue, how), now, claims)
    if full:
        del state.gates[task]


def _expect(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    _, task, more, size, need = op
    state.gates.setdefault(task, Gate(size, need)).size += more


def _toward(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    _, task, target, size, need = op
    state.gates.setdefault(task, Gate(size, need)).jump(target)


def _skipped(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.skipped[op[1]] = state.steps


def _claim(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    if state.status == "running":
        if state.delayed:
            state.promote(now)
        limit = op[1] if state.cap is None else min(op[1], state.cap - len(state.claimed))
        left = limit if state.max_steps is None else state.max_steps - state.steps - len(state.claimed)
        ready = state.ready
        while ready and limit > 0:
            key = ready[0][2]
            spec = state.specs[key]
            if spec.execution_strategy == "direct":  # only a body is a step
                if left <= 0:
                    break
                left -= 1
            heappop(ready)
            number = state.next_claim
            state.next_claim = number + 1
            state.claimed[key] = number
            rounds = state.rounds[key][0] if state.rounds and key in state.rounds else ""
            claims.append(new(Claim, (spec, number, rounds)))
            limit -= 1
    if not state.claimed:
        state.settle()


def _status(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    if op[1] == "running":  # again after a pause, or all of it has been written
        changes = state.status in ("paused", "init")
    elif op[1] == "paused":
        changes = state.status == "running"
    else:
        changes = state.status in ("running", "closing", "paused")
        changes = changes or (op[1] == "cancelled" and state.status != "completed")
    if changes:
        state.status, state.reason = op[1], op[2]


def _cap(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.cap = op[1]


def _task(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.tasks[op[1]] = op[2]


def _rng(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.rng = op[1]


# --- resumes, takeovers and crashes -----------------------------------------------------


_REOPENED = {"lost": "again", "failed": "direct"}
"""What has failed without a body to run, and how it is scheduled when the session goes on."""


def _reopen(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Continue under a new owner: what had failed runs again, and a larger limit counts."""
    if state.status == "cancelled":  # for good, also where the cancel was quicker than its caller
        return
    state.epoch, state.max_steps, state.gap = op[1], op[2], None
    if state.status == "closing" and state.specs:  # terminated: what ran beside it is not started again
        if not state.claimed:
            state.settle()
        return
    if state.status != "completed" or state.ready or state.delayed:  # more was queued since
        state.status, state.reason = "running", ""
    for key in state.dead:
        spec = state.specs[key]
        state.not_retried(spec)
        how = _REOPENED.get(spec.execution_strategy, spec.execution_strategy)
        spec = spec._replace(retry_count=0, not_before=0.0, crashes=0, execution_strategy=how)
        state.specs[key] = spec
        state.make_ready(spec)
    state.dead.clear()


def _gap(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Note that the journal lacks what is committed from here on, until a checkpoint holds it."""
    state.gap = op[1], op[2]


def _release(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Void the claim of a dead owner; the spec comes before all others of its priority."""
    key = op[1]
    del state.claimed[key]
    spec = state.specs[key] = state.specs[key]._replace(crashes=op[2])
    heappush(state.ready, (-spec.priority, -state.next_order, key))
    state.next_order += 1


def _doubt(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Release a claim; the worker that claims it next goes by the task's `on_interrupted`."""
    state.specs[op[1]] = state.specs[op[1]]._replace(execution_strategy="doubt")
    _release(state, op, now, claims)


def _quarantine(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Set a spec aside that has taken its process down too often, and pause the session."""
    key, error = op[1], op[2]
    del state.claimed[key]
    task = state.specs[key].task_id
    state.errors[task] = state.dead[key] = error
    if state.status == "running":
        state.status, state.reason = "paused", error


def _answer(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Schedule as `how` a spec that was in doubt, or set aside; one that is neither stays as it is."""
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
    """Undo completed tasks, with what they wait for; the plan enqueues their heads."""
    gone = set(op[1:])
    for task in gone:
        state.completed.pop(task, None)
        state.passed.pop(task, None)
        state.skipped.pop(task, None)
        state.gates.pop(task, None)
        state.values.pop(task + RESULT, None)
        state.appended.pop(task + RESULT, None)
    for key in [k for k, spec in state.specs.items() if spec.task_id in gone]:
        state.remove(key)
        state.dead.pop(key, None)
        state.claimed.pop(key, None)
    state.ready = [item for item in state.ready if item[2] in state.specs]
    state.delayed = [item for item in state.delayed if item[1] in state.specs]
    heapify(state.ready)
    heapify(state.delayed)


def _absorb(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Expect so many more arrivals at a join that is done without them."""
    state.gates[op[1]] = Gate(op[2], 0, fired=True)


def _clear(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """Clear all that is scheduled; the caller starts elsewhere, also in a session that had ended."""
    state.status, state.reason = "running", ""
    for key in [*state.rounds]:
        state.end_rounds(key)
    for table in (state.specs, state.ready, state.delayed, state.claimed, state.dead, state.gates):
        table.clear()
    state.retried.clear()


_APPLY: dict[str, Callable[[SessionState, Op, float, list[Claim]], Any]] = {
    "end": _end,
    "round": _round,
    "put": _put,
    "append": _append,
    "enqueue": _enqueue,
    "later": _later,
    "arrive": _arrive,
    "expect": _expect,
    "toward": _toward,
    "skipped": _skipped,
    "claim": _claim,
    "status": _status,
    "task": _task,
    "rng": _rng,
    "cap": _cap,
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
