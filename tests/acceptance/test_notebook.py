"""Notebooks: a running loop, functions typed into `__main__`, no file behind them."""

from __future__ import annotations

import subprocess
import sys

from tests.acceptance.processes import LONG

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
