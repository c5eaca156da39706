"""apply: carries out one transition on a SessionState.

Promise: it is deterministic, does no I/O, and carries out all ops of a transition or, if a claim is
void or a base is stale, refuses before the first. It knows no graph, so that a journal can be
replayed although the program has changed. The ops of everyday are here, those of resumes and
repairs in repair.py. The Lua script of a Redis session does the same, op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from graflow_ckpt.core.errors import Fenced, WriteConflict
from graflow_ckpt.core.facts import RESULT, Claim, Op, TaskSpec
from graflow_ckpt.core.gate import Gate
from graflow_ckpt.core.repair import REPAIRS
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.values import Live


def apply(state: SessionState, ops: Sequence[Op], now: float) -> list[Claim]:
    """Carry out one transition; the claims that it hands out."""
    for op in ops:
        kind = op[0]
        if kind == "end" and state.claimed.get(op[1]) != op[2]:
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
    raise WriteConflict(
        f"{op[1]!r} was changed by another task while this one worked on it.",
        hint="Use channel.append() for lists that several tasks extend, or let one follow the other.",
        name=op[1],
    )


# --- the ops ---------------------------------------------------------------------------


def _end(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    key, how = op[1], op[3]
    del state.claimed[key]
    if how == "completed":
        spec = state.specs.pop(key)
        task = spec.task_id
        state.steps += 1
        if task in state.completed:
            del state.completed[task]  # the order is that of the last completion
        state.completed[task] = state.steps
        state.values[task + RESULT] = (op[4], state.sequence)
        state.appended.pop(task + RESULT, None)  # somebody may have taken a result for a list
        if state.errors or state.skipped:
            state.errors.pop(task, None)
            state.skipped.pop(task, None)
    elif how == "retry":
        later = op[4] > now  # not_before is set exactly while a spec is delayed
        old = state.specs[key]
        spec = old._replace(retry_count=old.retry_count + 1, not_before=op[4] if later else 0.0)
        state.specs[key] = spec
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
        task = state.specs.pop(key).task_id
        if how == "lost":
            state.errors[task] = op[4]
            state.passed.pop(task, None)
        elif how == "skipped":
            state.skipped[task] = state.steps
        elif how == "passed":
            state.passed[task] = state.steps


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
    state.specs[key] = TaskSpec(task, data, "pending", priority, 0, retries, how, cycle, due, queue, key)
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
    gate = state.gates.get(task)
    if gate is None:
        gate = state.gates[task] = Gate(size, need)
    gate.size += more


def _toward(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    _, task, target, size, need = op
    gate = state.gates.get(task)
    if gate is None:
        gate = state.gates[task] = Gate(size, need)
    gate.jump(target)


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
            claims.append(Claim(spec, number))
            limit -= 1
    if not state.claimed:
        state.settle()


def _status(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    if op[1] == "running":  # again after a pause, or all of it has been written
        changes = state.status in ("paused", "init")
    elif op[1] == "paused":
        changes = state.status == "running"
    else:
        changes = state.status in ("running", "closing", "paused") or op[1] == "cancelled"
    if changes:
        state.status, state.reason = op[1], op[2]


def _cap(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.cap = op[1]


def _task(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.tasks[op[1]] = op[2]


def _rng(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.rng = op[1]


_APPLY: dict[str, Callable[[SessionState, Op, float, list[Claim]], Any]] = {
    "end": _end,
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
    **REPAIRS,
}
