"""Snapshots: a state taken apart and put together again is the same state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.snapshot import Snapshot, capture, preview, restore
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.state import SessionState
from tests.unit.core.histories import Record, dump, histories, kept, run, transitions


def through_files(snapshot: Snapshot) -> SessionState:
    facts = json.loads(json.dumps(snapshot.facts))
    return restore(facts, snapshot.payload())


@given(histories())
def test_what_was_captured_is_restored(history: list[Record]) -> None:
    state = run(history)
    before = dump(state)

    back = through_files(capture(state))

    assert kept(back) == kept(state)
    assert dump(state) == before


@given(histories(), st.data())
def test_a_restored_state_goes_on_as_the_one_before_would_have(
    history: list[Record], data: st.DataObject
) -> None:
    state = run(history)
    back = through_files(capture(state))
    now = history[-1][0]
    for _ in range(data.draw(st.integers(1, 5))):
        now += 1.0
        ops = [_blind(op) for op in data.draw(transitions(state, now))]

        claims, again = apply(state, ops, now), apply(back, ops, now)

        assert again == claims
        assert kept(back) == kept(state)


def _blind(op: Op) -> Op:
    return (*op[:3], -1) if op[0] == "put" else op  # versions begin anew


@given(histories())
def test_a_snapshot_is_not_changed_by_what_comes_after_it(history: list[Record]) -> None:
    state = run(history)
    snapshot = capture(state)
    before = json.dumps(snapshot.facts), repr(snapshot.payload())

    apply(state, [("append", "x", b"\x01"), ("enqueue", "b", None, 0, 0, "default", "direct")], 0.0)
    apply(state, [("clear",), ("again", "a", "b"), ("status", "closing", "no")], 0.0)

    assert (json.dumps(snapshot.facts), repr(snapshot.payload())) == before


# --- what is in which file -------------------------------------------------------------


def state_with(*ops: Op) -> SessionState:
    state = SessionState("s", ("a",))
    apply(state, ops, 0.0)
    return state


def enqueue(task: str = "a", data: Any = None) -> Op:
    return ("enqueue", task, data, 0, 0, "default", "direct")


def test_live_values_and_task_data_are_in_the_pickle_and_referred_to() -> None:
    model = object()
    state = state_with(
        ("put", "plain", b"\x05", -1),
        ("put", "live", Live(model), -1),
        ("append", "list", Live(model)),
        enqueue("a", b"\x07"),
        enqueue("b", Live(model)),
        enqueue("c"),
    )

    snapshot = capture(state)
    payload = snapshot.payload()

    assert payload["plain"] == {"plain": b"\x05", "list": b"\x90"}
    assert payload["live"] == {"live": model}
    assert payload["appended"] == {"list": [("live", model)]}
    assert payload["data"] == [("plain", b"\x07"), ("live", model)]
    data = [spec["task_data"] for spec in snapshot.facts["pending_tasks"]]
    assert data == [{"ref": 0, "type": "plain", "size": 1}, {"ref": 1, "type": "builtins.object"}, None]


def test_the_facts_have_what_the_format_promises() -> None:
    state = state_with(enqueue(), ("claim", 1))
    (key, number) = next(iter(state.claimed.items()))
    again = enqueue("a")
    apply(state, [("end", key, number, "completed", b"\xc0"), again, again, ("claim", 1)], 0.0)

    facts = capture(state, begun=state.claimed).facts

    assert facts["schema_version"] == "1.0"
    assert (facts["session_id"], facts["start_node"], facts["steps"]) == ("s", "a", 1)
    assert facts["completed_tasks"] == ["a"]
    assert facts["cycle_counts"] == {"a": 2}
    assert [spec["status"] for spec in facts["pending_tasks"]] == ["running", "pending"]
    claimed_only = capture(state).facts["pending_tasks"]
    assert [spec["status"] for spec in claimed_only] == ["pending", "pending"]
    assert facts["backend"] == {"queue": "memory", "channel": "memory"}


def test_a_failed_task_is_pending_with_its_error() -> None:
    state = state_with(enqueue(), ("claim", 1))
    apply(state, [("end", 1, 1, "failed", "E: no"), ("status", "failing", "E: no"), ("claim", 1)], 0.0)

    (spec,) = capture(state).facts["pending_tasks"]

    assert (spec["status"], spec["error"]) == ("failed", "E: no")


def test_a_retry_that_is_due_stays_where_it_stands_in_the_queue() -> None:
    state = state_with(enqueue("a"), ("claim", 1))
    apply(state, [("end", 1, 1, "retry", 0.0, "E: no"), enqueue("b")], 0.0)

    back = through_files(capture(state))

    assert back.delayed == []
    assert [one.spec.task_id for one in apply(back, [("claim", 2)], 0.0)] == ["a", "b"]


def test_random_state_that_is_given_is_newer_than_the_one_in_the_state() -> None:
    state = state_with(("rng", b"\x01"))

    assert (capture(state).rng, capture(state, b"\x02").rng) == (b"\x01", b"\x02")


def test_a_preview_shows_nothing_of_a_value() -> None:
    assert preview(b"\xa6secret") == {"type": "plain", "size": 7}
    assert preview(Live(Exception("secret"))) == {"type": "builtins.Exception"}


# --- damage ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        {"pending_tasks": [{}]},
        {"counters": [1]},
        {"completed_steps": [1, 2]},
        {"gates": {"d": [1]}},
        {"steps": None, "drop": "epoch"},
        {"pending_tasks": 5},
    ],
)
def test_facts_that_do_not_hold_together_are_corrupt_by_name(damage: dict[str, Any]) -> None:
    snapshot = capture(state_with(enqueue("a", b"\x01")))
    facts = snapshot.facts | damage
    facts.pop(damage.get("drop", ""), None)

    with pytest.raises(CheckpointCorrupt, match="session s does not hold together"):
        restore(facts, snapshot.payload())


def test_task_data_that_is_not_there_is_corrupt() -> None:
    snapshot = capture(state_with(enqueue("a", b"\x01")))

    with pytest.raises(CheckpointCorrupt, match="does not hold together"):
        restore(snapshot.facts, snapshot.payload() | {"data": []})
