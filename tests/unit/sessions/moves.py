"""Moves: transitions that a session takes as it is, chosen by Hypothesis or by a seeded generator.

Legal is what engine, resume and sweeper could commit: a claim that the sender holds is ended, a claim that
somebody holds is given back, a base is one that was read. Names and bytes are such as break parsers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from graflow_ckpt.core.facts import JUMP, RESULT, Op
from graflow_ckpt.core.state import SessionState

T = TypeVar("T")

TASKS = ["a", "b", "c", "d|1,2", "über ☂"]
NAMES = ["x", "y", "größe", "a" + RESULT]
CELLS = [b"\xc0", b"\x01", b"\x90", b"\x1f\x1e\x00|,\xff\r\n", b"\x00"]
ERRORS = ["E: no", "E: 1\x1e2\x1f3|4 \x00 ü\n", ""]
KEPT = ["x", "a.__rounds__.1:x", "1:x3:a.b", "größe"]
WHERES = ['[{"name":"","next":1}]', '[{"name":"größe","next":12},{"name":"größe/b","next":2}]']
QUEUES = ["default", "default", "gpu", "q-3"]
PRIORITIES = [0, 0, 0, 5, -1, 32767, -32767]
HOWS = ["direct", "failed", "left"]
SIZES = {"a": (2, 0), "b": (3, -1), "c": (3, 2), "d|1,2": (1, 0), "über ☂": (4, 1)}
"""Of the gates: size and need."""

_PLAIN = ["enqueue"] * 4 + ["arrive"] * 3 + ["later", "put", "append", "expect", "claim", "status"]
_RARE = [
    "skipped", "again", "again", "absorb", "clear", "rng", "task", "reopen", "cap", "status", "answer",
    "toward", "toward", "toward", "toward",
]  # fmt: skip
_BACK = ["release", "doubt", "quarantine", "answer"]


class Chooser(Protocol):
    """Somebody who decides."""

    def one(self, options: Sequence[T]) -> T: ...


class Drawn:
    """Hypothesis decides."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def one(self, options: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(options))


class Seeded:
    """A seed decides: the same moves each time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


def transition(
    choose: Chooser, state: SessionState, mine: Sequence[int], now: float, *, outside: bool = False
) -> list[Op]:
    """What a sender may commit who holds the claims of the specs `mine`; somebody outside gives back any."""
    kinds = [*_PLAIN, "rare"] + ["end"] * (12 if mine else 0) + ["back"] * (2 if mine or outside else 0)
    kinds += ["round"] * (3 if mine else 0)
    free = set(state.claimed)
    ops: list[Op] = []
    if state.status not in ("running", "closing", "failing") and choose.one([True, True, False]):
        if state.status == "cancelled" and not free:  # for good, unless it is started elsewhere
            ops.append(("clear",))
        ops.append(_op(choose, "enqueue", state, now))
        paused = ("status", "running", choose.one(ERRORS))
        ops.append(paused if state.status == "paused" else _op(choose, "reopen", state, now))
    for _ in range(choose.one([1, 1, 2, 2, 3, 5])):
        kind = choose.one(kinds)
        kind = choose.one(_RARE) if kind == "rare" else kind
        if kind == "end":
            held = [key for key in mine if key in free]
            if held:
                key = choose.one(held)
                free.discard(key)
                ops.append(_end(choose, key, state.claimed[key], now))
        elif kind == "round":
            if held := [key for key in mine if key in free]:
                key = choose.one(held)
                free.discard(key)
                names = _some(choose, KEPT) if choose.one([True, False]) else []
                ops += [("round", key, state.claimed[key], choose.one(WHERES), *names)]
                ops += [("put", name, choose.one(CELLS), -1) for name in names]
        elif kind == "back":
            given = sorted(free) if outside else [key for key in mine if key in free]
            if given:
                key = choose.one(given)
                free.discard(key)
                ops.append(_back(choose, choose.one(_BACK), key))
        elif kind in ("again", "clear"):
            if len(free) == len(state.claimed):  # a claim that is dropped is not ended in the same breath
                free.clear()
                ops.append(("clear",) if kind == "clear" else ("again", *_some(choose, TASKS)))
        else:
            ops.append(_op(choose, kind, state, now))
    if any(op[0] in ("end", "round", *_BACK) for op in ops):
        ops = [op for op in ops if op[0] not in ("again", "clear")]
    if choose.one([True, True, False]):
        ops.append(("claim", choose.one([0, 1, 1, 2, 3])))
    return ops or [("claim", 1)]


def turn(choose: Chooser, state: SessionState, mine: Sequence[int]) -> list[Op]:
    """The everyday transition, or what is next to it: a body succeeded, the next spec is asked for."""
    key = choose.one(mine)
    ops: list[Op] = [("end", key, state.claimed[key], "completed", choose.one(CELLS))]
    if choose.one([True, True, False]):
        how = choose.one(["direct"] * 7 + ["pass"])
        data, priority = choose.one([None, *CELLS]), choose.one(PRIORITIES)
        ops.append(("enqueue", choose.one(TASKS), data, priority, 3, "default", how))
    ops.append(("claim", choose.one([1, 1, 1, 1, 1, 1, 2, 0])))
    return ops if choose.one([True] * 5 + [False]) else [*ops, ("rng", choose.one(CELLS))]


def in_one_queue(ops: Sequence[Op]) -> list[Op]:
    return [tuple("default" if field in QUEUES else field for field in op) for op in ops]


def _some(choose: Chooser, options: Sequence[str]) -> list[str]:
    first = choose.one(options)
    second = choose.one(options)
    return [first] if first == second else [first, second]


def _end(choose: Chooser, key: int, number: int, now: float) -> Op:
    hows = ["completed"] * 3 + ["retry", "failed", "lost", "passed", "skipped", "dropped"]
    how = choose.one(hows)
    if how == "completed":
        return ("end", key, number, how, choose.one(CELLS))
    if how == "retry":
        return ("end", key, number, how, choose.one([0.0, now + 0.25, now + 7]), choose.one(ERRORS))
    return ("end", key, number, how, *([choose.one(ERRORS)] if how in ("failed", "lost") else []))


def _back(choose: Chooser, kind: str, key: int) -> Op:
    if kind == "answer":
        return (kind, key, choose.one(HOWS))
    return (kind, key, choose.one(ERRORS) if kind == "quarantine" else choose.one([0, 1, 2]))


def _op(choose: Chooser, kind: str, state: SessionState, now: float) -> Op:
    one = choose.one
    task = one(TASKS)
    match kind:
        case "enqueue" | "later":
            how = one(["direct", "direct", "direct", "pass", "skip"])
            spec = (kind, task, one([None, None, *CELLS]), one(PRIORITIES), one([0, 2]), one(QUEUES), how)
            return spec if kind == "enqueue" else (*spec, one([now, now + 0.25, now + 1, now + 7]))
        case "arrive":
            how = one(["direct", "pass"])
            return (kind, task, one([0, 1, 1]), *SIZES[task], one([0, 5]), 2, one(QUEUES), how)
        case "expect":
            return (kind, task, one([1, 2]), *SIZES[task])
        case "toward":
            return (kind, task, one(TASKS[:2]), *SIZES[task])
        case "claim":
            return (kind, one([0, 1, 2, 3]))
        case "cap":
            return (kind, one([None, None, 1, 2, 4]))
        case "status":
            status = one(["closing", "failing", "cancelled", "paused", "running"])
            return (kind, status, one(ERRORS))
        case "put":
            name = one(NAMES)
            version = state.values[name][1] if name in state.values else one([-1, 1])
            base = one([-1, version])
            return (kind, name, one(CELLS), base)
        case "append":
            return (kind, one(NAMES), one(CELLS))
        case "skipped":
            return (kind, task)
        case "absorb":
            return (kind, task, one([1, 2]))
        case "rng":
            return (kind, one(CELLS))
        case "task":
            return (kind, task, one(CELLS))
        case "answer":
            return (kind, one([*state.dead, state.next_key]), one(HOWS))
        case "reopen":
            return (kind, one([1, 2, 3]), one([None, None, 1, 3, 9]))
        case _:
            return ("claim", 1)


# --- what happened ---------------------------------------------------------------------


def tags(before: dict[str, Any], ops: Sequence[Op], after: SessionState, claims: int) -> list[str]:
    """Names for what a transition did, so that it can be counted what was never done."""
    found = []
    for op in ops:
        kind = op[0]
        found.append(f"{kind} {op[3]}" if kind == "end" else f"status {op[1]}" if kind == "status" else kind)
    status = before["status"]
    if after.status != status:
        found.append(f"{status} -> {after.status}")
    if claims:
        found.append("handed out")
    asked = any(op[0] == "claim" and op[1] for op in ops)
    if asked and not claims and after.ready and after.status == "running":
        capped = after.cap is not None and len(after.claimed) >= after.cap
        found.append("held back by the cap" if capped else "held back by max_steps")
    if (
        len(before["delayed"])
        and after.status == "running"
        and ops[-1:] == [("claim", 1)]
        and not after.delayed
    ):
        found.append("promoted")
    hows = {
        spec.execution_strategy.split(JUMP)[0]
        for key, spec in after.specs.items()
        if key >= before["next_key"]
    }
    found += [f"how {how}" for how in hows]
    return found


EVERY = [
    "round", "end completed", "end retry", "end failed", "end lost", "end passed", "end skipped",
    "end dropped", "enqueue", "later", "arrive", "put", "append", "expect", "toward", "claim", "cap",
    "skipped", "again", "absorb", "clear", "rng", "task", "reopen", "release", "doubt", "quarantine",
    "answer", "status closing", "status failing", "status cancelled", "status paused", "status running",
    "running -> completed", "running -> stopped", "running -> stalled", "running -> closing",
    "running -> failing", "running -> paused", "running -> cancelled", "running -> failed",
    "closing -> completed", "failing -> failed", "paused -> running", "completed -> running",
    "stalled -> running", "stopped -> running", "failed -> running", "handed out",
    "held back by the cap", "held back by max_steps", "promoted", "how direct", "how pass", "how skip",
    "how jump", "how lost", "sent again", "too late", "Fenced", "WriteConflict",
    "another's claim given back", "another's claim ended", "of another history", "robbed", "reaped",
    "rewritten", "bundles",
]  # fmt: skip
"""What has to have happened in enough moves."""


_A: Op = ("enqueue", "a", None, 0, 2, "default", "direct")
_ONE: Op = ("claim", 1)


def _arrive(task: str, ok: int) -> Op:
    return ("arrive", task, ok, *SIZES[task], 0, 0, "default", "direct")


SCENES: list[list[list[Op]]] = [
    [[("absorb", "d|1,2", 1), _ONE]],
    [[_A, _A, _ONE], [("status", "closing", "enough")], [("reopen", 2, None), _ONE]],
    [[_ONE], [("reopen", 2, None)], [_ONE]],
    [[("put", "a" + RESULT, b"\x90", -1), ("append", "a" + RESULT, b"\x01")], [("again", "a")],
     [("append", "a" + RESULT, b"\x02")]],
    [[_A, _ONE], [("end", 1, 1, "retry", 0.0, "E: no")], [("again", "a")]],
    [[_A, _ONE], [("end", 1, 1, "retry", 0.0, "E: no"), _ONE], [("end", 1, 2, "dropped")]],
    [[_A, _ONE], [("end", 1, 1, "retry", 0.0, "E: no")], [("status", "closing", ""), _ONE]],
    [[_A, _ONE], [("end", 1, 1, "completed", b"\x01"), ("skipped", "a")], [_A, _ONE],
     [("end", 2, 2, "completed", b"\x01"), _ONE]],
    [[_A, _ONE], [("end", 1, 1, "retry", 0.0, "E: no"), _ONE], [("end", 1, 2, "failed", "E: no")],
     [("reopen", 2, None), _ONE]],
    [[_A, _ONE], [("end", 1, 1, "failed", "E: no")], [("again", "a")], [("reopen", 2, None), _ONE]],
    [[_A, _A, _ONE], [("end", 1, 1, "retry", 0.0, "E: no"), _ONE],
     [("end", 2, 2, "completed", b"\x01"), _ONE]],
    [[_arrive("b", 1), _arrive("c", 1), _arrive("a", 1), _ONE]],
    [[_arrive("c", 0), _arrive("c", 1)], [_arrive("c", 0), _ONE]],
    [[_arrive("c", 0), _arrive("c", 1), _arrive("c", 0), _ONE],
     [("end", 1, 1, "failed", "E: no"), ("status", "failing", "E: no"), ("claim", 0)],
     [("reopen", 2, None), _ONE]],
    [[_A, _ONE], [("answer", 1, "failed"), _ONE],
     [("end", 1, 2, "failed", "E: no"), ("status", "failing", "E: no"), ("claim", 0)],
     [("reopen", 2, None), _ONE]],
    [[_A, _ONE], [("end", 1, 1, "failed", "E: no"), ("status", "failing", "E: no"), ("claim", 0)],
     [("status", "closing", "late")]],
    [[_A, _A, ("reopen", 2, 1), _ONE], [("end", 1, 1, "completed", b"\x01"), _ONE],
     [("reopen", 2, None), _ONE]],
    [[_A, ("status", "cancelled", "no more")], [("reopen", 2, None), _ONE]],
    [[_ONE], [("status", "cancelled", "too late")]],
    [[_A, _ONE], [("round", 1, 1, WHERES[0], "x"), ("put", "x", b"\x01", -1)],
     [("end", 1, 1, "failed", "E: no")], [("again", "a")]],
]  # fmt: skip
"""What chance brings too seldom, from the start of a session on."""
