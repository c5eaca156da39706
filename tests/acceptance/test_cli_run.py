"""graflow-ckpt run: a program under a session, from its first start to its last."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.acceptance.command_line import (
    CHAIN,
    COUNT,
    KILLED,
    checkpoints,
    graflow,
    inside,
    program,
    python,
    run_count,
    steps,
)

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

PLACE = """
import json, os, sys, inspect
import beside
def here(): pass
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0], "doc": __doc__,
    "main": sys.modules["__main__"].here is here, "spec": __spec__, "package": __package__,
    "source": inspect.getsource(here), "beside": beside.X, "module": here.__module__,
}))
"""

SHAPES = """
from graflow_ckpt import task, workflow

class Shape:
    def __init__(self, sides): self.sides = sides

with workflow("shapes") as ctx:
    @task(inject_context=True)
    def make(context):
        context.get_channel().set("shape", Shape(3))
        context.checkpoint()
        return Shape(4)

    @task(inject_context=True)
    def look(context, make):
        import os
        if not os.path.exists("mended"): raise ValueError("not yet")
        shape = context.get_channel().get("shape")
        return [type(shape) is Shape, shape.sides, type(make) is Shape, make.sides]

    make >> look
    print(ctx.execute())
"""


# --- one program -----------------------------------------------------------------------------


def test_a_file_is_the_program_that_python_would_run(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("X = 1")
    program("sub/place.py", PLACE)
    os.symlink("sub/place.py", "link.py")

    for name in ("sub/place.py", "link.py"):
        by_python = python(name, "-x", "--", "y").out
        by_graflow = graflow("run", name, "--", "-x", "--", "y", status=None).out
        assert json.loads(by_graflow) == json.loads(by_python)


def test_values_of_classes_of_the_program_come_back_as_these_classes() -> None:
    program("shapes.py", SHAPES)
    graflow("run", "shapes.py", "--session", "s", status=1)
    Path("mended").touch()

    assert graflow("run", "shapes.py", "--session", "s").out == "[True, 3, True, 4]\n"
    assert python("shapes.py").out == "[True, 3, True, 4]\n"


def test_the_exit_status_of_a_program_is_kept() -> None:
    program("exit.py", "import sys; sys.exit(7)")
    program("says.py", "import sys; sys.exit('so it is')")

    assert graflow("run", "exit.py", status=7).err == ""
    assert graflow("run", "says.py", status=1).err == "so it is\n"


def test_what_a_program_raises_is_shown_as_python_shows_it() -> None:
    program("raises.py", "def f():\n    raise KeyError('mine')\nf()\n")

    assert graflow("run", "raises.py", status=1).err == python("raises.py", status=1).err


def test_what_a_program_prints_is_all_of_standard_output() -> None:
    done = run_count("--session", "s")

    assert done.out == "result 6\n"
    assert done.err.startswith("graflow-ckpt: session s (count): new; ")


def test_a_program_that_executes_no_workflow_is_told_so() -> None:
    program("none.py", "x = 1")

    assert "none.py executed no workflow" in graflow("run", "none.py", status=2).err


@pytest.mark.parametrize("target", ["missing.py", "no/such.py", "no_such_module", "json.no_such"])
def test_a_program_that_is_not_there_is_a_usage_error(target: str) -> None:
    done = graflow("run", target, status=2)

    assert "Traceback" not in done.err
    assert target in done.err


# --- sessions --------------------------------------------------------------------------------


def test_killed_and_typed_again_it_goes_on_from_its_newest_checkpoint() -> None:
    program("count.py", COUNT)
    command = ("run", "count.py", "--session", "s", "--every", "2", "--", "4")

    graflow(*command, status=KILLED)
    again = graflow(*command)

    newest = checkpoints("s")[1]
    assert "session s continues from step 4: 1 of 1 task completed, saved " in again.err
    assert f" ago ({newest})" in again.err
    assert again.out == "result 6\n"
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


def test_a_session_that_has_kept_nothing_names_no_command_to_resume_it() -> None:
    killed = run_count("--session", "s", "--", "3", status=KILLED)

    assert "session s (count): new; nothing is saved before its first checkpoint" in killed.err
    assert "graflow-ckpt resume" not in killed.err
    assert graflow("run", "count.py", "--session", "s").out == "result 6\n"


def test_without_a_session_each_run_is_new_and_says_how_to_resume_it() -> None:
    killed = run_count("--every", "1", "--", "3", status=KILLED)
    assert re.search(r"session (\w+) \(count\): new; ", killed.err)

    fresh = graflow("run", "count.py", "--", "-")
    said = r"session (\w+) of count is interrupted at step 3; to go on with it: (graflow-ckpt resume \w+)"
    found = re.search(said, fresh.err)
    assert found is not None
    assert fresh.out == "result 6\n"

    done = graflow(*found[2].split()[1:])
    assert "continues from step 3" in done.err
    assert done.out == "result 6\n"


def test_a_named_session_mentions_no_other_one() -> None:
    run_count("--every", "1", "--", "3", status=KILLED)

    assert " of count is interrupted" not in graflow("run", "count.py", "--session", "s").err


def test_resume_never_and_must_are_kept_to() -> None:
    program("count.py", COUNT)

    assert (
        "NoSession"
        in graflow("run", "count.py", "--session", "s", "--resume", "must", "--json", status=1).out
    )
    graflow("run", "count.py", "--session", "s", "--resume", "never")
    refused = graflow("run", "count.py", "--session", "s", "--resume", "never", status=1).err
    assert "Session s exists already" in refused
    graflow("run", "count.py", "--resume", "must", status=2)


def test_a_run_that_reaches_max_steps_says_so_and_takes_a_larger_limit() -> None:
    stopped = run_count("--session", "s", "--max-steps", "4")
    assert "max_steps=4 reached" in stopped.err
    command = re.search(r"graflow-ckpt (resume s --max-steps \d+)", stopped.err)
    assert command is not None

    assert graflow(*command[1].split()).out == "result 6\n"
    assert steps() == [0, 1, 2, 3, 4, 5]


def test_inputs_are_json_or_text_and_reach_parameters_and_channel() -> None:
    program(
        "inputs.py",
        """
from graflow_ckpt import task, workflow
with workflow("inputs") as ctx:
    @task(inject_context=True)
    def show(context, n, name, missing="default"):
        return [n, name, missing, context.get_channel().get("more")]
    print(ctx.execute())
""",
    )

    command = ("run", "inputs.py", "--session", "s", "--input", "n=[1, 2]", "--input", "name=x y")
    assert graflow(*command, "--input", 'more={"a": null}').out == "[[1, 2], 'x y', 'default', {'a': None}]\n"


def test_other_inputs_on_resume_are_refused() -> None:
    program("count.py", COUNT)
    command = ("run", "count.py", "--session", "s", "--input")
    graflow(*command, "limit=5", "--", "3", status=KILLED)
    graflow(*command, "limit=5", "--max-steps", "2")
    Path("steps.log").unlink()

    refused = graflow(*command, "limit=6", status=1)

    assert "started with another input 'limit'" in refused.err
    assert "Traceback" not in refused.err
    assert not Path("steps.log").exists()
    graflow(*command, "limit=5", "--max-steps", "9")


def test_every_counts_steps_and_seconds() -> None:
    run_count("--session", "steps", "--every", "3")
    graflow("run", "count.py", "--session", "time", "--every", "0.001ms")
    graflow("run", "count.py", "--session", "both", "--every", "6", "--every", "1h")

    assert len(checkpoints("steps")) == 3  # at 3, at 6, and at the end
    assert len(checkpoints("time")) > 1
    assert len(checkpoints("both")) == 2


def test_where_checkpoints_go_can_be_said() -> None:
    done = run_count("--session", "s", "--store", "else where", "--max-steps", "1")

    assert not checkpoints()
    assert "graflow-ckpt resume s --store 'else where' --max-steps" in done.err
    assert inside("sessions", "--store", "else where", "--json").document[0]["session"] == "s"


# --- modules ---------------------------------------------------------------------------------

FLOWS = """
from graflow_ckpt import task, workflow

with workflow("morning") as early:
    @task
    def coffee(): return "coffee"

with workflow("evening") as late:
    @task
    def tea(): return "tea"
"""


@pytest.mark.parametrize(("target", "workflow"), [("flows:early", "morning"), ("flows:evening", "evening")])
def test_the_workflow_of_a_module_is_chosen_by_variable_or_name(target: str, workflow: str) -> None:
    program("flows.py", FLOWS)

    graflow("run", target, "--session", "s")

    assert [row["workflow"] for row in inside("sessions", "--json").document] == [workflow]


@pytest.mark.parametrize("target", ["flows", "flows:noon"])
def test_without_a_choice_between_several_the_names_are_told(target: str) -> None:
    program("flows.py", FLOWS)

    assert "(it has: evening, morning)" in graflow("run", target, status=2).err


def test_the_only_workflow_of_a_module_needs_no_name_and_can_be_resumed() -> None:
    program("one.py", COUNT.replace('print("result", ctx.execute())', ""))
    graflow("run", "one", "--session", "s", "--every", "2", "--", "4", status=KILLED)

    assert "continues from step 4" in graflow("resume", "s").err
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


def test_a_module_that_executes_its_workflow_itself_is_not_executed_twice() -> None:
    program("count.py", COUNT)

    graflow("run", "count")

    assert len(steps()) == 6


# --- failures --------------------------------------------------------------------------------


def test_a_task_that_fails_shows_its_own_frames_and_the_command_that_resumes() -> None:
    program("chain.py", CHAIN)
    Path("second.fails").touch()

    failed = graflow("run", "chain.py", "--session", "s", status=1)

    trace = failed.err[failed.err.index("Traceback") :]
    assert re.findall(r'File ".*?([^/]+)", line \d+, in (\S+)', trace) == [
        ("chain.py", "<module>"), ("chain.py", "second"), ("chain.py", "risky"),
    ]  # fmt: skip
    assert trace.endswith("ZeroDivisionError: second\nSession s can go on: graflow-ckpt resume s\n")


def test_an_error_of_the_engine_is_one_message_with_what_to_do() -> None:
    program("chain.py", CHAIN.replace("def second(first)", "def second(nobody)"))

    failed = graflow("run", "chain.py", status=1)
    assert "Traceback" not in failed.err
    assert "error: " in failed.err
    assert "nobody" in failed.err
    assert "chain.py:" in failed.err  # where to mend it

    assert "Traceback" in graflow("run", "chain.py", "--traceback", status=1).err


def test_a_task_in_doubt_asks_and_takes_the_answer() -> None:
    program(
        "pay.py",
        """
import os, signal
from graflow_ckpt import task, workflow
with workflow("pay") as ctx:
    @task(on_interrupted="ask")
    def pay():
        if not os.path.exists("paid"):
            open("paid", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return "paid again"
    @task
    def bill(pay): return f"bill: {pay}"
    pay >> bill
    print(ctx.execute())
""",
    )
    command = ("run", "pay.py", "--session", "s", "--durability", "journal")
    graflow(*command, status=KILLED)

    asked = graflow(*command, status=3)
    assert "pay" in asked.err
    assert "--in-doubt" in asked.err

    assert graflow(*command, "--in-doubt", "pay=rerun").out == "bill: paid again\n"


# --- JSON --------------------------------------------------------------------------------------


def test_with_json_standard_output_has_documents_only() -> None:
    program("loud.py", COUNT + "\nimport os; os.system('echo from a child')\n")

    done = graflow("run", "loud.py", "--session", "s", "--json", "--every", "3")

    kinds = [document["event"] for document in done.documents]
    assert kinds[0] == "session_started"
    assert kinds.count("task_ended") == 6
    assert kinds.count("checkpoint_saved") == 3
    assert kinds[-2:] == ["session_ended", "exit"]
    assert done.documents[-1]["code"] == 0
    assert done.documents[-1]["sessions"][0]["status"] == "completed"
    assert "result 6" in done.err
    assert "from a child" in done.err


def test_a_failure_as_json_says_what_it_was() -> None:
    program("chain.py", CHAIN)
    Path("first.fails").touch()

    last = graflow("run", "chain.py", "--json", status=1).documents[-1]

    assert (last["code"], last["error"], last["message"]) == (1, "ZeroDivisionError", "first")
    assert last["sessions"][0]["status"] == "failed"


def test_the_engines_log_is_shown_if_asked_for() -> None:
    program("count.py", COUNT)

    assert "INFO" not in graflow("run", "count.py", "--session", "a").err
    assert (
        "INFO graflow_ckpt.checkpoint: Checkpoint created"
        in graflow("run", "count.py", "--session", "b", "--log-level", "info").err
    )


def test_nothing_of_the_command_line_stays_on_the_path() -> None:
    program("path.py", "import sys; print(sys.path)")

    assert graflow("run", "path.py", status=None).out == python("path.py").out
