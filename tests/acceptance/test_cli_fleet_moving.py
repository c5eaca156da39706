"""Checkpoints of a fleet's sessions from the command line: taken, gone back to, gone on with elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.command_line import checkpoints, ended, program
from tests.acceptance.fleet_line import SCRIPT, Fleet

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
