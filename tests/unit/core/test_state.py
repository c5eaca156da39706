"""The state: what each op does, and what holds after any legal history."""

from __future__ import annotations

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


def started(*ops: Op, max_steps: int | None = None) -> SessionState:
    state = SessionState("s", ("a",), max_steps)
    apply(state, ops, 0.0)
    return state


def claim(state: SessionState, limit: int = 1, now: float = 0.0) -> list[Claim]:
    return apply(state, [("claim", limit)], now)


def end(state: SessionState, one: Claim, *how: Any, now: float = 0.0) -> list[Claim]:
    return apply(state, [("end", one.spec.key, one.number, *how)], now)


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


# --- claims and ends -------------------------------------------------------------------


def test_claims_go_by_priority_and_then_by_age() -> None:
    state = started(enqueue("a"), enqueue("b", priority=5), enqueue("c"), enqueue("d", priority=5))

    order = [one.spec.task_id for one in claim(state, 4)]

    assert order == ["b", "d", "a", "c"]
    assert [spec.task_id for spec in state.pending()] == order


def test_a_completed_task_is_a_step_with_a_result() -> None:
    state = started(enqueue(), ("claim", 1))
    (one,) = run_claims(state)

    end(state, one, "completed", b"\x05")

    assert (state.steps, state.completed, state.specs) == (1, {"a": 1}, {})
    assert state.values["a" + RESULT][0] == b"\x05"


def run_claims(state: SessionState) -> list[Claim]:
    return [Claim(state.specs[key], number) for key, number in state.claimed.items()]


def test_completed_tasks_stand_in_order_of_their_last_completion() -> None:
    state = started(enqueue("a"), enqueue("b"), enqueue("a"))
    for _ in range(3):
        (one,) = claim(state)
        end(state, one, "completed", b"\xc0")

    assert list(state.completed) == ["b", "a"]


def test_a_completion_takes_back_that_the_task_failed_or_was_skipped() -> None:
    state = started(enqueue(), ("skipped", "a"))
    (one,) = claim(state)
    end(state, one, "retry", 0.0, "E: no")
    assert state.errors == {"a": "E: no"}

    (one,) = claim(state)
    end(state, one, "completed", b"\xc0")

    assert (state.errors, state.skipped) == ({}, {})


def test_a_failed_task_is_kept_aside_and_is_not_completed() -> None:
    state = started(enqueue())
    (one,) = claim(state)

    apply(
        state, [("end", 1, one.number, "failed", "E: no"), ("status", "failing", "E: no"), ("claim", 1)], 0.0
    )

    assert (state.status, state.completed, state.steps) == ("failed", {}, 0)
    assert (state.dead, state.errors) == ({1: "E: no"}, {"a": "E: no"})
    assert [spec.task_id for spec in state.pending()] == ["a"]


def test_a_retry_waits_until_it_is_due() -> None:
    state = started(enqueue())
    (one,) = claim(state)
    end(state, one, "retry", 10.0, "E: no")
    assert state.specs[1].not_before == 10.0

    assert claim(state, now=9.0) == []
    (again,) = claim(state, now=10.0)

    assert (again.spec.retry_count, again.spec.not_before) == (1, 0.0)
    assert again.number != one.number


def test_a_retry_that_is_due_at_once_is_ready_and_not_delayed() -> None:
    state = started(enqueue())
    (one,) = claim(state, now=5.0)

    end(state, one, "retry", 4.0, "E: no", now=5.0)

    assert state.delayed == []
    assert state.specs[1].not_before == 0.0


@pytest.mark.parametrize(
    ("ops", "nothing"),
    [
        ([("skipped", "a")], True),
        ([("skipped", "b")], False),
        ([enqueue(), ("claim", 1), ("end?", "lost", "E: no")], True),
        ([enqueue(), ("claim", 1), ("end?", "failed", "E: no")], True),
        ([enqueue(retries=1), ("claim", 1), ("end?", "retry", 9.0, "E: no")], False),
        ([enqueue(), ("claim", 1), ("end?", "completed", b"\x01")], False),
    ],
)
def test_who_gave_nothing_was_skipped_or_failed_for_good(ops: list[Op], nothing: bool) -> None:
    state = SessionState("s", ("a",))
    for op in ops:
        apply(state, [("end", 1, 1, *op[1:]) if op[0] == "end?" else op], 0.0)

    assert state.gave_nothing("a") is nothing


def test_who_gave_nothing_is_found_without_a_look_at_the_specs_of_others() -> None:
    class Specs(dict[int, TaskSpec]):
        def values(self) -> Any:
            raise AssertionError("all specs were looked at")  # eight thousand, for each parameter of each

    state = started(enqueue(retries=1), enqueue(task="b"))
    one, _ = claim(state, 2)
    end(state, one, "retry", 9.0, "E: no")
    state.specs = Specs(state.specs)

    assert [state.gave_nothing(task) for task in ("a", "b")] == [False, False]


def test_who_has_failed_for_good_after_retries_gave_nothing() -> None:
    state = started(enqueue(retries=1))
    (one,) = claim(state)
    end(state, one, "retry", 0.0, "E: no")
    assert state.gave_nothing("a") is False

    (one,) = claim(state)
    end(state, one, "failed", "E: no")

    assert state.gave_nothing("a") is True


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
    ],
)
def test_a_status_follows_from_some_and_not_from_others(before: str, to: str, after: str) -> None:
    state = SessionState("s")
    state.status = before

    apply(state, [("status", to, "because")], 0.0)

    assert (state.status, state.reason) == (after, "because" if after == to else "")


@pytest.mark.parametrize(
    ("how", "table"), [("lost", "errors"), ("skipped", "skipped"), ("passed", "passed"), ("dropped", None)]
)
def test_other_ends_are_no_steps(how: str, table: str | None) -> None:
    state = started(enqueue())
    (one,) = claim(state)

    end(state, one, how, *(["E: no"] if how == "lost" else []))

    assert (state.steps, state.completed, state.specs) == (0, {}, {})
    for name in ("errors", "skipped", "passed"):
        assert ("a" in getattr(state, name)) == (name == table)


def test_a_released_claim_is_the_next_one_of_its_priority() -> None:
    state = started(enqueue("a"), enqueue("b"), enqueue("c", priority=9))
    first = claim(state, 2)
    assert [one.spec.task_id for one in first] == ["c", "a"]

    apply(state, [("release", first[1].spec.key, 1)], 0.0)
    (again,) = claim(state)

    assert (again.spec.task_id, again.spec.crashes) == ("a", 1)
    with pytest.raises(Fenced):
        end(state, first[1], "completed", b"\xc0")


# --- values ----------------------------------------------------------------------------


def test_a_blind_put_wins_whatever_was_there() -> None:
    state = started(("put", "x", b"\x01", -1))

    apply(state, [("put", "x", b"\x02", -1)], 0.0)

    assert state.values["x"] == (b"\x02", 2)


def test_a_put_over_a_newer_value_is_refused_and_named() -> None:
    state = started(("put", "x", b"\x01", -1))
    apply(state, [("put", "x", b"\x02", 1)], 0.0)

    with pytest.raises(WriteConflict, match="'x' was changed by another task") as caught:
        apply(state, [("put", "x", b"\x03", 1)], 0.0)

    assert caught.value.name == "x"


def test_a_put_of_what_was_not_there_is_refused_if_it_is_there_now() -> None:
    state = started(("put", "x", b"\x01", -1))

    with pytest.raises(WriteConflict):
        apply(state, [("put", "x", b"\x03", 0)], 0.0)
    apply(state, [("put", "y", b"\x03", 0)], 0.0)

    assert state.values["y"][0] == b"\x03"


def test_siblings_that_share_a_live_object_do_not_conflict() -> None:
    shared, other = object(), object()
    state = started(("put", "x", Live(shared), -1))
    apply(state, [("put", "x", Live(shared), 1)], 0.0)

    apply(state, [("put", "x", Live(shared), 1)], 0.0)
    with pytest.raises(WriteConflict):
        apply(state, [("put", "x", Live(other), 1)], 0.0)

    assert state.values["x"][1] == 3


def test_appends_never_conflict() -> None:
    state = started(("append", "x", b"\x01"))

    apply(state, [("append", "x", b"\x02")], 0.0)

    assert (state.values["x"], state.appended["x"]) == ((b"\x90", 2), [b"\x01", b"\x02"])


def test_what_was_got_before_an_append_is_stale() -> None:
    state = started(("append", "x", b"\x01"))
    apply(state, [("append", "x", b"\x02")], 0.0)

    with pytest.raises(WriteConflict):
        apply(state, [("put", "x", b"\x90", 1)], 0.0)


def test_a_put_takes_the_place_of_what_was_appended() -> None:
    state = started(("append", "x", b"\x01"), ("append", "y", b"\x02"))

    apply(state, [("put", "x", b"\x05", 1)], 0.0)

    assert (state.values["x"][0], state.appended) == (b"\x05", {"y": [b"\x02"]})


def test_a_result_takes_the_place_of_what_was_appended_under_its_name() -> None:
    state = started(enqueue(), ("append", "a" + RESULT, b"\x01"))
    (one,) = claim(state)

    end(state, one, "completed", b"\x05")

    assert (state.values["a" + RESULT][0], state.appended) == (b"\x05", {})


# --- gates -----------------------------------------------------------------------------


def test_a_join_of_two_is_enqueued_once() -> None:
    state = started(arrive("d", 1, 2, 0))
    assert state.specs == {}

    apply(state, [arrive("d", 1, 2, 0)], 0.0)

    assert [spec.task_id for spec in state.pending()] == ["d"]
    assert state.gates == {}


def test_a_join_that_nobody_took_is_skipped() -> None:
    state = started(arrive("d", 0, 2, 0), arrive("d", 0, 2, 0))

    assert [spec.execution_strategy for spec in state.pending()] == ["skip"]


def test_best_effort_goes_on_whatever_came_of_its_members() -> None:
    state = started(arrive("g", 0, 2, -1), arrive("g", 0, 2, -1))

    assert [spec.execution_strategy for spec in state.pending()] == ["direct"]


def test_at_least_fires_early_and_absorbs_the_late_ones() -> None:
    state = started(arrive("g", 1, 3, 2), arrive("g", 1, 3, 2))
    assert [spec.task_id for spec in state.pending()] == ["g"]
    assert state.gates["g"].facts() == [3, 2, 2, 2, 1]
    assert state.waiting_gates() == {}

    apply(state, [arrive("g", 1, 3, 2)], 0.0)

    assert len(state.specs) == 1
    assert state.gates == {}


def test_at_least_with_too_few_is_lost() -> None:
    state = started(arrive("g", 1, 2, 2), arrive("g", 0, 2, 2))

    assert [spec.execution_strategy for spec in state.pending()] == ["lost"]


def test_a_gate_that_expects_more_waits_for_more() -> None:
    state = started(("expect", "d", 1, 2, 0), arrive("d", 1, 2, 0), ("expect", "d", 1, 2, 0))
    assert state.gates["d"].size == 4

    apply(state, [arrive("d", 1, 2, 0)] * 3, 0.0)

    assert [spec.task_id for spec in state.pending()] == ["d"]


def test_absorbed_arrivals_enqueue_nothing() -> None:
    state = started(("absorb", "d", 2), arrive("d", 1, 2, 0))
    assert "d" in state.gates

    apply(state, [arrive("d", 1, 2, 0)], 0.0)

    assert (state.specs, state.gates) == ({}, {})


# --- status ----------------------------------------------------------------------------


def test_a_session_with_nothing_left_is_completed() -> None:
    state = started(enqueue())
    (one,) = claim(state)

    apply(state, [("end", 1, one.number, "completed", b"\xc0"), ("claim", 1)], 0.0)

    assert (state.status, state.reason) == ("completed", "")


def test_a_session_that_waits_for_what_will_not_come_is_stalled_by_name() -> None:
    state = started(arrive("d", 1, 2, 0), ("claim", 1))

    assert (state.status, state.reason) == ("stalled", "still waiting: d")


def test_a_session_with_a_delayed_task_goes_on() -> None:
    state = started(enqueue())
    (one,) = claim(state)

    apply(state, [("end", 1, one.number, "retry", 10.0, "E: no"), ("claim", 1)], 0.0)

    assert state.status == "running"


def test_max_steps_stops_a_session_and_a_larger_one_goes_on() -> None:
    state = started(enqueue("a"), enqueue("b"), max_steps=1)
    (one,) = claim(state, 2)

    apply(state, [("end", 1, one.number, "completed", b"\xc0"), ("claim", 2)], 0.0)
    assert (state.status, state.reason) == ("stopped", "max_steps=1 reached")
    apply(state, [("reopen", 2, 5)], 0.0)

    assert [c.spec.task_id for c in claim(state, 2)] == ["b"]
    assert (state.status, state.epoch, state.max_steps) == ("running", 2, 5)


def test_a_group_is_no_step_and_passes_at_max_steps() -> None:
    state = started(enqueue("g", how="pass"), enqueue("b"), max_steps=0)

    assert [c.spec.task_id for c in claim(state, 2)] == ["g"]


def test_terminate_drops_what_has_not_started() -> None:
    state = started(enqueue("a"), enqueue("b"), arrive("d", 1, 2, 0))
    (one,) = claim(state)

    apply(
        state,
        [("end", 1, one.number, "completed", b"\xc0"), ("status", "closing", "enough"), ("claim", 1)],
        0.0,
    )

    assert (state.status, state.reason) == ("completed", "enough")
    assert (state.specs, state.ready, state.gates) == ({}, [], {})


def test_a_closing_session_waits_for_what_runs() -> None:
    state = started(enqueue("a"), enqueue("b"))
    first, second = claim(state, 2)

    apply(
        state, [("end", 1, first.number, "completed", b"\xc0"), ("status", "closing", ""), ("claim", 1)], 0.0
    )
    assert state.status == "closing"
    apply(state, [("end", 2, second.number, "completed", b"\xc0"), ("claim", 1)], 0.0)

    assert (state.status, state.steps) == ("completed", 2)


@pytest.mark.parametrize(
    ("first", "second", "last"),
    [
        ("failing", "closing", "failing"),
        ("closing", "failing", "failing"),
        ("failing", "cancelled", "cancelled"),
        ("cancelled", "failing", "cancelled"),
    ],
)
def test_a_bad_end_is_not_covered_up(first: str, second: str, last: str) -> None:
    state = started(enqueue(), ("status", first, "1"), ("status", second, "2"))

    assert state.status == last


@pytest.mark.parametrize("status", ["completed", "failed", "stopped", "cancelled", "stalled"])
def test_only_a_running_session_hands_out_claims(status: str) -> None:
    state = started(enqueue())
    state.status = status

    assert claim(state) == []
    assert state.status == status


# --- going on --------------------------------------------------------------------------


def test_reopening_runs_what_had_failed_with_fresh_retries() -> None:
    state = started(enqueue(retries=1))
    for how in (("retry", 0.0, "E: 1"), ("failed", "E: 2")):
        (one,) = claim(state)
        end(state, one, *how)
    state.status = "failed"

    apply(state, [("reopen", 7, None)], 0.0)
    (one,) = claim(state)

    assert (one.spec.task_id, one.spec.retry_count, state.dead) == ("a", 0, {})
    assert (state.epoch, state.reason) == (7, "")


@pytest.mark.parametrize(("claimed", "status"), [(0, "completed"), (1, "closing")])
def test_reopening_a_terminated_session_starts_nothing(claimed: int, status: str) -> None:
    state = started(enqueue("a"), enqueue("b"), ("claim", claimed), ("status", "closing", "enough"))

    apply(state, [("reopen", 2, None)], 0.0)

    assert (state.status, state.reason, state.epoch) == (status, "enough", 2)
    assert claim(state) == []


def test_reopening_a_completed_session_leaves_it_completed() -> None:
    state = started()
    state.status = "completed"

    apply(state, [("reopen", 2, None)], 0.0)

    assert state.status == "completed"


def test_tasks_that_run_again_leave_no_trace() -> None:
    state = started(
        enqueue("a"), enqueue("b"), enqueue("b"), enqueue("b"), arrive("b", 1, 3, -1), ("skipped", "b")
    )
    first, second = claim(state, 2)
    assert (first.spec.task_id, second.spec.task_id) == ("a", "b")
    end(state, first, "completed", b"\xc0")
    end(state, second, "retry", 99.0, "E: no")
    state.passed["b"] = 1

    apply(state, [("again", "a", "b")], 0.0)

    assert (state.completed, state.passed, state.skipped, state.gates) == ({}, {}, {}, {})
    assert (state.specs, state.ready, state.delayed, state.claimed) == ({}, [], [], {})
    assert "a" + RESULT not in state.values


def test_tasks_that_run_again_spare_the_others() -> None:
    state = started(enqueue("a"), enqueue("b"), enqueue("c"))
    (one,) = claim(state)
    end(state, one, "completed", b"\xc0")

    apply(state, [("again", "b")], 0.0)

    assert list(state.completed) == ["a"]
    assert [spec.task_id for spec in state.pending()] == ["c"]


def test_starting_elsewhere_drops_what_was_scheduled() -> None:
    state = started(enqueue("a"), enqueue("b"), arrive("d", 1, 2, 0), ("claim", 1))

    apply(state, [("clear",)], 0.0)

    assert (state.specs, state.ready, state.claimed, state.gates) == ({}, [], {}, {})


def test_a_session_that_had_ended_can_start_elsewhere() -> None:
    state = started(("claim", 1))
    assert state.status == "completed"

    apply(state, [("clear",), ("reopen", 2, None), enqueue("b")], 0.0)

    assert [one.spec.task_id for one in claim(state)] == ["b"]


def test_random_state_and_tasks_made_at_run_time_are_kept() -> None:
    state = started(("rng", b"\x07"), ("task", "made", b"\x08"))

    assert (state.rng, state.tasks) == (b"\x07", {"made": b"\x08"})


def test_the_first_start_is_the_start() -> None:
    assert SessionState("s", ("a", "b")).start_node == "a"
    assert SessionState("s").start_node == ""
