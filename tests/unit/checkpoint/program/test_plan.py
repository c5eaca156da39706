"""Plans: a mended task just runs, a result in doubt is refused, and both ways on are exact."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from graflow_ckpt.checkpoint.program.plan import COLUMNS, Changed, Plan, PlanRow, make_plan
from graflow_ckpt.checkpoint.program.program import CurrentTask, Fingerprint, SavedTask, State
from graflow_ckpt.core.errors import GraphChanged

OLD, NEW = Fingerprint("3.11", "old"), Fingerprint("3.11", "new")
DONE: State = "completed"
OPEN_STATES: tuple[State, ...] = ("failed", "running", "pending", "waiting", "unreached")


def before(text: str, **states: State) -> list[SavedTask]:
    """ "a b<a c<a,b": tasks and their predecessors, completed where nothing else is said."""
    return [SavedTask(name, states.get(name, DONE), OLD, after) for name, after in _parsed(text)]


def now(text: str, **prints: Fingerprint | None) -> list[CurrentTask]:
    return [CurrentTask(name, prints.get(name, OLD), after) for name, after in _parsed(text)]


def _parsed(text: str) -> list[tuple[str, tuple[str, ...]]]:
    halves = [word.partition("<") for word in text.split()]
    return [(name, tuple(after.split(",")) if after else ()) for name, _, after in halves]


def verdicts(plan: Plan) -> dict[str, str]:
    return {row.task: row.verdict for row in plan.rows}


def note(plan: Plan, task: str) -> str:
    return next(row.note for row in plan.rows if row.task == task)


CHAIN = "a b<a c<b d<c"


# --- nothing in doubt -----------------------------------------------------------------------------


def test_what_has_completed_is_reused_and_the_rest_runs() -> None:
    plan = make_plan(before(CHAIN, c="pending", d="unreached"), now(CHAIN))

    assert verdicts(plan) == {"a": "reuse", "b": "reuse", "c": "run", "d": "run"}
    assert not any(row.note for row in plan.rows)
    assert not plan.refused
    assert plan == Plan(rows=plan.rows, changed=None)  # nothing else to do


@pytest.mark.parametrize("state", OPEN_STATES)
@pytest.mark.parametrize("changed", [None, "reuse", "rerun"])
def test_a_task_that_has_not_completed_may_change_and_the_plan_says_so(
    state: State, changed: Changed
) -> None:
    plan = make_plan(before("a b<a", b=state), now("a b<a", b=NEW), changed)

    plan.raise_if_refused("s1")
    assert plan.rows[1][:3] == ("b", "run", state)
    assert note(plan, "b").endswith("changed since: the new code runs")
    assert not plan.rerun
    assert not plan.recalled


def test_what_became_of_an_open_task_is_said() -> None:
    plan = make_plan(before("a b c", a="failed", b="running", c="waiting"), now("a b c"))

    assert [row.note for row in plan.rows] == ["failed before", "was interrupted", "waits for other tasks"]


def test_a_skipped_task_that_changed_stays_skipped_and_is_noted() -> None:
    for changed in (None, "rerun"):
        plan = make_plan(before("a b<a", b="skipped"), now("a b<a", b=NEW), changed)

        assert not plan.refused
        assert plan.rows[1] == PlanRow("b", "reuse", "skipped", "changed since; it stays skipped")


def test_names_that_a_fingerprint_does_not_see_are_in_the_plan() -> None:
    plan = make_plan(before("a"), now("a", a=OLD._replace(not_seen=("CACHE", "numpy"))))

    assert plan.rows == (PlanRow("a", "reuse", "completed", "not seen: CACHE, numpy"),)


@pytest.mark.parametrize(
    ("was", "current", "said"),
    [
        (Fingerprint("3.12", "x"), OLD, "fingerprint of Python 3.12, not comparable: taken as unchanged"),
        (None, OLD, "no fingerprint saved: taken as unchanged"),
        (OLD, None, "no fingerprint now: taken as unchanged"),
        (None, None, ""),  # a group
    ],
)
def test_a_fingerprint_that_cannot_be_compared_counts_as_unchanged_with_a_note(
    was: Fingerprint | None, current: Fingerprint | None, said: str
) -> None:
    plan = make_plan([SavedTask("a", DONE, was)], [CurrentTask("a", current)])

    assert not plan.refused
    assert plan.rows == (PlanRow("a", "reuse", "completed", said),)


# --- a completed task that changed ----------------------------------------------------------------


def test_a_completed_task_that_changed_is_refused_with_the_table_and_the_ways_on() -> None:
    plan = make_plan(before(CHAIN, d="failed"), now(CHAIN, b=NEW))

    with pytest.raises(GraphChanged) as refusal:
        plan.raise_if_refused("s1")

    assert verdicts(plan) == {"a": "reuse", "b": "changed", "c": "reuse", "d": "run"}
    assert refusal.value.session == "s1"
    assert refusal.value.tasks == ("b",)
    assert refusal.value.table == (PlanRow("b", "changed", "completed", "changed since it completed"),)
    assert "b (changed: changed since it completed)" in str(refusal.value)
    assert "--changed=reuse" in refusal.value.hint
    assert "--changed=rerun" in refusal.value.hint


def test_a_long_refusal_names_a_few_and_counts_the_others() -> None:
    names = [f"t{n}" for n in range(9)]
    plan = make_plan(before(" ".join(names)), now(" ".join(names), **dict.fromkeys(names, NEW)))

    with pytest.raises(GraphChanged, match="and 4 more") as refusal:
        plan.raise_if_refused("s1")

    assert len(refusal.value.table) == 9


def test_reuse_keeps_the_result_of_a_changed_task() -> None:
    plan = make_plan(before(CHAIN), now(CHAIN, b=NEW), "reuse")

    assert set(verdicts(plan).values()) == {"reuse"}
    assert note(plan, "b") == "changed since it completed; its result is kept"
    assert not plan.refused
    assert not plan.rerun


def test_rerun_runs_a_changed_task_and_all_that_depends_on_it_again() -> None:
    graph = "a b<a c<a d<b e<c,d f"
    plan = make_plan(before(graph, e="unreached"), now(graph, b=NEW), "rerun")

    assert plan.rerun == {"b", "d", "e"}
    assert verdicts(plan) == {
        "a": "reuse",
        "b": "run again",
        "c": "reuse",
        "d": "run again",
        "e": "run",
        "f": "reuse",
    }
    assert note(plan, "d") == "after b, which runs again"
    assert note(plan, "e") == "after d, which runs again"
    assert set(plan.arrivals) == {
        ("a", "b"),
        ("c", "e"),
    }  # what stays done arrives again where gates start over
    assert not plan.refused


def test_rerun_ends_also_where_tasks_stand_in_a_circle() -> None:
    graph = "a<c b<a c<b"

    assert make_plan(before(graph), now(graph, b=NEW), "rerun").rerun == {"a", "b", "c"}


# --- orphans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [DONE, "running", "pending", "failed", "waiting"])
def test_an_orphan_with_state_is_refused(state: State) -> None:
    plan = make_plan(before("a b<a", b=state), now("a"))

    assert plan.refused
    assert plan.rows[1][:3] == ("b", "orphaned", state)
    assert plan.offending == plan.rows[1:]


@pytest.mark.parametrize("state", ["skipped", "unreached"])
def test_an_orphan_without_state_is_only_noted(state: State) -> None:
    plan = make_plan(before("a b<a", b=state), now("a"))

    assert not plan.refused
    assert plan.rows[1] == PlanRow("b", "orphaned", state, "gone from the program; it had not run")


def test_reuse_keeps_the_result_of_an_orphan_and_drops_work_that_cannot_be_done() -> None:
    plan = make_plan(before("a b<a c<a", b="pending"), now(""), "reuse")

    assert plan.dropped == {"b"}
    assert note(plan, "a") == "gone from the program; its result is kept"
    assert note(plan, "b") == "gone from the program; its work is dropped"
    assert not plan.refused


def test_rerun_drops_orphans_and_runs_again_what_came_after_them() -> None:
    plan = make_plan(before(CHAIN), now("a c<a d<c"), "rerun")

    assert plan.dropped == {"b"}
    assert plan.rerun == {"c", "d"}
    assert plan.arrivals == (("a", "c"),)


# --- new tasks and other edges --------------------------------------------------------------------


def test_new_tasks_behind_the_frontier_just_run_and_say_what_starts_them() -> None:
    plan = make_plan(before("a b<a", b="failed"), now("a b<a n<a m<b o<a,b p"))

    assert not plan.refused
    assert {name: verdict for name, verdict in verdicts(plan).items() if name in "nmop"} == dict.fromkeys(
        "nmop", "new"
    )
    assert note(plan, "n") == "runs at once: a completed before it was there"
    assert note(plan, "m") == "runs after b"
    assert note(plan, "p") == "runs as the start, or when a task asks for it"
    assert set(plan.arrivals) == {("a", "n"), ("a", "o")}


def test_a_new_task_before_a_completed_one_is_refused_and_so_are_new_ones_before_it() -> None:
    plan = make_plan(before("a b<a"), now("a l m<a,l n<m b<n"))

    assert plan.refused
    assert [row.task for row in plan.offending] == ["l", "m", "n"]
    assert note(plan, "n") == "stands before b, which has completed"
    assert note(plan, "b") == "stood after a, now after n"


def test_reuse_leaves_a_new_task_out_that_only_completed_ones_wait_for() -> None:
    plan = make_plan(before("a b<a"), now("a m<a n<m b<n"), "reuse")

    assert plan.left_out == {"m", "n"}
    assert verdicts(plan)["n"] == "new"
    assert note(plan, "n") == "left out: b keeps its result"
    assert plan.arrivals == ()
    assert plan.absorbed == ()


def test_reuse_runs_a_new_task_that_somebody_waits_for_and_absorbs_it_at_the_completed_one() -> None:
    plan = make_plan(before("a b<a c<b", c="unreached"), now("a n<a b<n c<b,n"), "reuse")

    assert plan.left_out == frozenset()
    assert note(plan, "n") == "runs: b keeps its result"
    assert plan.absorbed == (("n", "b"),)
    assert set(plan.arrivals) == {("a", "n"), ("b", "c")}


def test_rerun_runs_a_new_task_and_the_completed_ones_after_it() -> None:
    plan = make_plan(before("a b<a c<b"), now("a n<a b<a,n c<b"), "rerun")

    assert plan.rerun == {"b", "c"}
    assert note(plan, "n") == "runs, and b after it again"
    assert set(plan.arrivals) == {("a", "n"), ("a", "b")}
    assert plan.absorbed == ()


def test_an_open_task_that_now_stands_before_a_completed_one_is_refused_too() -> None:
    plan = make_plan(before("a b c", b="pending"), now("a b c<b"))

    assert [row[:2] for row in plan.offending] == [("b", "run")]
    assert note(plan, "b") == "stands before c, which has completed"


def test_other_edges_between_completed_tasks_are_noted_only() -> None:
    plan = make_plan(before("a b<a c<a"), now("a b<a c<a,b"))

    assert not plan.refused
    assert note(plan, "c") == "stood after a, now after a, b"
    assert note(make_plan(before("a b c<a,b"), now("a b c<b,a")), "c") == ""  # an order is no change


def test_a_failed_task_waits_for_a_step_that_was_put_before_it() -> None:
    plan = make_plan(before("a b<a", b="failed"), now("a n<a b<a,n"))

    assert not plan.refused
    assert plan.recalled == {"b"}
    assert set(plan.arrivals) == {("a", "n"), ("a", "b")}
    assert note(plan, "b") == "failed before; stood after a, now after a, n"


def test_a_gate_that_still_fills_starts_over_when_its_predecessors_change() -> None:
    plan = make_plan(before("a b c<a,b", b="pending", c="unreached"), now("a b c<a"))

    assert plan.recalled == {"c"}
    assert plan.arrivals == (("a", "c"),)


def test_an_open_task_that_lost_or_got_a_completed_predecessor_runs_as_it_is() -> None:
    plan = make_plan(before("a b c<a", c="pending"), now("a b c<b"))

    assert plan.recalled == frozenset()
    assert plan.arrivals == ()


def test_a_skipped_task_absorbs_a_predecessor_that_it_did_not_have() -> None:
    plan = make_plan(before("a b<a", b="skipped"), now("a n<a b<a,n"))

    assert not plan.refused
    assert plan.absorbed == (("n", "b"),)


# --- shown ----------------------------------------------------------------------------------------


def test_a_plan_is_shown_as_rows_counts_and_json() -> None:
    plan = make_plan(before("a b<a c<b", c="failed"), now("a b<a c<b", b=NEW), "rerun")

    shown: dict[str, Any] = json.loads(json.dumps(plan.as_json()))

    assert all(len(row) == len(COLUMNS) for row in plan.rows)
    assert plan.rows[0] == ("a", "reuse", "completed", "")
    assert plan.counts() == {"reuse": 1, "run again": 1, "run": 1}
    assert shown["rerun"] == ["b", "c"]
    assert shown["refused"] is False
    assert shown["changed"] == "rerun"
    assert shown["tasks"][1] == {
        "task": "b",
        "verdict": "run again",
        "state": "completed",
        "note": "changed since it completed",
    }


def test_a_plan_of_eleven_thousand_tasks_takes_a_fraction_of_a_second() -> None:
    names = [f"t{n}" for n in range(11_000)]
    saved = [SavedTask(name, DONE, OLD, (f"t{n - 1}",)) for n, name in enumerate(names)]
    current = [CurrentTask(name, OLD, (f"t{n - 1}",)) for n, name in enumerate(names)]

    started = time.process_time()
    plan = make_plan(saved, current)
    again = make_plan(saved, [CurrentTask("t0", NEW), *current[1:]], "rerun")
    spent = time.process_time() - started

    assert not plan.refused
    assert len(again.rerun) == 11_000
    assert spent < 1.0  # about 0.05
