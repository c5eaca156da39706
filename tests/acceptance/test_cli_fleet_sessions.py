"""graflow-ckpt sessions, pause, resume, cancel and purge: sessions of a fleet beside those of a store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import ETL, Fleet
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


def test_store_and_url_are_two_questions(fleet: Fleet) -> None:
    told = fleet.here("sessions", "--url", fleet.url, "--store", "x", status=2).err

    assert "one of them" in told


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


@pytest.mark.parametrize("option", [["--rewind"], ["--fork", "x"]])
def test_who_goes_back_in_a_session_of_a_fleet_is_told_how(fleet: Fleet, option: list[str]) -> None:
    fleet.put("s")

    told = fleet.here("resume", "s", *option, status=2).err

    assert f"{option[0]} needs the path of a portable checkpoint: graflow-ckpt checkpoints take s" in told


@pytest.mark.parametrize("option", [["--changed", "rerun"], ["--take-over"]])
def test_what_is_about_a_run_here_is_refused_for_a_session_of_a_fleet(
    fleet: Fleet, option: list[str]
) -> None:
    fleet.put("s")

    assert f"{option[0]} is not for sessions of a fleet" in fleet.here("resume", "s", *option, status=2).err


def test_an_id_that_is_nowhere_is_looked_for_in_both_places_and_that_is_said(fleet: Fleet) -> None:
    fleet.put("somewhere")

    told = fleet.here("resume", "somewher", status=1).err

    assert f"no session somewher at {fleet.shown}" in told
    assert "neither a checkpoint nor a session nor a workflow in checkpoints" in told
    assert "Is somewhere meant?" in told


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
