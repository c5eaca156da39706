"""SessionState: the control facts and values of a session, and `apply`, which changes them.

Promise: `apply` is deterministic, does no I/O, and carries out all ops of a transition or, if
a claim is void or a base is stale, refuses before the first. It knows no graph, so that a
journal can be replayed although the program has changed.

    status    running -> completed | stopped (max_steps) | stalled
              running -> closing (terminate) -> completed     running -> failing -> failed
              any -> cancelled
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from graflow_ckpt.core.errors import Fenced, WriteConflict
from graflow_ckpt.core.facts import RESULT, Claim, Op, TaskSpec
from graflow_ckpt.core.gate import Gate
from graflow_ckpt.core.values import Cell, Live

NONE = b"\xc0"
"""The plain value None."""


class SessionState:
    """Tables and counters; the same as the Redis keys of a session."""

    def __init__(self, session: str, starts: Sequence[str] = (), max_steps: int | None = None) -> None:
        self.session = session
        self.starts = tuple(starts)
        self.max_steps = max_steps
        self.epoch = 0
        self.sequence = 0  # transitions applied
        self.status = "running"
        self.reason = ""
        self.steps = 0
        self.next_key = 1
        self.next_claim = 1
        self.next_order = 1
        self.specs: dict[int, TaskSpec] = {}
        self.ready: list[tuple[int, int, int]] = []  # (-priority, order, key)
        self.delayed: list[tuple[float, int]] = []  # (due, key)
        self.claimed: dict[int, int] = {}  # key -> number of the claim
        self.dead: dict[int, str] = {}  # key -> error; they run again on resume
        self.gates: dict[str, Gate] = {}
        self.completed: dict[str, int] = {}  # task -> step
        self.skipped: dict[str, int] = {}
        self.passed: dict[str, int] = {}  # groups that are through
        self.errors: dict[str, str] = {}  # task -> its last error
        self.counts: dict[str, int] = {}  # task -> how often it was enqueued
        self.values: dict[str, tuple[Cell, int]] = {}  # name -> cell and version
        self.appended: dict[str, list[Cell]] = {}  # name -> items after the value
        self.tasks: dict[str, Cell] = {}  # tasks made at run time
        self.rng: Cell | None = None

    @property
    def start_node(self) -> str:
        return self.starts[0] if self.starts else ""

    def pending(self) -> list[TaskSpec]:
        """What has still to run, in order: claimed by an attempt, ready, delayed, failed."""
        order = [*sorted(self.claimed, key=self.claimed.__getitem__)]
        order += [key for _, _, key in sorted(self.ready)]
        order += [key for _, key in sorted(self.delayed)]
        order += self.dead
        return [self.specs[key] for key in order]

    def gave_nothing(self, task: str) -> bool:
        """Whether it was skipped or has failed since it last completed; one that is retried has not."""
        if task in self.skipped:
            return True
        retried = (s.task_id == task and s.retry_count for s in list(self.specs.values()))
        return task in self.errors and not any(retried)

    def waiting_gates(self) -> dict[str, Gate]:
        """Joins that some have reached and that have not fired."""
        return {name: gate for name, gate in self.gates.items() if not gate.fired}


def apply(state: SessionState, ops: Sequence[Op], now: float) -> list[Claim]:
    """Carry out one transition; the claims that it hands out."""
    for op in ops:
        kind = op[0]
        if kind == "end" and state.claimed.get(op[1]) != op[2]:
            raise Fenced("The attempt is over; what it did is not committed.", session=state.session)
        if kind == "put" and op[3] >= 0:
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
            _ready(state, spec, key)
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


def _ready(state: SessionState, spec: TaskSpec, key: int) -> None:
    heappush(state.ready, (-spec.priority, state.next_order, key))
    state.next_order += 1


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
    _, task, data, priority, retries, queue, how = op
    cycle = state.counts.get(task, 0)
    if how == "direct":  # neither a branch not taken nor a group is a visit of a task
        state.counts[task] = cycle + 1
    key = state.next_key
    state.next_key = key + 1
    state.specs[key] = TaskSpec(task, data, "pending", priority, 0, retries, how, cycle, 0.0, queue, key)
    heappush(state.ready, (-priority, state.next_order, key))
    state.next_order += 1


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


def _skipped(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.skipped[op[1]] = state.steps


def _claim(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    if state.status == "running":
        if state.delayed:
            _promote(state, now)
        limit = op[1]
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
        _settle(state)


def _promote(state: SessionState, now: float) -> None:
    while state.delayed and state.delayed[0][0] <= now:
        key = heappop(state.delayed)[1]
        spec = state.specs[key] = state.specs[key]._replace(not_before=0.0)
        _ready(state, spec, key)


def _settle(state: SessionState) -> None:
    """Nothing runs: is this an end?"""
    if state.status == "closing":
        for key in [k for k in state.specs if k not in state.dead]:
            del state.specs[key]
        state.ready.clear()
        state.delayed.clear()
        state.gates.clear()
        state.status = "completed"
    elif state.status == "failing":
        state.status = "failed"
    elif state.status == "running":
        if state.max_steps is not None and state.steps >= state.max_steps and state.specs:
            state.status = "stopped"
            state.reason = f"max_steps={state.max_steps} reached"
        elif not state.specs:
            waiting = state.waiting_gates()
            state.status = "stalled" if waiting else "completed"
            state.reason = f"still waiting: {', '.join(sorted(waiting))}" if waiting else ""


def _status(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    if state.status in ("running", "closing") or op[1] == "cancelled":
        state.status, state.reason = op[1], op[2]


def _task(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.tasks[op[1]] = op[2]


def _rng(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    state.rng = op[1]


def _reopen(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """A new owner goes on: what had failed runs again, and a larger limit counts."""
    state.epoch, state.max_steps = op[1], op[2]
    if state.status == "closing" and state.specs:  # terminated: what ran beside it is not started again
        if not state.claimed:
            _settle(state)
        return
    if state.status != "completed" or state.ready or state.delayed:  # somebody has queued more since
        state.status, state.reason = "running", ""
    for key in state.dead:
        state.specs[key] = spec = state.specs[key]._replace(retry_count=0, not_before=0.0, crashes=0)
        _ready(state, spec, key)
    state.dead.clear()


def _release(state: SessionState, op: Op, now: float, claims: list[Claim]) -> None:
    """The claim of a dead owner is void; the spec comes before everything else of its priority."""
    key = op[1]
    del state.claimed[key]
    spec = state.specs[key] = state.specs[key]._replace(crashes=op[2])
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


_APPLY: dict[str, Callable[[SessionState, Op, float, list[Claim]], Any]] = {
    "end": _end,
    "put": _put,
    "append": _append,
    "enqueue": _enqueue,
    "arrive": _arrive,
    "expect": _expect,
    "skipped": _skipped,
    "claim": _claim,
    "status": _status,
    "task": _task,
    "rng": _rng,
    "reopen": _reopen,
    "release": _release,
    "again": _again,
    "absorb": _absorb,
    "clear": _clear,
}
