"""graflow-ckpt resume: go on with a session, or from one checkpoint."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from tests.acceptance.command_line import (
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


def test_the_journal_counts_also_if_the_program_is_gone() -> None:
    run_count("--session", "s", "--durability", "journal", "--", "4", status=KILLED)
    Path("count.py").unlink()

    assert "continues from step 4" in graflow("resume", "s").err
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
