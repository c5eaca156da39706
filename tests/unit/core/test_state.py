"""The state: what each op does, and what holds after any legal history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import Fenced, WriteConflict
from graflow_ckpt.core.facts import RESULT, Claim, Live, Op, TaskSpec
from graflow_ckpt.core.state import SessionState
from tests.unit.core.histories import CELLS, Record, dump, histories, run


def enqueue(task: str = "a", priority: int = 0, how: str = "direct", retries: int = 0) -> Op:
    return ("enqueue", task, None, priority, retries, "default", how)


def arrive(task: str, ok: int, size: int, need: int) -> Op:
    return ("arrive", task, ok, size, need, 0, 0, "default", "direct")


CLAIM: Op = ("claim", 1)


def end(key: int, number: int, how: str = "completed", *more: Any) -> Op:
    """The end of a claim; numbers of claims and keys of specs begin at 1."""
    given = {"completed": (b"\xc0",), "failed": ("E: no",), "lost": ("E: no",), "retry": (0.0, "E: no")}
    return ("end", key, number, how, *(more or given.get(how, ())))


def put(name: str, value: Any, base: int = -1) -> Op:
    return ("put", name, value, base)


Moves = Sequence[Op | list[Op]]


def walked(moves: Moves, max_steps: int | None = None) -> tuple[SessionState, list[Claim]]:
    """After each of these transitions (an op alone is one; "at" moves the clock), with the last claims."""
    state, now, claims = SessionState("s", ("a",), max_steps), 0.0, list[Claim]()
    for move in moves:
        ops = move if isinstance(move, list) else [move]
        if ops[0][0] == "at":
            now = ops[0][1]
        elif ops[0][0] == "is":
            state.status = ops[0][1]
        else:
            claims = apply(state, ops, now)
    return state, claims


def shown(state: SessionState, claims: list[Claim]) -> dict[str, Any]:
    return {
        **vars(state),
        "claims": [one.spec.task_id for one in claims],
        "retries": [(one.spec.retry_count, one.spec.not_before, one.spec.crashes) for one in claims],
        "pending": [spec.task_id for spec in state.pending()],
        "strategies": [spec.execution_strategy for spec in state.pending()],
        "due": {key: spec.not_before for key, spec in state.specs.items()},
        "order": list(state.completed),
        "cells": {name: cell for name, (cell, _) in state.values.items()},
        "gates": {name: gate.facts() for name, gate in state.gates.items()},
        "waiting": state.waiting_gates(),
    }


# --- any history -----------------------------------------------------------------------


def check_invariants(state: SessionState) -> None:
    ready = [key for _, _, key in state.ready]
    delayed = [key for _, key in state.delayed]
    everywhere = [*ready, *delayed, *state.claimed, *state.dead]
    assert sorted(everywhere) == sorted(state.specs)  # each in exactly one
    assert all(key == spec.key < state.next_key for key, spec in state.specs.items())
    assert all(number < state.next_claim for number in state.claimed.values())
    assert len(set(state.claimed.values())) == len(state.claimed)
    assert {key for key, spec in state.specs.items() if spec.not_before} == set(delayed)
    retried = {(s.task_id, s.key) for s in state.specs.values() if s.retry_count}
    assert {(task, key) for task, keys in state.retried.items() for key in keys} == retried
    assert all(state.retried.values())
    assert all(gate.arrived < gate.size for gate in state.gates.values())
    assert all(version <= state.sequence for _, version in state.values.values())
    assert set(state.appended) <= set(state.values)
    assert all(state.appended.values())
    assert list(state.completed.values()) == sorted(set(state.completed.values()))
    assert [spec.key for spec in state.pending()][: len(state.claimed)] == sorted(
        state.claimed, key=state.claimed.__getitem__
    )


@given(histories())
def test_every_spec_is_in_exactly_one_place_after_any_history(history: list[Record]) -> None:
    state = SessionState("s", ("a",))
    for now, ops in history:
        before = state.sequence

        claims = apply(state, ops, now)

        check_invariants(state)
        assert state.sequence == before + 1
        assert all(state.claimed.get(c.spec.key, c.number) == c.number for c in claims)


@given(histories())
def test_a_history_leads_to_one_state(history: list[Record]) -> None:
    assert dump(run(history)) == dump(run(history))


@given(histories(), st.integers(0, 10), st.booleans(), st.data())
def test_a_refused_transition_changes_nothing(
    history: list[Record], at: int, stale: bool, data: st.DataObject
) -> None:
    state = run(history)
    ops: list[Op] = [enqueue(), ("append", "x", b"\x01"), arrive("b", 1, 3, -1), ("claim", 2)]
    if stale and state.values:
        name = data.draw(st.sampled_from(sorted(state.values)))
        bad: Op = ("put", name, b"\x05", state.values[name][1] + 1)
        expected: type[Exception] = WriteConflict
    else:
        bad = ("end", data.draw(st.integers(0, 5)), state.next_claim, "completed", b"\xc0")
        expected = Fenced
    before = dump(state)

    with pytest.raises(expected):
        apply(state, [*ops[:at], bad, *ops[at:]], 0.0)

    assert dump(state) == before


@given(histories(), st.sampled_from(CELLS))
def test_a_claim_ends_once(history: list[Record], cell: bytes) -> None:
    state = run([*history, (0.0, [("clear",), ("reopen", 1, None), enqueue(), ("claim", 1)])])
    found = [(key, number) for key, number in state.claimed.items()]
    for key, number in found:
        apply(state, [("end", key, number, "completed", cell)], 0.0)

        with pytest.raises(Fenced):
            apply(state, [("end", key, number, "completed", cell)], 0.0)


# --- one op after the other ---------------------------------------------------------------

JOINS = arrive("d", 1, 2, 0)
TWO, THREE = [enqueue("a"), enqueue("b")], [enqueue("a"), enqueue("b"), enqueue("c")]

ENDS: dict[str, tuple[Moves, dict[str, Any]]] = {
    # claims and ends
    "claims go by priority and then by age": (
        [enqueue("a"), enqueue("b", 5), enqueue("c"), enqueue("d", 5), ("claim", 4)],
        {"claims": ["b", "d", "a", "c"], "pending": ["b", "d", "a", "c"]},
    ),
    "a completed task is a step with a result": (
        [enqueue(), CLAIM, end(1, 1, "completed", b"\x05")],
        {"steps": 1, "completed": {"a": 1}, "specs": {}, "cells": {"a" + RESULT: b"\x05"}},
    ),
    "completed tasks stand in order of their last completion": (
        [enqueue("a"), enqueue("b"), enqueue("a"), CLAIM, end(1, 1), CLAIM, end(2, 2), CLAIM, end(3, 3)],
        {"order": ["b", "a"]},
    ),
    "a retry notes its error": (
        [enqueue(), ("skipped", "a"), CLAIM, end(1, 1, "retry")],
        {"errors": {"a": "E: no"}, "delayed": [], "due": {1: 0.0}},
    ),
    "a completion takes back that the task failed or was skipped": (
        [enqueue(), ("skipped", "a"), CLAIM, end(1, 1, "retry"), CLAIM, end(1, 2)],
        {"errors": {}, "skipped": {}},
    ),
    "a failed task is kept aside and is not completed": (
        [enqueue(), CLAIM, [end(1, 1, "failed"), ("status", "failing", "E: no"), CLAIM]],
        {
            "status": "failed", "completed": {}, "steps": 0, "dead": {1: "E: no"}, "errors": {"a": "E: no"},
            "pending": ["a"],
        },
    ),
    "a retry waits until it is due": (
        [enqueue(), CLAIM, end(1, 1, "retry", 10.0, "E: no"), ("at", 9.0), CLAIM],
        {"claims": [], "due": {1: 10.0}},
    ),
    "a retry is claimed again when it is due": (
        [enqueue(), CLAIM, end(1, 1, "retry", 10.0, "E: no"), ("at", 10.0), CLAIM],
        {"claims": ["a"], "retries": [(1, 0.0, 0)], "claimed": {1: 2}},
    ),
    "a retry that is due at once is ready and not delayed": (
        [enqueue(), ("at", 5.0), CLAIM, end(1, 1, "retry", 4.0, "E: no")],
        {"delayed": [], "due": {1: 0.0}},
    ),
    **{
        f"the end {how} is no step": (
            [enqueue(), CLAIM, end(1, 1, how)],
            {
                "steps": 0, "completed": {}, "specs": {}, "errors": {"a": "E: no"} if how == "lost" else {},
                "skipped": {"a": 0} if how == "skipped" else {},
                "passed": {"a": 0} if how == "passed" else {},
            },
        )
        for how in ("lost", "skipped", "passed", "dropped")
    },
    "a claim goes to the higher priority": (
        [enqueue("a"), enqueue("b"), enqueue("c", priority=9), ("claim", 2)],
        {"claims": ["c", "a"]},
    ),
    "a released claim is the next one of its priority": (
        [enqueue("a"), enqueue("b"), enqueue("c", priority=9), ("claim", 2), ("release", 1, 1), CLAIM],
        {"claims": ["a"], "retries": [(0, 0.0, 1)]},
    ),
    # values
    "a blind put wins whatever was there": (
        [put("x", b"\x01"), put("x", b"\x02")],
        {"values": {"x": (b"\x02", 2)}},
    ),
    "a put of what was not there is taken if it is not there": (
        [put("x", b"\x01"), put("y", b"\x03", 0)],
        {"cells": {"x": b"\x01", "y": b"\x03"}},
    ),
    "appends never conflict": (
        [("append", "x", b"\x01"), ("append", "x", b"\x02")],
        {"values": {"x": (b"\x90", 2)}, "appended": {"x": [b"\x01", b"\x02"]}},
    ),
    "a put takes the place of what was appended": (
        [[("append", "x", b"\x01"), ("append", "y", b"\x02")], put("x", b"\x05", 1)],
        {"cells": {"x": b"\x05", "y": b"\x90"}, "appended": {"y": [b"\x02"]}},
    ),
    "a result takes the place of what was appended under its name": (
        [enqueue(), ("append", "a" + RESULT, b"\x01"), CLAIM, end(1, 1, "completed", b"\x05")],
        {"cells": {"a" + RESULT: b"\x05"}, "appended": {}},
    ),
    # gates
    "a join of two waits for the second": ([JOINS], {"specs": {}}),
    "a join of two is enqueued once": ([JOINS] * 2, {"pending": ["d"], "gates": {}}),
    "a join that nobody took is skipped": ([arrive("d", 0, 2, 0)] * 2, {"strategies": ["skip"]}),
    "best effort goes on whatever came of its members": (
        [arrive("g", 0, 2, -1)] * 2,
        {"strategies": ["direct"]},
    ),
    "at least fires early": (
        [arrive("g", 1, 3, 2)] * 2,
        {"pending": ["g"], "gates": {"g": [3, 2, 2, 2, 1]}, "waiting": {}},
    ),
    "at least absorbs the late ones": ([arrive("g", 1, 3, 2)] * 3, {"pending": ["g"], "gates": {}}),
    "at least with too few is lost": (
        [arrive("g", 1, 2, 2), arrive("g", 0, 2, 2)],
        {"strategies": ["lost"]},
    ),
    "a gate that expects more is larger": (
        [("expect", "d", 1, 2, 0), JOINS, ("expect", "d", 1, 2, 0)],
        {"gates": {"d": [4, 0, 1, 1, 0]}},
    ),
    "a gate that expects more waits for more": (
        [("expect", "d", 1, 2, 0), JOINS, ("expect", "d", 1, 2, 0), [JOINS] * 3],
        {"pending": ["d"]},
    ),
    "a gate with absorbed arrivals waits for the last one": (
        [("absorb", "d", 2), JOINS],
        {"gates": {"d": [2, 0, 1, 1, 1]}},
    ),
    "absorbed arrivals enqueue nothing": (
        [("absorb", "d", 2), JOINS, JOINS],
        {"specs": {}, "gates": {}},
    ),
    # status
    "a session with nothing left is completed": (
        [enqueue(), CLAIM, [end(1, 1), CLAIM]],
        {"status": "completed", "reason": ""},
    ),
    "a session that waits for what will not come is stalled by name": (
        [JOINS, CLAIM],
        {"status": "stalled", "reason": "still waiting: d"},
    ),
    "a session with a delayed task goes on": (
        [enqueue(), CLAIM, [end(1, 1, "retry", 10.0, "E: no"), CLAIM]],
        {"status": "running"},
    ),
    "terminate drops what has not started": (
        [*TWO, JOINS, CLAIM, [end(1, 1), ("status", "closing", "enough"), CLAIM]],
        {"status": "completed", "reason": "enough", "specs": {}, "ready": [], "gates": {}},
    ),
    "a closing session waits for what runs": (
        [*TWO, ("claim", 2), [end(1, 1), ("status", "closing", ""), CLAIM]],
        {"status": "closing"},
    ),
    "a closing session ends with what ran": (
        [*TWO, ("claim", 2), [end(1, 1), ("status", "closing", ""), CLAIM], [end(2, 2), CLAIM]],
        {"status": "completed", "steps": 2},
    ),
    **{
        f"{second} after {first} is {last}": (
            [enqueue(), ("status", first, "1"), ("status", second, "2")],
            {"status": last},
        )
        for first, second, last in (  # a bad end is not covered up
            ("failing", "closing", "failing"),
            ("closing", "failing", "failing"),
            ("failing", "cancelled", "cancelled"),
            ("cancelled", "failing", "cancelled"),
        )
    },
    **{
        f"a session that is {status} hands out no claims": (
            [enqueue(), ("is", status), CLAIM],
            {"claims": [], "status": status},
        )
        for status in ("completed", "failed", "stopped", "cancelled", "stalled")
    },
    # going on
    "reopening runs what had failed with fresh retries": (
        [enqueue(retries=1), CLAIM, end(1, 1, "retry"), CLAIM, end(1, 2, "failed"), ("is", "failed"),
         ("reopen", 7, None), CLAIM],
        {"claims": ["a"], "retries": [(0, 0.0, 0)], "dead": {}, "epoch": 7, "reason": ""},
    ),
    **{
        f"reopening a terminated session with {claimed} claims starts nothing": (
            [*TWO, ("claim", claimed), ("status", "closing", "enough"), ("reopen", 2, None), CLAIM],
            {"status": status, "reason": "enough", "epoch": 2, "claims": []},
        )
        for claimed, status in ((0, "completed"), (1, "closing"))
    },
    "reopening a cancelled session leaves it cancelled": (
        [*TWO, ("status", "cancelled", "enough"), ("reopen", 2, None), CLAIM],
        {"status": "cancelled", "reason": "enough", "claims": []},
    ),
    "reopening a completed session leaves it completed": (
        [("is", "completed"), ("reopen", 2, None)],
        {"status": "completed"},
    ),
    "tasks that run again leave no trace": (
        [enqueue("a"), enqueue("b"), enqueue("b"), enqueue("b"), arrive("b", 1, 3, -1), ("skipped", "b"),
         ("claim", 2), end(1, 1), end(2, 2, "retry", 99.0, "E: no"), enqueue("b", 9), CLAIM,
         end(5, 3, "passed"), ("again", "a", "b")],
        {
            "completed": {}, "passed": {}, "skipped": {}, "gates": {}, "specs": {}, "ready": [],
            "delayed": [], "claimed": {}, "cells": {},
        },
    ),
    "tasks that run again spare the others": (
        [*THREE, CLAIM, end(1, 1), ("again", "b")],
        {"order": ["a"], "pending": ["c"]},
    ),
    "starting elsewhere drops what was scheduled": (
        [*TWO, JOINS, CLAIM, ("clear",)],
        {"specs": {}, "ready": [], "claimed": {}, "gates": {}},
    ),
    "a session with nothing to do has ended": ([CLAIM], {"status": "completed"}),
    "a session that had ended can start elsewhere": (
        [CLAIM, [("clear",), ("reopen", 2, None), enqueue("b")], CLAIM],
        {"claims": ["b"]},
    ),
    "random state and tasks made at run time are kept": (
        [("rng", b"\x07"), ("task", "made", b"\x08")],
        {"rng": b"\x07", "tasks": {"made": b"\x08"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("moves", "expected"), ENDS.values(), ids=ENDS.keys())
def test_a_state_is_what_its_transitions_make_of_it(moves: Moves, expected: dict[str, Any]) -> None:
    found = shown(*walked(moves))

    assert {name: found[name] for name in expected} == expected


SHARED = Live(object())


@pytest.mark.parametrize(
    ("moves", "refused", "error"),
    [
        ([enqueue(), CLAIM, ("release", 1, 1), CLAIM], end(1, 1), Fenced),
        ([put("x", b"\x01"), put("x", b"\x02", 1)], put("x", b"\x03", 1), WriteConflict),
        ([put("x", b"\x01")], put("x", b"\x03", 0), WriteConflict),
        ([("append", "x", b"\x01"), ("append", "x", b"\x02")], put("x", b"\x90", 1), WriteConflict),
    ],
    ids=[
        "the end of a claim that was released", "a put over a newer value",
        "a put of what was not there and is there now", "a put over what was appended to since it was got",
    ],
)  # fmt: skip
def test_what_others_were_faster_with_is_refused(moves: Moves, refused: Op, error: type[Exception]) -> None:
    state, _ = walked(moves)

    with pytest.raises(error, match="'x' was changed by another task" if error is WriteConflict else None):
        apply(state, [refused], 0.0)


def test_siblings_that_share_a_live_object_do_not_conflict() -> None:
    state, _ = walked([put("x", SHARED), put("x", Live(SHARED.value), 1), put("x", Live(SHARED.value), 1)])

    assert state.values["x"][1] == 3
    with pytest.raises(WriteConflict) as caught:
        apply(state, [put("x", Live(object()), 1)], 0.0)
    assert caught.value.name == "x"


def test_max_steps_stops_a_session_and_a_larger_one_goes_on() -> None:
    state, _ = walked([*TWO, ("claim", 2), [end(1, 1), ("claim", 2)]], max_steps=1)
    assert (state.status, state.reason) == ("stopped", "max_steps=1 reached")

    apply(state, [("reopen", 2, 5)], 0.0)

    assert [one.spec.task_id for one in apply(state, [("claim", 2)], 0.0)] == ["b"]
    assert (state.status, state.epoch, state.max_steps) == ("running", 2, 5)


def test_a_group_is_no_step_and_passes_at_max_steps() -> None:
    _, claims = walked([enqueue("g", how="pass"), enqueue("b"), ("claim", 2)], max_steps=0)

    assert [one.spec.task_id for one in claims] == ["g"]


@pytest.mark.parametrize(
    ("moves", "nothing"),
    [
        ([("skipped", "a")], True),
        ([("skipped", "b")], False),
        ([enqueue(), CLAIM, end(1, 1, "lost")], True),
        ([enqueue(), CLAIM, end(1, 1, "failed")], True),
        ([enqueue(retries=1), CLAIM, end(1, 1, "retry", 9.0, "E: no")], False),
        ([enqueue(retries=1), CLAIM, end(1, 1, "retry"), CLAIM, end(1, 2, "failed")], True),
        ([enqueue(), CLAIM, end(1, 1)], False),
    ],
)
def test_who_gave_nothing_was_skipped_or_failed_for_good(moves: Moves, nothing: bool) -> None:
    assert walked(moves)[0].gave_nothing("a") is nothing


def test_who_gave_nothing_is_found_without_a_look_at_the_specs_of_others() -> None:
    class Specs(dict[int, TaskSpec]):
        def values(self) -> Any:
            raise AssertionError("all specs were looked at")  # eight thousand, for each parameter of each

    state, _ = walked([enqueue(retries=1), enqueue("b"), ("claim", 2), end(1, 1, "retry", 9.0, "E: no")])
    state.specs = Specs(state.specs)

    assert [state.gave_nothing(task) for task in ("a", "b")] == [False, False]


@pytest.mark.parametrize(
    ("before", "to", "after"),
    [
        ("running", "paused", "paused"),
        ("paused", "running", "running"),
        ("init", "running", "running"),
        ("init", "paused", "init"),
        ("closing", "running", "closing"),
        ("completed", "running", "completed"),
        ("failing", "closing", "failing"),
        ("init", "cancelled", "cancelled"),
        ("failed", "cancelled", "cancelled"),
        ("completed", "cancelled", "completed"),
    ],
)
def test_a_status_follows_from_some_and_not_from_others(before: str, to: str, after: str) -> None:
    state = SessionState("s")
    state.status = before

    apply(state, [("status", to, "because")], 0.0)

    assert (state.status, state.reason) == (after, "because" if after == to else "")


def test_the_first_start_is_the_start() -> None:
    assert SessionState("s", ("a", "b")).start_node == "a"
    assert SessionState("s").start_node == ""
