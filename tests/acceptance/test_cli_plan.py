"""graflow-ckpt plan: what a resume would do, before anything is opened or run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command_line import CHAIN, KILLED, checkpoints, graflow, program, run_count

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

# Its value tells, by a file, whenever somebody opens the pickle that it is in.
TELLS = """
import os, signal
from graflow_ckpt import task, workflow

def opened(): open("opened", "w").close(); return Tells()

class Tells:
    def __reduce__(self): return opened, ()

with workflow("tells") as ctx:
    @task(inject_context=True)
    def first(context):
        print("a task runs")
        context.get_channel().set("tells", Tells())
        context.checkpoint()

    @task
    def second(first):
        if not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    first >> second
    print("before")
    ctx.execute()
"""


@pytest.fixture
def failed() -> None:
    """A chain whose second task has failed."""
    program("chain.py", CHAIN)
    Path("second.fails").touch()
    graflow("run", "chain.py", "--session", "s", status=1)


def rows(document: Any) -> list[tuple[str, str, str]]:
    return [(row["task"], row["verdict"], row["state"]) for row in document["tasks"]]


@pytest.mark.usefixtures("failed")
def test_a_plan_says_per_task_what_a_resume_will_do() -> None:
    done = graflow("plan", "s")

    assert [line.split()[:3] for line in done.out.splitlines()] == [
        ["TASK", "VERDICT", "STATE"],
        ["first", "reuse", "completed"],
        ["second", "run", "failed"],
    ]
    assert "session s (chain), failed at step 1" in done.err
    document = graflow("plan", "s", "--json").document
    assert rows(document) == [("first", "reuse", "completed"), ("second", "run", "failed")]
    assert document["refused"] is False


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize("what", [["chain"], [], ["chain.py", "--session", "s"], ["--session", "s"]])
def test_what_a_plan_is_about_is_found_like_what_is_resumed(what: list[str]) -> None:
    assert "1 reuse, 1 run" in graflow("plan", *what).err


@pytest.mark.usefixtures("failed")
def test_a_plan_that_would_be_refused_has_status_1_and_says_what_to_do() -> None:
    program("chain.py", CHAIN.replace("return 1", "return 10"))

    refused = graflow("plan", "s", status=1)
    assert "a resume is refused because of: first" in refused.err
    assert "--changed=rerun" in refused.err
    assert "changed since it completed" in refused.out
    assert graflow("plan", "s", "--json", status=1).document["refused"] is True

    assert rows(graflow("plan", "s", "--changed", "reuse", "--json").document)[0][1] == "reuse"
    assert rows(graflow("plan", "s", "--changed", "rerun", "--json").document)[0][1] == "run again"


@pytest.mark.usefixtures("failed")
def test_what_a_plan_says_is_what_a_resume_does() -> None:
    program("chain.py", CHAIN.replace("return 1", "return 10"))
    Path("second.fails").unlink()

    refused = graflow("resume", "s", status=1)
    assert "first (changed" in refused.err
    assert refused.out == ""

    assert graflow("resume", "s", "--changed", "rerun").out == "first runs\nsecond runs\nresult 11\n"


@pytest.mark.usefixtures("failed")
def test_another_program_can_be_planned_against() -> None:
    program(
        "other.py",
        CHAIN.replace(
            "first >> second", "third = task(id='third')(lambda second: 3)\n    first >> second >> third"
        ),
    )

    document = graflow("plan", "other.py", "--session", "s", "--json").document

    assert rows(document)[-1] == ("third", "new", "")


def test_a_plan_opens_no_pickle_and_runs_no_task() -> None:
    program("tells.py", TELLS)
    graflow("run", "tells.py", "--session", "s", status=KILLED)
    Path("opened").unlink(missing_ok=True)
    before = sorted(Path("checkpoints").iterdir())

    done = graflow("plan", "s")

    assert not Path("opened").exists()
    assert "a task runs" not in done.out + done.err
    assert "before" in done.err  # what the program prints is not part of the plan
    assert sorted(Path("checkpoints").iterdir()) == before
    graflow("resume", "s")
    assert Path("opened").exists(), "the value tells when it is opened"


def test_a_plan_reads_the_journal_without_opening_a_pickle() -> None:
    program("tells.py", TELLS.replace("context.checkpoint()", ""))
    graflow("run", "tells.py", "--session", "s", "--durability", "journal", status=KILLED)
    Path("opened").unlink(missing_ok=True)

    document = graflow("plan", "s", "--json").document

    assert document["journal_records"] > 0
    assert rows(document) == [("first", "reuse", "completed"), ("second", "run", "running")]
    assert not Path("opened").exists()


def test_a_plan_of_a_checkpoint_is_of_that_one() -> None:
    run_count("--session", "s", "--every", "2", "--", "4", status=KILLED)

    document = graflow("plan", checkpoints("s")[0], "--json").document

    assert (document["steps"], document["status"]) == (2, "interrupted")


def test_a_plan_of_a_checkpoint_leaves_the_journal_out() -> None:
    run_count("--session", "s", "--durability", "journal", "--", "4", status=KILLED)

    document = graflow("plan", checkpoints("s")[0], "--json").document

    assert (document["steps"], document["journal_records"]) == (0, 0)
    assert graflow("plan", "s", "--json").document["steps"] == 4


@pytest.mark.usefixtures("failed")
def test_without_its_program_a_plan_is_of_the_code_in_the_checkpoint() -> None:
    Path("chain.py").unlink()

    done = graflow("plan", "s")

    assert "chain.py is gone: a resume runs the code in the checkpoint" in done.err
    assert "1 reuse, 1 run" in done.err


@pytest.mark.usefixtures("failed")
def test_a_program_that_does_not_come_to_its_workflow_has_no_plan() -> None:
    program("chain.py", "import sys; sys.exit(0)")

    assert "ended before it executed workflow 'chain'" in graflow("plan", "s", status=1).err
    graflow("plan", "chain.py", status=2)


SETS = """
from graflow_ckpt import task, workflow
with workflow("sets", session_id="s") as ctx:
    @task
    def show(n): raise ValueError(n)
    ctx.get_channel().set("n", 3)
    ctx.execute()
"""


def test_a_program_that_sets_values_before_it_executes_touches_no_session_either() -> None:
    program("sets.py", SETS)
    graflow("run", "sets.py", status=1)
    before = {path: path.read_bytes() for path in Path("checkpoints").iterdir()}

    assert "1 task: 1 run" in graflow("plan", "s").err
    assert {path: path.read_bytes() for path in Path("checkpoints").iterdir()} == before
