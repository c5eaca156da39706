"""Where a session ends: limits, terminate, cancel, and joins that wait for nobody."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, WorkflowEngine
from graflow_ckpt.core.errors import (
    GraphError,
    MaxCyclesExceeded,
    OtherWorkflow,
    SessionFinished,
    Stalled,
    WorkflowCancelled,
)
from graflow_ckpt.engine.settings import Settings
from tests.acceptance.command_line import graflow, program, python
from tests.acceptance.places import LONG, Make, idle, rows_of
from tests.loops import chain, loop, of


def test_max_cycles_fails_the_task_by_name(workflow: Make) -> None:
    runs = []

    def loop(context) -> None:
        runs.append(context.cycle)
        context.next_iteration()

    with pytest.raises(MaxCyclesExceeded, match="'loop' was to run for the 4th time; max_cycles=3"):
        chain(loop, make=workflow, max_cycles=3).execute()

    assert runs == [0, 1, 2]


def test_max_cycles_counts_beside_a_running_sibling_too(workflow: Make) -> None:
    done = threading.Event()

    def loop(context) -> None:
        context.next_iteration()

    def sibling() -> None:
        assert done.wait(LONG)

    flow = workflow("w", observers=[lambda e: e.facts.get("outcome") == "failed" and done.set()])
    with pytest.raises(MaxCyclesExceeded):
        flow.add(of(loop, max_cycles=1), of(sibling)).execute()

    assert flow.execution_context.completed_tasks == {"loop", "sibling"}


def test_max_steps_stops_and_a_larger_one_goes_on_in_the_same_process(tmp_path: Path, workflow: Make) -> None:
    runs: list[int] = []
    flow = loop(6, lambda context: runs.append(context.cycle), make=workflow, store=tmp_path)

    for limit, result in ((2, 1), (4, 3)):
        assert flow.execute(max_steps=limit) == result
        assert flow.execution_context.status == "stopped"
    assert flow.execute(max_steps=100) == 5

    assert runs == [0, 1, 2, 3, 4, 5]
    assert flow.execution_context.status == "completed"
    assert flow.execution_context.steps == 6


def test_groups_do_not_count_as_steps(tmp_path: Path, workflow: Make) -> None:
    a, b, c = idle("a", "b", "c")
    flow = chain((a, b), c, make=workflow, store=tmp_path)
    flow.execute(max_steps=3)

    assert flow.execution_context.status == "completed"
    assert flow.execution_context.steps == 3


def test_max_steps_holds_while_members_run_in_parallel(tmp_path: Path, workflow: Make) -> None:
    flow = workflow("w", store=tmp_path).add(*idle(*"abcde"))
    flow.execute(max_steps=3)

    assert flow.execution_context.steps == 3
    assert flow.execution_context.status == "stopped"


def test_terminate_finishes_what_runs_and_starts_nothing_more(workflow: Make) -> None:
    ran, ended = [], threading.Event()

    def enough(context) -> str:
        context.terminate_workflow("enough")
        return "kept"

    def sibling() -> None:
        assert ended.wait(LONG)
        ran.append("sibling")

    def after() -> None:
        ran.append("after")

    seeing = [lambda e: e.kind == "task_ended" and ended.set()]
    flow = chain(enough, after, make=workflow, observers=seeing).add(of(sibling))
    flow.execute()

    assert ran == ["sibling"]
    assert flow.execution_context.get_result("enough") == "kept"
    assert flow.execution_context.status == "completed"


def test_cancel_commits_nothing_of_its_task_and_comes_out_as_workflow_cancelled(workflow: Make) -> None:
    def stop(context) -> None:
        context.get_channel().set("x", 1)
        with suppress(BaseException):  # a body cannot swallow it
            context.cancel_workflow("no more")

    flow = chain(stop, make=workflow)
    with pytest.raises(WorkflowCancelled, match="no more"):
        flow.execute()

    assert flow.get_channel().keys() == []
    assert flow.execution_context.status == "cancelled"
    assert flow.execution_context.completed_tasks == set()


def test_a_gate_that_nobody_will_fill_is_stalled_not_completed(workflow: Make) -> None:
    def again(context) -> None:
        if context.cycle == 1:
            context.next_task("end", goto=True)

    def back(context) -> None:
        context.next_task("a", goto=True)

    a, c = of(again, "a"), of(back, "c")
    b, join, end = idle("b", "join", "end")
    flow = workflow("w").add(a >> b >> join, a >> c >> join, a >> end)
    with pytest.raises(Stalled, match="join") as stalled:
        flow.execute()

    assert stalled.value.gates == ["join"]
    assert flow.execution_context.status == "stalled"
    with pytest.raises(Stalled, match="join"):
        flow.execution_context.execute()  # and does not start over


# --- finished, foreign and changed sessions ---------------------------------------------


PAGE = Path("docs/sessions.md").resolve()

PROGRAM = """
import os, signal, sys
from graflow_ckpt import task, workflow

with workflow("w", "s", durability="journal") as flow:

    @task(inject_context=True)
    def pay(context, amount=1):
        with open("paid.log", "a") as log:
            log.write(f"{context.idempotency_key} {amount}\\n")
        return amount

    @task
    def report(pay):
        if os.path.exists("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.exists("fail"):
            raise OSError("not yet")
        return pay * 10

    pay >> report
    print("result", flow.execute())
"""


def paid() -> list[str]:
    return Path("paid.log").read_text().splitlines()


def flow_of(ran: list[str], name: str = "w", tasks: str = "ab", **options: Any) -> Any:
    """A chain of tasks of one letter, in session s."""

    def body(context: Any) -> str:
        ran.append(context.task_id)
        return str(context.task_id)

    return chain(*(of(body, letter) for letter in tasks), workflow=name, session_id="s", **options)


# --- the rows --------------------------------------------------------------------------


def the_session_is_new() -> None:
    program("p.py", PROGRAM)

    said = python("p.py")

    assert (said.out, said.err) == ("result 10\n", "")


def it_was_interrupted() -> None:
    program("p.py", PROGRAM)
    Path("kill").touch()
    python("p.py", status=-signal.SIGKILL)
    os.unlink("kill")

    said = python("p.py")

    assert said.out == "result 10\n"
    assert said.err.startswith("session s continues from step 1: 1 of 2 tasks completed, saved ")
    assert said.err.count("\n") == 1
    assert len(paid()) == 1


def a_task_of_it_has_failed() -> None:
    program("p.py", PROGRAM)
    Path("fail").touch()
    python("p.py", status=1)
    os.unlink("fail")

    said = python("p.py")

    assert said.err.startswith(
        "session s failed in report (OSError: not yet) and continues from step 1: 1 of 2"
    )
    assert said.err.count("\n") == 1


def it_is_finished() -> None:
    program("p.py", PROGRAM)
    python("p.py")

    said = python("p.py")

    assert said.out == "result 10\n"
    assert len(paid()) == 1
    assert "session s was finished" in said.err
    assert (
        'nothing is run. To run it again: another session id, or workflow(…, on_finished="again")' in said.err
    )
    assert "--session s --again" in said.err
    assert said.err.count("\n") == 1


def it_is_finished_and_again_is_asked_for() -> None:
    program("p.py", PROGRAM)
    python("p.py")

    said = graflow("run", "p.py", "--session", "s", "--again", "--input", "amount=7")

    assert "session s was finished and begins run 2" in said.err
    assert "result 70" in said.out
    assert paid() == ["s/pay/0 1", "s#2/pay/0 7"]


def it_is_finished_and_that_is_an_error() -> None:
    ran: list[str] = []
    flow_of(ran).execute()

    with pytest.raises(SessionFinished, match=r"Session s was finished .* on_finished='error'"):
        flow_of(ran, on_finished="error").execute()

    assert ran == ["a", "b"]


def its_next_run_is_killed() -> None:
    program("p.py", PROGRAM)
    python("p.py")
    Path("kill").touch()
    graflow("run", "p.py", "--session", "s", "--again", status=-signal.SIGKILL)
    os.unlink("kill")

    said = python("p.py")

    assert "session s continues from step 1: 1 of 2 tasks completed" in said.err
    assert paid() == ["s/pay/0 1", "s#2/pay/0 1"]


def it_belongs_to_another_workflow() -> None:
    ran: list[str] = []
    flow_of(ran, "etl").execute()

    with pytest.raises(
        OtherWorkflow, match="Session s belongs to workflow 'etl', and this one is 'w'"
    ) as error:
        flow_of(ran).execute()

    assert (error.value.ids["workflow"], error.value.ids["other"]) == ("w", "etl")
    assert ran == ["a", "b"]


def its_workflow_was_renamed() -> None:
    ran: list[str] = []
    flow_of(ran, "etl").execute()

    assert flow_of(ran, changed="reuse").execute() == "b"
    assert ran == ["a", "b"]


def it_has_no_task_in_common_with_the_program() -> None:
    ran: list[str] = []
    flow_of(ran).execute()

    with pytest.raises(OtherWorkflow, match="s has completed a, b of workflow 'w'; workflow 'w' has x, y"):
        flow_of(ran, tasks="xy", changed="reuse").execute()


def an_input_has_a_typing_error() -> None:
    program("p.py", PROGRAM)

    said = graflow("run", "p.py", "--session", "s", "--input", "amuont=7", status=1)

    assert "No task takes an input 'amuont'" in said.err
    assert "Did you mean 'amount'?" in said.err
    assert not Path("paid.log").exists()


def an_input_is_unknown() -> None:
    program("p.py", PROGRAM)

    said = graflow("run", "p.py", "--session", "s", "--input", "region=eu")

    assert "no task takes an input 'region' as a parameter" in said.err
    assert "result 10" in said.out


def inputs_are_declared_and_another_one_is_given() -> None:
    ran: list[str] = []

    with pytest.raises(GraphError, match="has no input 'region'"):
        flow_of(ran, inputs=["amount"]).execute(inputs={"region": "eu"})

    assert ran == []


def a_task_in_doubt_has_a_typing_error() -> None:
    program("p.py", PROGRAM)

    said = graflow("run", "p.py", "--session", "s", "--in-doubt", "reprot=skip", status=1)

    assert "there is no task 'reprot'" in said.err
    assert "Did you mean 'report'?" in said.err


ROWS = {
    "the session is new": the_session_is_new,
    "it was interrupted": it_was_interrupted,
    "a task of it has failed": a_task_of_it_has_failed,
    "it is finished": it_is_finished,
    'it is finished, `on_finished="again"` or `--again`': it_is_finished_and_again_is_asked_for,
    'it is finished, `on_finished="error"`': it_is_finished_and_that_is_an_error,
    "its next run is killed": its_next_run_is_killed,
    "it belongs to a workflow of another name": it_belongs_to_another_workflow,
    "its workflow was renamed, `--changed reuse`": its_workflow_was_renamed,
    "it has no task in common with the program": it_has_no_task_in_common_with_the_program,
    "an input is almost a parameter": an_input_has_a_typing_error,
    "an input is no parameter": an_input_is_unknown,
    "`workflow(inputs=[…])`, and another input is given": inputs_are_declared_and_another_one_is_given,
    "`--in-doubt` names a task that is not there": a_task_in_doubt_has_a_typing_error,
}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_page_is_as_it_says(row: str) -> None:
    ROWS[row]()


def test_the_page_has_these_rows_and_no_others() -> None:
    assert rows_of(PAGE, "Finished, foreign and changed sessions") == [*ROWS]


def test_a_plan_of_a_finished_session_whose_tasks_changed_is_not_refused() -> None:
    program("p.py", PROGRAM)
    python("p.py")
    program("p.py", PROGRAM.replace("pay * 10", "pay * 11"))

    said = graflow("plan", "s")

    assert "a resume runs nothing" in said.err
    assert "refused" not in said.err


# --- more ------------------------------------------------------------------------------


def test_a_finished_session_is_a_warning_and_the_history_of_its_runs_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []
    for _ in range(3):
        assert flow_of(ran, on_finished="again").execute() == "b"

    flow_of(ran).execute()

    assert ran == ["a", "b"] * 3
    assert [r.levelno for r in caplog.records if "nothing is run" in r.getMessage()] == [logging.WARNING]
    ends = [m for m in CheckpointManager.list_checkpoints("s") if m.status == "completed"]
    assert sorted(m.run or 1 for m in ends) == [1, 2, 3]


def test_a_run_that_begins_again_is_recorded_before_its_first_task() -> None:
    flow_of([]).execute()
    seen: list[tuple[str, int | None]] = []

    def look() -> None:
        newest = max(CheckpointManager.list_checkpoints("s"), key=lambda m: (m.epoch, m.sequence))
        seen.append((newest.status, newest.run))

    chain(of(look, "a"), session_id="s", on_finished="again").execute()

    assert seen == [("running", 2)]


def test_the_run_of_a_child_process_has_its_own_key() -> None:
    def a(context) -> str:
        return str(context.idempotency_key)

    flows = [chain(a, session_id="s", on_finished="again", isolation="process") for _ in range(2)]

    assert [flow.execute() for flow in flows] == ["s/a/0", "s#2/a/0"]


def test_two_graphs_of_one_name_without_a_task_in_common_are_told_apart() -> None:
    WorkflowEngine().execute(ExecutionContext.create(flow_of([]).graph, session_id="s"))

    with pytest.raises(OtherWorkflow, match="has completed a, b of workflow 'workflow'"):
        flow_of([], "workflow", tasks="xy").execute()


def test_a_session_whose_checkpoint_has_no_workflow_name_is_not_refused() -> None:
    nameless = Settings(workflow="")
    WorkflowEngine().execute(ExecutionContext.create(flow_of([]).graph, session_id="s", settings=nameless))

    assert flow_of([]).execute() == "b"
