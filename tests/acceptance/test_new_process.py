"""A new process continues: tasks of `__main__`, of modules, closures, lambdas, made at run time, typed in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, WorkflowEngine, task, workflow
from graflow_ckpt.core.errors import CheckpointError
from tests.acceptance.processes import LONG, run, written

MAIN = """
import sys
from graflow_ckpt import task, workflow

class Model:
    def __init__(self):
        self.weights = [0]

@task(inject_context=True)
def make(context):
    print("ran make")
    context.get_channel().set("model", Model())
    return Model()

@task(inject_context=True)
def train(context, make):
    if FAILS in sys.argv:
        raise RuntimeError("not yet")
    model = context.get_channel().get("model")
    assert type(model) is Model and type(make) is Model
    model.weights.append(1)

@task(inject_context=True)
def show(context):
    return context.get_channel().get("model").weights

FAILS = "fail"
"""
IN_MAIN = MAIN + (
    "with workflow('w', session_id='s') as flow:\n"
    "    make >> train >> show\n"
    "    print('result:', flow.execute())\n"
)
IN_A_MODULE = (
    "from graflow_ckpt import workflow\n"
    "from tasks import make, show, train\n"
    "with workflow('w', session_id='s') as flow:\n"
    "    make >> train >> show\n"
    "    print('result:', flow.execute())\n"
)
CLOSURES = """
import sys
from graflow_ckpt import task, workflow

def build(start, step):
    def count(data=start):
        print("ran", data)
        return data
    def fail():
        if "fail" in sys.argv:
            raise RuntimeError("not yet")
    with workflow("w", session_id="s") as flow:
        first = task(id="first")(count)
        second = task(id="second")(fail)
        third = task(id="third")(lambda first: first + step)
        first >> second
        first >> third
        second >> third
    return flow

print("result:", build(40, 2).execute())
"""


@pytest.mark.parametrize("where", ["main", "module"])
def test_a_new_process_goes_on_and_finds_its_classes(tmp_path: Path, where: str) -> None:
    program = written(IN_MAIN if where == "main" else IN_A_MODULE)
    (tmp_path / "tasks.py").write_text(MAIN)

    first = run(program, "fail", status=1)
    second = run(program)
    third = run(program)

    assert "ran make" in first
    assert "RuntimeError: not yet" in first
    assert "graflow-ckpt resume s" in first
    assert "ran make" not in second
    assert "result: [0, 1]" in second
    assert "result: [0, 1]" in third


def test_closures_and_lambdas_go_on_in_a_new_process() -> None:
    program = written(CLOSURES)

    first = run(program, "fail", status=1)
    second = run(program)

    assert "ran 40" in first
    assert "ran" not in second
    assert "result: 42" in second


@pytest.mark.parametrize("source", [IN_MAIN, CLOSURES], ids=["main", "closures"])
def test_a_checkpoint_goes_on_when_its_program_is_gone(tmp_path: Path, source: str) -> None:
    program = written(source)
    run(program, "fail", status=1)
    program.unlink()
    resume = tmp_path / "resume.py"
    resume.write_text(
        "from graflow_ckpt import CheckpointManager, WorkflowEngine\n"
        "context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest('s'))\n"
        "print('result:', WorkflowEngine().execute(context))\n"
    )

    said = run(resume)

    assert "ran" not in said
    assert "result: [0, 1]" in said or "result: 42" in said


def test_a_class_of_main_is_found_when_the_program_is_gone(tmp_path: Path) -> None:
    program = written(IN_MAIN)
    run(program)
    program.unlink()
    look = tmp_path / "look.py"
    look.write_text(
        "from graflow_ckpt import CheckpointManager\n"
        "context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest('s'))\n"
        "print(context.get_channel().get('model').weights)\n"
    )

    assert "[0, 1]" in run(look)


def test_tasks_made_at_run_time_are_there_again_in_a_new_process() -> None:
    program = written(
        "import sys\n"
        "from graflow_ckpt import task, workflow\n"
        "with workflow('w', session_id='s') as flow:\n"
        "    @task(inject_context=True)\n"
        "    def spawn(context):\n"
        "        print('ran spawn')\n"
        "        for n in range(3):\n"
        "            def part(n=n):\n"
        "                if n == 1 and 'fail' in sys.argv: raise RuntimeError('not yet')\n"
        "                return n\n"
        "            context.next_task(task(id=f'part{n}')(part), before='join')\n"
        "    @task(inject_context=True)\n"
        "    def join(context):\n"
        "        return [context.get_result(f'part{n}') for n in range(3)]\n"
        "    spawn >> join\n"
        "    print('result:', flow.execute('spawn'))\n"
    )

    run(program, "fail", status=1)
    said = run(program)

    assert "ran spawn" not in said
    assert "result: [0, 1, 2]" in said


def test_code_that_has_no_pickle_is_told_of_at_the_start_and_refused_when_it_is_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import threading

    lock = threading.Lock()

    with workflow("w", session_id="s") as flow:

        @task
        def locked() -> bool:
            with lock:
                raise OSError("not yet")

        with pytest.raises(OSError, match="not yet"):
            flow.execute()

    assert "locked is kept by name only" in caplog.text
    context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s"))
    with pytest.raises(
        CheckpointError, match="The code of task 'locked' is not in the checkpoint"
    ) as refused:
        WorkflowEngine().execute(context)
    assert "Resume from the program that defines it" in str(refused.value)


# --- notebooks: a running loop, functions typed into __main__, no file behind them ------


DEFINE = """
from graflow_ckpt import task, workflow, CheckpointManager, WorkflowEngine
import os, sys

class Model:
    def __init__(self):
        self.weights = [0]

@task(inject_context=True)
def make(context):
    context.get_channel().set("model", Model())

@task
async def wait(make):
    return "waited"

@task(inject_context=True)
def train(context, wait):
    if os.path.exists("fail"):
        raise RuntimeError("not yet")
    context.get_channel().get("model").weights.append(1)
    return context.get_channel().get("model").weights

def build():
    with workflow("w", session_id="s") as flow:
        make >> wait >> train
    return flow
"""


def interactive(*cells: str) -> str:
    """What an interactive interpreter says to these cells, compiled without a file like a notebook's."""
    lines = [
        f"exec(compile({cell!r}, '<cell {number}>', 'exec'), globals())" for number, cell in enumerate(cells)
    ]
    done = subprocess.run(
        [sys.executable, "-q", "-i"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    return done.stdout + done.stderr


def test_functions_typed_in_are_run_saved_and_resumed_in_a_new_interpreter() -> None:
    first = interactive(DEFINE, "open('fail', 'w').close()", "build().execute()")
    assert "RuntimeError: not yet" in first

    second = interactive(DEFINE, "os.remove('fail')", "print('result:', build().execute())")

    assert "result: [0, 1]" in second


def test_what_was_typed_in_goes_on_from_the_checkpoint_alone() -> None:
    interactive(DEFINE, "open('fail', 'w').close()", "build().execute()")

    second = interactive(
        "import os; os.remove('fail')",
        "from graflow_ckpt import CheckpointManager, WorkflowEngine",
        "context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest('s'))",
        "print('result:', WorkflowEngine().execute(context))",
    )

    assert "result: [0, 1]" in second


def test_a_cell_that_is_run_again_in_the_same_interpreter_goes_on() -> None:
    said = interactive(
        DEFINE,
        "open('fail', 'w').close()",
        "build().execute()",
        "os.remove('fail')",
        "print('result:', build().execute())",
    )

    assert "result: [0, 1]" in said


def test_execute_and_aexecute_work_in_the_running_loop_of_a_notebook() -> None:
    said = interactive(
        DEFINE,
        "import asyncio\n"
        "async def cell():\n"
        "    print('result:', build().execute())\n"
        "    flow = workflow('again')\n"
        "    flow.add(make >> wait >> train)\n"
        "    print('awaited:', await flow.aexecute())\n"
        "asyncio.run(cell())\n",
    )

    assert "result: [0, 1]" in said
    assert "awaited: [0, 1]" in said


def test_a_process_of_its_own_runs_functions_that_were_typed_in() -> None:
    said = interactive(
        "from graflow_ckpt import task, workflow\n"
        "import os\n"
        "def twice(x):\n"
        "    return 2 * x\n"
        "with workflow('w') as flow:\n"
        "    @task(isolation='process')\n"
        "    def work():\n"
        "        return twice(21), os.getpid()\n"
        "result, pid = flow.execute()\n"
        "print('result:', result, pid != os.getpid())\n"
    )

    assert "result: 42 True" in said
