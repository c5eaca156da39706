"""graflow-ckpt sessions, pause, resume, cancel, purge, failed and checkpoints take: sessions of a fleet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.command_line import checkpoints, ended, program
from tests.acceptance.fleet_line import ETL, SCRIPT, Fleet
from tests.stretch import until


def listed(fleet: Fleet, *arguments: str) -> list[str]:
    return [row["session"] for row in fleet.here("sessions", "--json", *arguments).document]


# --- sessions ----------------------------------------------------------------------------


def test_sessions_of_the_fleet_are_a_table_the_newest_first(fleet: Fleet) -> None:
    fleet.put("one")
    fleet.put("two")
    fleet.here("pause", "one", "--reason", "wait for the disk")

    done = fleet("sessions")

    head, two, one = done.out.splitlines()
    assert head.split() == [
        "SESSION", "WORKFLOW", "STATUS", "STEPS", "DONE", "READY", "RUNNING", "DELAYED", "FAILED", "TOKENS",
        "AGE", "REASON",
    ]  # fmt: skip
    assert two.split()[:10] == ["two", "etl", "running", "0", "0", "1", "0", "0", "0", "1"]
    assert one.split()[:3] == ["one", "etl", "paused"]
    assert one.endswith("wait for the disk")
    assert f"at {fleet.shown}:" in done.err


def test_sessions_can_be_chosen(fleet: Fleet) -> None:
    fleet.put("one")
    fleet.put("two", "slow")
    fleet.put("three")
    fleet.here("cancel", "three")

    assert listed(fleet) == ["three", "two", "one"]
    assert listed(fleet, "--workflow", "etl") == ["three", "one"]
    assert listed(fleet, "--unfinished") == ["two", "one"]
    assert listed(fleet, "--limit", "1") == ["three"]


def test_sessions_of_a_store_and_of_a_fleet_stand_side_by_side(fleet: Fleet) -> None:
    fleet("run", "count.py", "--session", "here")
    fleet.put("there")

    rows = fleet.here("sessions", "--json").document
    assert [(row["session"], row["at"]) for row in rows] == [("there", fleet.shown), ("here", "checkpoints")]
    done = fleet.here("sessions")
    assert [line.split()[0] for line in done.out.splitlines()] == ["SESSION", "there", "SESSION", "here"]
    assert listed(fleet, "--url", fleet.url) == ["there"]
    assert listed(fleet, "--store", "checkpoints") == ["here"]


def test_a_store_on_a_server_has_both_sessions_and_checkpoints(fleet: Fleet) -> None:
    fleet.put("there")
    fleet("run", "count.py", "--session", "kept", "--store", fleet.url, "--durability", "checkpoint")

    rows = fleet.here("sessions", "--store", fleet.url, "--json").document

    assert [(row["session"], row["at"]) for row in rows] == [("there", fleet.shown), ("kept", fleet.shown)]
    assert rows[1]["checkpoints"] == 1


def test_a_session_and_its_checkpoints_on_one_server_are_one_row(busy: Fleet) -> None:
    text = ETL.replace("    @task\n", "    @task(inject_context=True)\n", 1)
    text = text.replace("def extract(rows=3):", "def extract(context, rows=3):\n        context.checkpoint()")
    program("etl.py", text)
    busy("submit", "etl.py", "--session", "both-1", "--wait")

    rows = busy.here("sessions", "--store", busy.url, "--json").document

    (row,) = [row for row in rows if row["session"] == "both-1"]
    assert row["completed"] == 4
    assert row["checkpoint"].startswith(busy.shown)


def test_a_fleet_without_sessions_says_so(fleet: Fleet) -> None:
    assert "There are no such sessions at" in fleet.here("sessions", "--url", fleet.url).err
    assert listed(fleet) == []


NEEDS = "needs the path of a portable checkpoint: graflow-ckpt checkpoints take s"


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("sessions --url redis://h --store x", 2, ["one of them"]),
        ("resume s --rewind", 2, [f"--rewind {NEEDS}"]),
        ("resume s --fork x", 2, [f"--fork {NEEDS}"]),
        ("resume s --changed rerun", 2, ["--changed is not for sessions of a fleet"]),
        ("resume s --take-over", 2, ["--take-over is not for sessions of a fleet"]),
        (
            "resume somewher", 1,
            ["no session somewher at {shown}", "Is somewhere meant?",
             "neither a checkpoint nor a session nor a workflow in checkpoints"],
        ),
    ],
)  # fmt: skip
def test_what_is_not_for_a_session_of_a_fleet_is_refused_with_what_is(
    fleet: Fleet, command: str, status: int, told: list[str]
) -> None:
    fleet.put("s")
    fleet.put("somewhere")

    said = fleet.here(*command.split(), status=status).err

    assert [words for words in told if words.format(shown=fleet.shown) not in said] == [], said


# --- purge -------------------------------------------------------------------------------


def test_finished_sessions_are_purged_and_leave_nothing(fleet: Fleet) -> None:
    fleet.put("over")
    fleet.here("cancel", "over")

    told = fleet("sessions", "purge", "over").err

    assert "session over (cancelled) is gone" in told
    assert fleet.server.ask("KEYS", "graflow:{over}:*") == []
    assert listed(fleet) == []


def test_what_could_go_on_is_purged_only_if_that_is_said(fleet: Fleet) -> None:
    fleet.put("over")
    fleet.put("runs")
    fleet.here("cancel", "over")

    refused = fleet.here("sessions", "purge", "over", "runs", status=1).err
    assert "nothing was purged: runs (running)" in refused
    assert listed(fleet) == ["runs", "over"]

    found = fleet.here("sessions", "purge", "over", "runs", "--yes", "--json").document
    assert [row["session"] for row in found] == ["over", "runs"]
    assert listed(fleet) == []


def test_a_task_whose_session_is_purged_ends_and_its_worker_goes_on(busy: Fleet, tmp_path: Path) -> None:
    busy.submit("slow.py", "slow-2", "--input", f"until={tmp_path}/go")
    until(lambda: busy.status("slow-2").running == 1)

    busy.here("sessions", "purge", "slow-2", "--yes")

    busy("submit", "etl.py", "--wait")  # the worker is free, though nobody has opened the gate
    assert busy.server.ask("KEYS", "graflow:{slow-2}:[^x]*") == []


# --- pause, resume -------------------------------------------------------------------------


def test_a_session_is_paused_and_goes_on(fleet: Fleet) -> None:
    fleet.put("s")

    assert "session s is paused; go on: graflow-ckpt resume s" in fleet("pause", "s").err
    assert fleet.here("pause", "s", "--json").document["status"] == "paused"  # as it is

    told = fleet("resume", "s").err
    assert "session s was paused and is running; follow it: graflow-ckpt wait s" in told
    assert fleet.status("s").status == "running"


def test_a_stopped_session_goes_on_with_a_larger_limit(busy: Fleet) -> None:
    busy("submit", "etl.py", "--session", "s-3", "--max-steps", "2", "--wait")
    assert busy.status("s-3").status == "stopped"
    told = busy.here("resume", "s-3").err
    assert "max_steps=2 reached after 2 steps; go on with a larger one: graflow-ckpt resume s-3 --max" in told

    busy("resume", "s-3", "--max-steps", "10")

    assert "completed after 4 steps" in busy.here("wait", "s-3").err
    assert "is finished (4 steps); nothing runs" in busy("resume", "s-3").err


CUT = """
from graflow_ckpt import task, workflow

with workflow("cut") as ctx:

    @task(inject_context=True)
    def first(context):
        context.checkpoint()

    @task
    def second(first):
        return 2

    first >> second
    ctx.execute()
"""


def test_the_path_of_a_fleets_checkpoint_means_its_live_session(busy: Fleet) -> None:
    program("cut.py", CUT)
    busy("submit", "cut.py", "--session", "s-4", "--max-steps", "1", "--wait")
    path = busy.status("s-4").checkpoint
    assert path is not None

    told = busy("resume", path, "--max-steps", "5", GRAFLOW_CKPT_REDIS_URL=busy.url).err

    assert re.search(r"session s-4 was stopped and is (running|completed)", told)  # by workers, at once
    assert "completed after 2 steps" in busy.here("wait", "s-4").err


def test_a_session_that_programs_run_is_not_left_to_workers(fleet: Fleet) -> None:
    fleet.put("s")
    line = fleet.server.ask("HGET", "graflow:{s}:c", "c")
    fleet.server.ask("HSET", "graflow:{s}:c", "c", line.replace(b"|f|", b"||"))
    fleet.here("pause", "s")

    assert "no fleet's: programs run it, not workers" in fleet.here("resume", "s", status=1).err


def test_an_id_means_the_session_that_there_is(fleet: Fleet) -> None:
    fleet("run", "count.py", "--session", "here", "--max-steps", "3")
    fleet.put("there")
    fleet.here("pause", "there")

    assert "result 6" in fleet("resume", "here", "--max-steps", "9").out
    assert "is running" in fleet("resume", "there").err


def test_an_id_of_both_is_asked_back_and_an_option_answers(fleet: Fleet) -> None:
    fleet("run", "count.py", "--session", "twin", "--max-steps", "3")
    fleet.put("twin")
    fleet.here("pause", "twin")

    told = fleet("resume", "twin", status=1).err
    assert "session twin of workflow count in checkpoints; session twin at redis://" in told

    assert "is running" in fleet("resume", "twin", "--url", fleet.url).err
    assert "result 6" in fleet("resume", "twin", "--store", "checkpoints", "--max-steps", "9").out


def test_a_fleet_that_is_away_does_not_keep_a_session_of_the_store_from_going_on(fleet: Fleet) -> None:
    fleet("run", "count.py", "--session", "here", "--max-steps", "3")

    done = fleet("resume", "here", "--max-steps", "9", GRAFLOW_CKPT_REDIS_URL="redis://127.0.0.1:1/0")

    assert "result 6" in done.out
    assert "What is in checkpoints is taken" in done.err


# --- status ------------------------------------------------------------------------------


def test_of_a_session_that_nobody_works_on_it_is_said_why_it_waits(fleet: Fleet) -> None:
    fleet.put("s")

    assert "queues      default 1 (no worker serves default)" in fleet.here("status", "s").out
    assert fleet.here("status", "s", "--json").document["unserved"] == ["default"]


# --- cancel ------------------------------------------------------------------------------


def test_a_session_is_cancelled_for_good(fleet: Fleet) -> None:
    fleet.put("s")

    assert "session s is cancelled after 0 steps" in fleet("cancel", "s", "--reason", "enough").err
    assert fleet.here("cancel", "s", "--json").document["reason"] == "enough"  # as it is
    assert "is cancelled" in fleet.here("resume", "s", status=1).err
    assert "it cannot be paused" in fleet.here("pause", "s", status=1).err


def test_a_hard_cancel_ends_what_runs(busy: Fleet, tmp_path: Path) -> None:
    busy.submit("slow.py", "slow-5", "--input", f"until={tmp_path}/go")
    until(lambda: busy.status("slow-5").running == 1)

    assert "1 task still running, and told (--hard ends them)" in busy.here("cancel", "slow-5").err
    busy.here("cancel", "slow-5", "--hard")

    assert busy.status("slow-5").running == 0
    busy("submit", "etl.py", "--wait")  # by a new process: nobody has opened the gate


def test_a_completed_session_cannot_be_cancelled(busy: Fleet) -> None:
    busy("submit", "etl.py", "--session", "s-6", "--wait")

    assert (
        "session s-6 is completed; it cannot be cancelled" in busy.here("cancel", "s-6", status=1).err.lower()
    )


# --- graflow-ckpt failed ----------------------------------------------------------------


# The session goes on without the task that fails.
LENIENT = """
from graflow_ckpt import task, workflow

with workflow("lenient") as ctx:

    @task
    def fine():
        return 1

    @task(max_retries=0)
    def broken():
        raise ArithmeticError("seven is odd")

    (fine | broken).best_effort()
    ctx.execute()
"""


@pytest.fixture
def failed(busy: Fleet, own_folder: Path) -> str:
    """A session whose task `enrich` has failed; it will not when there is a file `mended`."""
    busy.server.ask("FLUSHALL")
    busy("submit", "etl.py", "--session", "s", "--input", f"mended={own_folder}/mended", "--wait", status=1)
    return "s"


def test_a_failed_task_is_listed_with_its_error_and_what_can_be_done(busy: Fleet, failed: str) -> None:
    head, row = busy("failed", "list").out.splitlines()

    assert head.split() == ["SESSION", "TASK", "ERROR", "ATTEMPTS", "ENDED", "THEN", "MESSAGE"]
    assert row.split()[:4] == ["s", "enrich", "ValueError", "1"]
    assert "requeue" in row
    assert "no file" in row


def test_tracebacks_are_shown_if_they_are_asked_for(busy: Fleet, failed: str) -> None:
    told = busy.here("failed", "list", "--session", "s", "--traceback").out

    assert told.startswith("s  enrich (attempt 1): ValueError: no file")
    assert "etl.py" in told
    assert "raise ValueError" in told


def test_as_json_a_failure_is_a_document(busy: Fleet, failed: str) -> None:
    (found,) = busy.here("failed", "list", "--json").document

    assert (found["task"], found["type"], found["then"]) == ("enrich", "ValueError", "requeue")
    assert (found["status"], found["workflow"], found["attempts"]) == ("failed", "etl", 1)
    assert found["ended"] > 0
    assert "traceback" not in found
    assert "traceback" in busy.here("failed", "list", "--traceback", "--json").document[0]


def test_failures_can_be_chosen_and_are_limited(busy: Fleet, failed: str) -> None:
    program("lenient.py", LENIENT)
    busy("submit", "lenient.py", "--wait")

    assert busy.here("failed", "list", "--task", "enrich", "--json").document[0]["session"] == "s"
    assert busy.here("failed", "list", "--task", "none", "--json").document == []
    done = busy.here("failed", "list", "--limit", "1")
    assert len(done.out.splitlines()) == 2
    assert "There are more than 1" in done.err


def test_what_the_session_went_on_without_is_listed_and_cannot_run_again(busy: Fleet, failed: str) -> None:
    program("lenient.py", LENIENT)
    busy("submit", "lenient.py", "--session", "lenient", "--wait")

    (row,) = busy.here("failed", "list", "--session", "lenient", "--json").document

    assert (row["task"], row["type"], row["message"]) == ("broken", "ArithmeticError", "seven is odd")
    assert (row["then"], row["attempts"]) == ("gone", None)
    told = busy.here("failed", "requeue", "lenient", "broken", status=1).err
    assert "what it was called with is not kept" in told


def test_what_has_failed_runs_again_and_the_session_goes_on(
    busy: Fleet, failed: str, own_folder: Path
) -> None:
    (own_folder / "mended").touch()

    told = busy("failed", "requeue", "s").err

    assert "session s goes on with 1 task: enrich" in told
    assert "completed after 4 steps" in busy("wait", "s").err
    assert "Nothing has failed" in busy.here("failed", "list").err


def test_a_task_can_be_named(busy: Fleet, failed: str, own_folder: Path) -> None:
    (own_folder / "mended").touch()

    found = busy("failed", "requeue", "s", "enrich", "--json").document

    assert (found["session"], found["requeued"]) == ("s", ["enrich"])
    assert found["status"] in ("running", "completed")  # the workers may be through already


def test_what_has_not_failed_is_not_requeued(busy: Fleet, failed: str) -> None:
    told = busy.here("failed", "requeue", "s", "clean", status=1).err
    assert "Task 'clean' of session s has not failed" in told
    assert "Failed have: enrich" in told

    busy("submit", "etl.py", "--session", "fine", "--wait")
    assert "no failed task that could run again" in busy.here("failed", "requeue", "fine", status=1).err


# --- checkpoints of a fleet's sessions from the command line ----------------------------


# Two tasks; the second adds a line to a file when it runs.
PAIR = """
import os
from graflow_ckpt import task, workflow

with workflow("pair") as ctx:

    @task
    def first(log=""):
        return log

    @task
    def second(first):
        if first:
            with open(first, "a") as lines:
                lines.write("second\\n")
        return 2

    first >> second
    ctx.execute()
"""

# Kills its worker in its first attempt, and is not to run again without a word.
CHARGE = """
import os, signal
from graflow_ckpt import task, workflow

with workflow("charge") as ctx:

    @task(on_interrupted="ask")
    def charge(killed):
        if not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return "charged"

    ctx.execute()
"""


@pytest.fixture
def stopped(busy: Fleet, own_folder: Path) -> str:
    """A session that has stopped after its first task."""
    program("pair.py", PAIR)
    session = own_folder.name[:40].strip("_")
    log = f"log={own_folder}/log"
    busy("submit", "pair.py", "--session", session, "--input", log, "--max-steps", "1", "--wait")
    return session


def goes_on(busy: Fleet, session: str, *how: str) -> None:
    busy("resume", *how, "--max-steps", "5")
    assert "completed after 2 steps" in busy.here("wait", session).err


def test_a_checkpoint_is_taken_from_outside_and_its_path_printed(busy: Fleet, stopped: str) -> None:
    done = busy("checkpoints", "take", stopped)
    portable = busy.here("checkpoints", "take", stopped, "--portable", "--json").document

    assert done.out.startswith(f"{busy.shown}/session_{stopped}_step_1_")
    assert (portable["steps"], portable["portable"]) == (1, True)
    listed = busy.here("checkpoints", "list", stopped, "--store", busy.url, "--json").document
    assert {row["path"] for row in listed} == {done.out.strip(), portable["path"]}


def test_a_session_goes_back_to_a_portable_checkpoint_or_another_begins_there(
    busy: Fleet, stopped: str, own_folder: Path
) -> None:
    path = busy.here("checkpoints", "take", stopped, "--portable").out.strip()
    goes_on(busy, stopped, stopped)

    goes_on(busy, stopped, path, "--rewind")
    goes_on(busy, f"{stopped}-2", path, "--fork", f"{stopped}-2")

    assert (own_folder / "log").read_text() == "second\n" * 3


def test_modules_of_a_checkpoint_are_looked_for_in_the_working_folder(busy: Fleet) -> None:
    program("here_only.py", PAIR.replace("    ctx.execute()\n", ""))
    busy("submit", "here_only:ctx", "--session", "module")
    path = busy.here("checkpoints", "take", "module", "--portable").out.strip()

    done = ended([SCRIPT, "resume", path, "--fork", "module-2"], 0, "", busy.environment)

    assert "session module-2 begins at step 0" in done.err


def test_a_portable_checkpoint_may_lie_in_a_folder(busy: Fleet, stopped: str, own_folder: Path) -> None:
    busy.here("checkpoints", "take", stopped, "--portable", "--path", f"{own_folder}/kept/cut.pkl")
    busy.here("sessions", "purge", stopped, "--yes")

    told = busy("resume", "kept/cut.pkl", "--rewind", "--max-steps", "5").err

    assert f"session {stopped} is back at step 1: kept/cut.pkl" in told
    assert "completed after 2 steps" in busy.here("wait", stopped).err


def test_who_goes_back_needs_the_values(busy: Fleet, stopped: str) -> None:
    path = busy.here("checkpoints", "take", stopped).out.strip()

    for how in (["--rewind"], ["--fork", "other"]):
        told = busy("resume", path, *how, status=1).err
        assert "holds no values" in told
        assert f"graflow-ckpt checkpoints take {stopped} --portable" in told


def test_a_session_of_this_process_goes_on_on_a_fleet_as_another_one(busy: Fleet, own_folder: Path) -> None:
    program("pair.py", PAIR)
    busy("run", "pair.py", "--session", "here", "--input", f"log={own_folder}/log", "--max-steps", "1")
    path = checkpoints("here")[-1]

    told = busy("resume", path, "--url", busy.url, status=2).err
    assert "goes to a fleet as another one: --fork NEW-ID" in told

    goes_on(busy, "there", path, "--fork", "there", "--url", busy.url)
    assert (own_folder / "log").read_text() == "second\n"


# --- in doubt ----------------------------------------------------------------------------


def test_a_task_that_somebody_has_to_decide_on_waits_for_an_answer(busy: Fleet, own_folder: Path) -> None:
    program("charge.py", CHARGE)
    killed = f"killed={own_folder}/killed"
    done = busy("submit", "charge.py", "--session", "doubt", "--input", killed, "--wait", status=3)
    assert "InDoubt" in done.err

    asked = busy("resume", "doubt", status=3).err
    assert "--in-doubt TASK=rerun" in asked
    told = busy("resume", "doubt", "--in-doubt", "other=skip", status=1).err
    assert "Task 'other' of session doubt does not wait for an answer" in told

    busy("resume", "doubt", "--in-doubt", "charge=rerun")
    assert "completed after 1 step" in busy.here("wait", "doubt").err
    assert busy.client.session("doubt").result() == "charged"
