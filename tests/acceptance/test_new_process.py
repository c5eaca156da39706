"""A new process continues: tasks of `__main__`, of modules, closures, lambdas, made at run time, typed in."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    BestOf,
    Budget,
    CheckpointManager,
    EveryN,
    EverySeconds,
    KeepLast,
    OfAll,
    OnRequest,
    WhenIdle,
    WorkflowEngine,
    task,
    workflow,
)
from graflow_ckpt.checkpoint.retention import DEFAULT, KeepFor
from graflow_ckpt.core.errors import CheckpointError, GraphChanged
from graflow_ckpt.core.policy import Policy, Since
from graflow_ckpt.engine.settings import Settings
from tests.acceptance.command_line import LONG, graflow, python, run, written
from tests.loops import chain, pair

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
FLOW = """
with workflow('w', session_id='s') as flow:
    make >> train >> show
    print('result:', flow.execute())
"""
IN_MAIN = MAIN + FLOW
IN_A_MODULE = f"from graflow_ckpt import workflow\nfrom tasks import make, show, train\n{FLOW}"
# What goes on, or looks, when the program is gone.
RESUME = """
from graflow_ckpt import CheckpointManager, WorkflowEngine
context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest('s'))
"""
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


@pytest.mark.parametrize(
    ("source", "ran", "result"),
    [(IN_MAIN, "ran make", "[0, 1]"), (IN_A_MODULE, "ran make", "[0, 1]"), (CLOSURES, "ran 40", "42")],
    ids=["main", "module", "closures and lambdas"],
)
def test_a_new_process_goes_on_and_finds_its_classes(source: str, ran: str, result: str) -> None:
    program = written(source)
    written(MAIN, "tasks.py")

    first = run(program, "fail", status=1)
    second, third = run(program), run(program)

    assert ran in first
    assert "RuntimeError: not yet" in first
    assert "graflow-ckpt resume s" in first
    assert "ran" not in second
    assert f"result: {result}" in second
    assert f"result: {result}" in third


@pytest.mark.parametrize("source", [IN_MAIN, CLOSURES], ids=["main", "closures"])
def test_a_checkpoint_goes_on_when_its_program_is_gone(source: str) -> None:
    program = written(source)
    run(program, "fail", status=1)
    program.unlink()

    said = run(written(f"{RESUME}print('result:', WorkflowEngine().execute(context))", "resume.py"))

    assert "ran" not in said
    assert "result: [0, 1]" in said or "result: 42" in said


def test_a_class_of_main_is_found_when_the_program_is_gone() -> None:
    program = written(IN_MAIN)
    run(program)
    program.unlink()

    assert "[0, 1]" in run(written(f"{RESUME}print(context.get_channel().get('model').weights)", "look.py"))


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
    lock = threading.Lock()

    def locked() -> bool:
        with lock:
            raise OSError("not yet")

    with pytest.raises(OSError, match="not yet"):
        chain(locked, session_id="s").execute()

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
        f"import os; os.remove('fail'){RESUME}",
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


# --- the settings of a session are part of it -------------------------------------------


GIVEN: dict[str, Any] = {
    "durability": "journal",
    "checkpoint": EveryN(2) | EverySeconds(60),
    "keep": OfAll(KeepLast(100) & KeepFor(days=7) | BestOf("loss", 3, "min")),
    "on_failure": "continue",
    "on_save_failure": "fail",
    "max_checkpoint_size_mb": 5.5,
    "max_parallel": 3,
    "rng": False,
    "grace": 7.0,
}


class Mine(Policy):
    def due(self, since: Since) -> bool:
        return False


def observer(event: object) -> None: ...


def stopped(place: Path, **options: Any) -> str:
    """Run the first of two tasks; the path of the checkpoint."""
    flow = pair(store=str(place), **options)
    flow.execute(max_steps=1)
    path = flow.execution_context.last_checkpoint_path
    assert path is not None
    return path


def test_all_that_can_be_stored_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    path = stopped(tmp_path, **GIVEN)

    settings = CheckpointManager.resume_from_checkpoint(path)[0].settings

    assert settings.policy == GIVEN.pop("checkpoint")
    assert {name: getattr(settings, name) for name in GIVEN} == GIVEN
    assert (settings.resume, settings.changed, settings.take_over) == ("auto", None, False)


def test_what_no_program_says_again_is_stored_again(tmp_path: Path) -> None:
    path = stopped(tmp_path, keep=KeepLast(100), durability="journal")
    context = CheckpointManager.resume_from_checkpoint(path)[0]

    WorkflowEngine().execute(context, None)

    later = CheckpointManager.resume_from_checkpoint(context.last_checkpoint_path or "")[0].settings
    assert (later.keep, later.durability) == (KeepLast(100), "journal")


def test_where_the_program_runs_its_line_counts_whole_and_a_difference_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(tmp_path, durability="journal", keep=KeepLast(100), max_parallel=3)

    flow = pair(store=str(tmp_path), max_parallel=2)
    caplog.set_level(logging.WARNING)
    flow.execute(max_steps=9)

    context = flow.execution_context
    assert (context.settings.durability, context.settings.keep) == ("auto", DEFAULT)
    (line,) = [r.getMessage() for r in caplog.records if "other settings" in r.getMessage()]
    assert line == (
        "session s continues with other settings: durability was 'journal' and is 'auto'; "
        "keep was KeepLast(count=100, per='session') and is the default; "
        "max_parallel was 3 and is 2"
    )


def test_equal_settings_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped(tmp_path, **GIVEN)

    stopped(tmp_path, **GIVEN)

    assert "other settings" not in caplog.text


def test_what_no_checkpoint_keeps_is_named_at_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stopped(
        tmp_path,
        observers=[observer],
        middleware=[lambda claim, call_next: call_next(claim)],
        checkpoint=Mine(),
    )
    context = CheckpointManager.resume_from_checkpoint(path)[0]

    WorkflowEngine().execute(context)

    assert context.settings.policy == OnRequest()
    (line,) = [r.getMessage() for r in caplog.records if "no checkpoint keeps" in r.getMessage()]
    assert "middleware test_what_no_checkpoint" in line
    assert "observer observer" in line
    assert "policy Mine" in line


@pytest.mark.parametrize(
    "policy", [OnRequest(), EveryN(3), EverySeconds(2.5), Budget(0.1), WhenIdle(), EveryN(2) | WhenIdle()]
)
def test_each_policy_is_stored(policy: Policy) -> None:
    settings = Settings(policy=policy)

    assert Settings().with_stored(settings.document()).policy == policy


def test_a_stored_union_of_policies_has_the_name_of_the_first_release() -> None:
    document = Settings(policy=EveryN(2) | WhenIdle()).document()

    assert document["policy"]["is"] == "policy.Either"


THREE_TASKS = """
import os, signal, sys
from graflow_ckpt import KeepLast, task, workflow

def note(name):
    with open("log", "a") as file:
        file.write(name + "\\n")
    if os.path.exists(f"kill {name}"):
        os.kill(os.getpid(), signal.SIGKILL)

with workflow("w", "s", durability="journal", keep=KeepLast(100)) as flow:

    @task
    def a():
        note("a")

    @task
    def b():
        note("b")

    @task
    def c():
        note("c")

    a >> b >> c
    flow.execute()
"""


def test_a_session_that_is_resumed_without_its_program_keeps_its_settings() -> None:
    program = written(THREE_TASKS)
    Path("kill b").touch()
    python("program.py", status=-signal.SIGKILL)
    program.unlink()
    Path("kill b").rename("kill c")
    graflow("resume", "s", status=-signal.SIGKILL)
    Path("kill c").unlink()

    graflow("resume", "s")

    ran = Path("log").read_text().split()
    assert (ran.count("a"), ran.count("b"), ran.count("c")) == (1, 2, 2)


# --- bound arguments --------------------------------------------------------------------


PYDANTIC = """
from pydantic import BaseModel
from graflow_ckpt import task, workflow

LIMIT = 3

class Block(BaseModel):
    n: int = 2

@task(inject_context=True)
def count(context):
    context.checkpoint()
    return LIMIT * Block().n

with workflow("blocks", session_id="blocks") as flow:
    flow.add(count)
    print(flow.execute())
"""


@task
def grow(n: int) -> int:
    return n + 1


@task
def tell(grow: int) -> int:
    raise ValueError(f"not with {grow}")


def run_bound(n: Any, store: Path, **settings: Any) -> Any:
    with workflow("bound", session_id="bound", store=str(store), **settings) as flow:
        grow.bind(n=n) >> tell
        return flow.execute()


def test_a_completed_task_whose_bound_argument_has_changed_is_not_reused_in_silence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not with 2"):
        run_bound(1, tmp_path)

    with pytest.raises(GraphChanged) as refused:
        run_bound(5, tmp_path)
    assert [row.task for row in refused.value.table if row.state == "completed"] == ["grow"]
    with pytest.raises(ValueError, match="not with 2"):
        run_bound(1, tmp_path)
    with pytest.raises(ValueError, match="not with 6"):
        run_bound(5, tmp_path, changed="rerun")


def test_plain_bound_arguments_stand_in_the_control_facts(tmp_path: Path) -> None:
    with workflow("facts", session_id="facts", store=str(tmp_path)) as flow:
        grow.bind(n=3) >> grow.bind(id="more", n=object, password="secret")  # type: ignore[arg-type]
        flow.execution_context.checkpoint()

    path = CheckpointManager.get_latest("facts", store=str(tmp_path))
    facts = json.loads(Path(path).with_suffix(".state.json").read_text())["graph"]["tasks"]

    assert facts["grow"]["arguments"] == {"n": {"value": 3}}
    assert facts["more"]["arguments"]["n"] == {"type": "builtins.type"}
    assert "secret" not in json.dumps(facts)


def test_a_durable_program_with_models_of_pydantic_runs() -> None:
    assert python(written(PYDANTIC)).out.strip() == "6"
