"""graflow-ckpt resume and plan: continue a session, or from one checkpoint, and what that would do."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command_line import (
    CHAIN,
    COUNT,
    KILLED,
    checkpoints,
    ended,
    graflow,
    inside,
    program,
    run_count,
    steps,
)

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

# --- what X means ----------------------------------------------------------------------------


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("what", [["s"], ["count"], [], ["--latest"], ["count", "--latest"]])
def test_a_session_is_found_by_its_id_by_its_workflow_or_as_the_only_one(what: list[str]) -> None:
    done = graflow("resume", *what)

    assert "continues from step 4" in done.err
    assert done.out == "result 6\n"
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


@pytest.mark.usefixtures("killed")
def test_two_sessions_of_a_workflow_are_an_error_that_lists_both() -> None:
    Path("killed").unlink()
    graflow("run", "count.py", "--session", "t", "--every", "2", "--", "4", status=KILLED)

    several = graflow("resume", "count", status=1).err
    assert "session s of workflow count (interrupted, step 4)" in several
    assert "session t of workflow count (interrupted, step 4)" in several

    unnamed = graflow("resume", status=2).err
    assert "s (count, interrupted)" in unnamed
    assert "t (count, interrupted)" in unnamed

    assert "session t continues" in graflow("resume", "count", "--latest").err


def test_a_session_that_is_called_like_a_checkpoint_is_an_error_that_lists_both(killed: list[str]) -> None:
    for part in ("pkl", "state.json", "meta.json"):
        shutil.copy(f"{killed[-1].removesuffix('.pkl')}.{part}", f"s.{part}")

    both = graflow("resume", "s", "--json", status=1).document

    assert both["hits"] == ["checkpoint s.pkl", "session s"]


def test_what_is_not_there_is_one_clear_message() -> None:
    run_count("--session", "s", "--max-steps", "1")

    assert "It has: s." in graflow("resume", "nobody", status=1).err
    assert "There is no checkpoint checkpoints/x.pkl." in graflow("resume", "checkpoints/x.pkl", status=1).err
    assert "No session in empty can go on." in graflow("resume", "--store", "empty", status=1).err
    assert not Path("empty").exists()


# --- by session ------------------------------------------------------------------------------


@pytest.mark.usefixtures("killed")
def test_the_program_is_run_again_with_its_arguments_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path.cwd()
    program("count.py", COUNT + "\nprint(sys.argv[1:], sys.path[0])\n")
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "killed").touch()
    monkeypatch.chdir("elsewhere")

    done = graflow("resume", "s", "--store", here / "checkpoints")

    assert done.out == f"result 6\n['4'] {here}\n"


def test_a_finished_session_runs_nothing_not_even_its_program() -> None:
    run_count("--session", "s")

    done = graflow("resume", "s")

    assert done.out == ""
    assert "(6 steps); nothing is run; to run it again: graflow-ckpt run … --session s --again" in done.err


def test_durability_and_policy_of_the_run_are_those_of_the_resume() -> None:
    run_count("--session", "s", "--durability", "journal", "--", "2", status=KILLED)
    Path("killed").unlink()
    program("count.py", COUNT.replace("sys.argv[1:2] == [str(data)]", "data == 4"))

    again = graflow("resume", "s", status=KILLED)
    assert "and 3 journal records" in again.err
    assert "continues from step 4" in graflow("resume", "s").err, "nothing that was committed is lost"
    assert steps() == [0, 1, 2, 2, 3, 4, 4, 5]


@pytest.mark.usefixtures("killed")
def test_how_often_to_save_is_remembered_too() -> None:
    graflow("resume", "s", "--max-steps", "5")
    before = len(checkpoints("s"))

    graflow("resume", "s", "--max-steps", "9")

    assert len(checkpoints("s")) == before + 1  # at the end; the policy is due at step 7 only
    options = inside("checkpoints", "list", "s", "--limit", "1", "--json").document[0]["options"]
    assert options == {"every": "2"}


@pytest.mark.usefixtures("killed")
def test_if_the_program_is_gone_the_code_in_the_checkpoint_is_run() -> None:
    Path("count.py").unlink()
    program("sys.py", "")  # what the code names must not be taken from the folder
    Path("sys.py").unlink()

    done = graflow("resume", "s")

    assert "count.py is gone; the code in the checkpoint is run" in done.err
    assert "completed after 6 steps (2 in this run" in done.err
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


@pytest.mark.usefixtures("killed")
def test_a_program_that_no_longer_executes_the_workflow_is_told_so() -> None:
    program("count.py", COUNT.replace('workflow("count")', 'workflow("other")'))

    done = graflow("resume", "s", "--json", status=1)

    assert "did not execute workflow 'count'" in done.err
    assert done.documents[-1]["code"] == 1


TWO = """
from graflow_ckpt import task, workflow
import os

with workflow("one", session_id="first") as one:
    @task
    def a():
        print("a runs")
    one.execute()

with workflow("two", session_id="second") as two:
    @task
    def b():
        print("b runs")
        if os.path.exists("fails"): raise ValueError
    two.execute()
"""


def test_of_several_workflows_of_a_program_the_one_of_the_session_goes_on() -> None:
    program("two.py", TWO)
    Path("fails").touch()
    graflow("run", "two.py", status=1)
    Path("fails").unlink()

    done = graflow("resume", "second")

    assert done.out == "b runs\n"
    statuses = {row["session"]: row["status"] for row in inside("sessions", "--json").document}
    assert statuses == {"first": "completed", "second": "completed"}


# --- by path ---------------------------------------------------------------------------------


def test_the_newest_checkpoint_is_gone_on_from_by_its_path(killed: list[str]) -> None:
    assert "continues from step 4" in graflow("resume", killed[-1]).err


@pytest.mark.parametrize("suffix", ["", ".meta.json", ".state.json"])
def test_any_file_of_a_checkpoint_names_it(killed: list[str], suffix: str) -> None:
    path = killed[-1].removesuffix(".pkl") + suffix

    assert "continues from step 4" in graflow("resume", path).err


def test_a_session_that_has_gone_on_is_not_taken_back_by_chance(killed: list[str]) -> None:
    refused = graflow("resume", killed[0], status=1)

    assert killed[1] in refused.err
    assert "--rewind" in refused.err
    assert "--fork" in refused.err
    assert steps() == [0, 1, 2, 3, 4]


def test_a_journal_after_the_checkpoint_is_going_on_too() -> None:
    run_count("--session", "s", "--durability", "journal", "--", "4", status=KILLED)
    first = checkpoints("s")[0]

    assert "journal records" in graflow("resume", first, status=1).err
    assert "continues from step 0" in graflow("resume", first, "--rewind").err
    assert steps() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]


def test_a_rewound_session_goes_on_from_there_and_stays_there(killed: list[str]) -> None:
    done = graflow("resume", killed[0], "--rewind", "--max-steps", "3")
    assert "continues from step 2" in done.err
    assert steps() == [0, 1, 2, 3, 4, 2]

    assert "continues from step 3" in graflow("resume", "s", "--max-steps", "9").err
    assert steps() == [0, 1, 2, 3, 4, 2, 3, 4, 5]


def test_a_fork_is_another_session_and_leaves_the_first_alone(killed: list[str]) -> None:
    done = graflow("resume", killed[0], "--fork", "other")

    assert "session other continues from step 2" in done.err
    assert done.out == "result 6\n"
    rows = {row["session"]: (row["status"], row["steps"]) for row in inside("sessions", "--json").document}
    assert rows == {"s": ("interrupted", 4), "other": ("completed", 6)}
    assert "Session other exists already" in graflow("resume", "s", "--fork", "other", status=1).err


def test_a_fork_of_a_journaled_session_has_all_that_was_committed() -> None:
    run_count("--session", "s", "--durability", "journal", "--", "4", status=KILLED)

    assert "session other continues from step 4" in graflow("resume", "s", "--fork", "other").err
    assert "continues from step 4" in graflow("resume", "s").err


def test_a_fork_of_a_session_that_was_taken_back_keeps_all_of_its_own_checkpoints() -> None:
    """What the first session has gone back behind is nothing of the other one."""
    run_count("--session", "s", "--durability", "checkpoint", "--max-steps", "1")
    (first,) = checkpoints("s")
    for limit in ("2", "3", "4"):
        graflow("resume", "s", "--max-steps", limit)
    graflow("resume", first, "--rewind", "--max-steps", "2")
    inside("checkpoints", "fork", "s", "other")

    graflow("resume", "other", "--max-steps", "3")
    graflow("resume", "other", "--max-steps", "4")
    newest = checkpoints("other")[-1]
    Path(newest).write_bytes(Path(newest).read_bytes()[:-20])

    assert "session other continues from step 3" in graflow("resume", "other", "--max-steps", "9").err


def test_a_copy_elsewhere_is_run_with_its_own_code(killed: list[str]) -> None:
    os.mkdir("copy")
    for part in ("pkl", "state.json", "meta.json"):
        shutil.copy(f"{killed[1].removesuffix('.pkl')}.{part}", f"copy/best.{part}")

    done = graflow("resume", "copy/best.pkl")

    assert "the code in the checkpoint is run" in done.err
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


@pytest.mark.usefixtures("killed")
def test_rewind_needs_a_path_and_excludes_fork() -> None:
    graflow("resume", "s", "--rewind", status=2)
    graflow("resume", checkpoints("s")[0], "--rewind", "--fork", "x", status=2)


def test_a_damaged_checkpoint_names_the_newest_good_one(killed: list[str]) -> None:
    Path(killed[1]).write_bytes(Path(killed[1]).read_bytes()[:-20])

    refused = graflow("resume", killed[1], "--rewind", status=1)

    assert killed[0] in refused.err
    assert "Traceback" not in refused.err
    assert "continues from step 2" in graflow("resume", "s").err


@pytest.mark.parametrize("called", ["module:ctx", "module:count", "below/program.py"])
def test_modules_of_a_checkpoint_are_looked_for_where_its_program_found_them(called: str) -> None:
    os.mkdir("below")
    if called.startswith("module"):
        program("module.py", COUNT.replace('    print("result", ctx.execute())', ""))
    else:
        program("below/beside.py", "def limit(): return 6\n")
        program(called, f"import beside\n{COUNT}".replace("limit=6", "limit=6, more=beside.limit"))
    graflow("run", called, "--session", "s", "--every", "2", "--max-steps", "4")
    script = f"{sysconfig.get_path('scripts')}/graflow-ckpt"  # its own folder is the first on its path

    done = ended([script, "resume", checkpoints("s")[0], "--fork", "t", "--max-steps", "9"], 0, "", {})

    assert "session t: completed after 6 steps" in done.err


# --- graflow-ckpt plan ------------------------------------------------------------------


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
