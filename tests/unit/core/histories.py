"""Histories: random lists of legal transitions, and ways to compare the states that they lead to.

Legal is what the engine could commit: a claim that is held is ended, a base is one that was read.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import RESULT, Op
from graflow_ckpt.core.state import SessionState

TASKS = ["a", "b", "c", "d"]
NAMES = ["x", "y", "a" + RESULT]
CELLS = [b"\xc0", b"\x01", b"\x90"]
SIZES = {"a": (2, 0), "b": (3, -1), "c": (3, 2), "d": (1, 0)}  # of the gates: (size, need)

Record = tuple[float, list[Op]]


@st.composite
def histories(draw: st.DrawFn, most: int = 15) -> list[Record]:
    """Transitions that a new session takes one after the other."""
    state = SessionState("s", ("a",))
    records: list[Record] = [(0.0, [("reopen", 1, draw(st.none() | st.integers(1, 6)))])]
    apply(state, records[0][1], 0.0)
    now = 0.0
    for _ in range(draw(st.integers(0, most))):
        now += draw(st.sampled_from([0.0, 1.0, 5.0]))
        ops = draw(transitions(state, now))
        apply(state, ops, now)
        records.append((now, ops))
    return records


@st.composite
def transitions(draw: st.DrawFn, state: SessionState, now: float) -> list[Op]:
    """One transition that the state as it is takes."""
    kinds = ["enqueue", "enqueue", "arrive", "claim", "put", "append", "expect", "toward", "status", "other"]
    if state.claimed:
        kinds += ["end"] * 6 + ["release"]
    ops: list[Op] = []
    touched: set[int] = set()
    again = False
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)):
        held = [key for key in state.claimed if key not in touched and not again]
        if kind in ("end", "release"):
            if not held:
                continue
            key = draw(st.sampled_from(held))
            touched.add(key)
            ops.append(draw(_ends(key, state.claimed[key], now)) if kind == "end" else ("release", key, 1))
        elif kind == "other":
            op = draw(_others())
            again = again or op[0] in ("again", "clear")
            if not (again and touched):
                ops.append(op)
        else:
            ops.append(draw(_plain_op(kind, state)))
    if draw(st.booleans()):
        ops.append(("claim", draw(st.integers(0, 3))))
    return ops or [("claim", 1)]


def _ends(key: int, number: int, now: float) -> st.SearchStrategy[Op]:
    return st.one_of(
        st.tuples(st.sampled_from(CELLS)).map(lambda cell: ("end", key, number, "completed", *cell)),
        st.sampled_from(["passed", "skipped", "dropped"]).map(lambda how: ("end", key, number, how)),
        st.sampled_from(["failed", "lost"]).map(lambda how: ("end", key, number, how, "E: no")),
        st.sampled_from([0.0, now + 1, now + 7]).map(lambda due: ("end", key, number, "retry", due, "E: no")),
    )


def _others() -> st.SearchStrategy[Op]:
    return st.one_of(
        st.sampled_from(TASKS).map(lambda task: ("skipped", task)),
        st.sampled_from(TASKS).map(lambda task: ("again", task)),
        st.integers(1, 2).map(lambda count: ("absorb", "d", count)),
        st.just(("clear",)),
        st.just(("rng", b"\x07")),
        st.just(("task", "made", b"\x08")),
        st.tuples(st.integers(1, 3), st.none() | st.integers(1, 9)).map(lambda args: ("reopen", *args)),
    )


def _plain_op(kind: str, state: SessionState) -> st.SearchStrategy[Op]:
    task, cell = st.sampled_from(TASKS), st.sampled_from(CELLS)
    priority = st.sampled_from([0, 0, 5])
    match kind:
        case "enqueue":
            how = st.sampled_from(["direct", "direct", "pass", "skip"])
            return st.tuples(task, st.none() | cell, priority, how).map(
                lambda a: ("enqueue", a[0], a[1], a[2], 2, "default", a[3])
            )
        case "arrive":
            return st.tuples(task, st.integers(0, 1)).map(
                lambda a: ("arrive", a[0], a[1], *SIZES[a[0]], 0, 2, "default", "direct")
            )
        case "expect":
            return task.map(lambda name: ("expect", name, 1, *SIZES[name]))
        case "toward":
            return st.tuples(task, task).map(lambda a: ("toward", *a, *SIZES[a[0]]))
        case "claim":
            return st.integers(0, 3).map(lambda limit: ("claim", limit))
        case "status":
            return st.sampled_from(["closing", "failing", "cancelled"]).map(
                lambda status: ("status", status, "because")
            )
        case "append":
            return st.tuples(st.sampled_from(NAMES), cell).map(lambda a: ("append", *a))
        case _:
            return st.tuples(st.sampled_from(NAMES), cell, st.booleans()).map(
                lambda a: ("put", a[0], a[1], state.values.get(a[0], (b"", 0))[1] if a[2] else -1)
            )


# --- comparing -------------------------------------------------------------------------


def run(records: list[Record]) -> SessionState:
    """The state that a history leads to."""
    state = SessionState("s", ("a",))
    for now, ops in records:
        apply(state, ops, now)
    return state


def dump(state: SessionState) -> dict[str, Any]:
    """Every table and counter, as values that can be compared and that nothing changes any more."""
    tables = {name: getattr(state, name) for name in vars(state)}
    tables["gates"] = {name: gate.facts() for name, gate in state.gates.items()}
    tables["appended"] = {name: list(items) for name, items in state.appended.items()}
    tables["order"] = state.pending()
    tables["completions"] = list(state.completed)
    return {name: _copy(table) for name, table in tables.items()}


def _copy(table: Any) -> Any:
    if isinstance(table, dict):
        return dict(table)
    return list(table) if isinstance(table, list) else table


def kept(state: SessionState) -> dict[str, Any]:
    """What a checkpoint promises to keep: all but versions and the numbers that order the queue."""
    found = dump(state)
    for name in ("ready", "delayed", "next_order"):
        del found[name]
    found["values"] = {name: cell for name, (cell, _) in state.values.items()}
    found["passed"] = list(state.passed)
    found["delayed"] = sorted(state.delayed)
    return found
