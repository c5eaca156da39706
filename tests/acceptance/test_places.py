"""Where the command line and programs keep sessions by default, and how each finds the other's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import ExecutionContext, task, workflow
from graflow_ckpt.core.errors import CheckpointError
from tests.acceptance.command_line import (
    KILLED,
    Ended,
    ended,
    graflow,
    inside,
    program,
    run_count,
    steps,
    written,
)
from tests.acceptance.places import SAVES, idle, rows_of

PAGE = Path("docs/sessions.md").resolve()


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """What is in memory is no place that is listed."""
    return on_disk


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # where tests keep theirs is listed, too
    return tmp_path / "data" / "graflow_ckpt" / "checkpoints.db"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two working folders; the tests begin in the first one."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    return tmp_path / "a", tmp_path / "b"


def start(file: str | Path, stop: str = "3", status: int = KILLED, **environment: str) -> Ended:
    return ended(
        [sys.executable, str(file), stop], status, "", {"GRAFLOW_CKPT_SESSION": "nightly", **environment}
    )


def the_same_program_and_session_started_in_another_folder(a: Path, b: Path) -> None:
    program("count.py", SAVES)
    start("count.py")
    os.chdir(b)

    refused = graflow("run", a / "count.py", "--session", "nightly", status=1)
    assert f"Session nightly is in {a}/checkpoints" in refused.err
    assert f"Session nightly is in {a}/checkpoints" in start(a / "count.py", "-", 1).err
    assert not Path("checkpoints").exists()
    there = graflow("run", a / "count.py", "--session", "nightly", "--store", a / "checkpoints")

    assert "result 6" in there.out
    assert steps() == [3, 4, 5]


def one_program_in_two_run_folders(a: Path, b: Path) -> None:
    program("count.py", SAVES)
    start("count.py", "-", 0)
    os.chdir(b)

    assert "result 6" in graflow("run", a / "count.py", "--session", "nightly", "--here").out
    assert "was finished" in graflow("run", a / "count.py", "--session", "nightly").err  # asked once only
    Path("checkpoints").rename("others")
    assert "result 6" in start(a / "count.py", "-", 0, GRAFLOW_CKPT_STORE="checkpoints").out


def a_program_whose_main_is_pytest_or_uvicorn(a: Path, b: Path) -> None:
    program("flows.py", SAVES)
    for name in ("main_one.py", "main_two.py"):
        program(name, "import sys; sys.path.insert(0, '.'); import flows")
    start("main_one.py")

    assert "result 6" in start("main_two.py", "-", 0).out  # the program is flows.py
    os.chdir(b)
    program("main.py", f"import sys; sys.path.insert(0, {str(a)!r}); import flows")
    assert f"Session nightly is in {a}/checkpoints" in start("main.py", "-", 1).err


def run_of_a_module_of_one_name_in_two_projects(a: Path, b: Path) -> None:
    for folder in (a, b):
        os.chdir(folder)
        program("flows.py", SAVES.replace('    print("result", ctx.execute())', ""))

        assert graflow("run", "flows:count", "--session", "nightly", status=0)
        assert steps() == [0, 1, 2, 3, 4, 5]


def a_notebook(a: Path, b: Path) -> None:
    cell = compile(SAVES, "<ipython-input-1>", "exec")
    program("cell.py", f"import sys; sys.argv = ['-']; exec(compile({SAVES!r}, '<cell>', 'exec'))")
    assert cell
    start("cell.py", "-", 0)
    os.chdir(b)

    assert "result 6" in start(a / "cell.py", "-", 0).out  # in this folder, and nothing is asked


def a_container_without_home(a: Path, b: Path) -> None:
    program("count.py", SAVES)
    key = "GRAFLOW_CKPT_KEY"
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_DATA_HOME")}
    made = graflow("key", "new").out.strip()

    done = subprocess.run(
        [sys.executable, "count.py"], env=env | {key: made, "GRAFLOW_CKPT_SESSION": "nightly"}, check=False
    )

    assert done.returncode == 0
    assert Path("checkpoints").is_dir()


def a_folder_that_cannot_be_written(a: Path, b: Path) -> None:
    program("count.py", SAVES)
    Path("checkpoints").write_text("a file")

    ended = graflow("run", "count.py", "--session", "nightly", status=1)

    assert "--store" in ended.err + start("count.py", "-", 1).err
    assert not Path("steps.log").exists()


def a_job_of_cron_in_the_root_folder(a: Path, b: Path) -> None:
    program("count.py", SAVES)
    os.chdir("/")

    ended = graflow("run", a / "count.py", "--session", "nightly", status=1)

    assert "The working folder is /" in ended.err
    assert "--store" in ended.err


def a_folder_that_was_moved(a: Path, b: Path) -> None:
    program("count.py", SAVES)
    start("count.py")
    b.rmdir()
    a.rename(b)
    os.chdir(b)

    assert "result 6" in start("count.py", "-", 0).out
    assert steps() == [0, 1, 2, 3, 3, 4, 5]


def git_clean(a: Path, b: Path) -> None:
    program("count.py", SAVES)
    subprocess.run(["git", "init", "-q"], check=True)
    start("count.py")

    subprocess.run(["git", "clean", "-fdq", "-e", "killed"], check=True)

    program("count.py", SAVES)
    assert "result 6" in start("count.py", "-", 0).out
    assert steps() == [3, 4, 5]


def a_name_in_two_places(a: Path, b: Path) -> None:
    for folder in (a, b):
        os.chdir(folder)
        program("count.py", SAVES)
        start("count.py")
    os.chdir(a.parent)

    for command in (("resume",), ("plan",), ("checkpoints", "list"), ("checkpoints", "delete", "--yes")):
        refused = graflow(*command, "nightly", status=2)
        assert f"{a}/checkpoints, {b}/checkpoints" in refused.err
    assert "result 6" in graflow("resume", "nightly", "--store", a / "checkpoints").out


CASES = {
    "the same program and session, started in another folder": (
        the_same_program_and_session_started_in_another_folder
    ),
    "one script, two run folders": one_program_in_two_run_folders,
    "pytest, uvicorn: `__main__` is theirs": a_program_whose_main_is_pytest_or_uvicorn,
    "`run flows:main` in two projects": run_of_a_module_of_one_name_in_two_projects,
    "a notebook": a_notebook,
    "a container without HOME": a_container_without_home,
    "a folder that cannot be made or written": a_folder_that_cannot_be_written,
    "a job of cron, started in `/`": a_job_of_cron_in_the_root_folder,
    "a folder that was moved": a_folder_that_was_moved,
    "`git clean -fd`": git_clean,
    "a name that is found in two places": a_name_in_two_places,
}


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_the_page(case: str, folders: tuple[Path, Path]) -> None:
    CASES[case](*folders)


def test_the_page_has_these_cases() -> None:
    assert rows_of(PAGE, "One place") == [*CASES]


def test_commands_look_in_all_places_used(folders: tuple[Path, Path]) -> None:
    a, b = folders
    program("count.py", SAVES)
    start("count.py")
    os.chdir(b)

    place = f"{a}/checkpoints"
    assert place in inside("checkpoints", "list", "nightly").err
    assert place in inside("checkpoints", "list").err
    assert place in inside("checkpoints", "stats").err
    assert "nightly" in inside("sessions").out
    assert inside("checkpoints", "verify", "nightly").status == 0
    assert "nightly of workflow count" in inside("checkpoints", "show", "nightly").out
    assert "count" in graflow("plan", "nightly").out
    resumed = graflow("resume", "nightly")
    assert f"in folder {a}" in resumed.err
    assert "result 6" in resumed.out
    assert (a / "steps.log").read_text().split() == ["0", "1", "2", "3", "3", "4", "5"]
    assert inside("checkpoints", "delete", "nightly", "--yes").status == 0
    assert "no such checkpoints" in inside("checkpoints", "list", "nightly", status=1).err


def test_the_command_line_and_a_program_keep_sessions_in_the_same_folder(data: Path) -> None:
    run_count("--session", "s", "--every", "1", "--", "3", status=KILLED)

    assert Path("checkpoints").is_dir()
    assert not data.exists()
    assert [row["session"] for row in inside("sessions", "--json").document] == ["s"]
    assert "result 6" in graflow("resume", "s").out
    assert steps() == [0, 1, 2, 3, 3, 4, 5]


def test_a_store_that_is_named_is_the_only_one_that_counts() -> None:
    run_count("--session", "s", "--store", "sqlite://")

    assert "is neither a checkpoint" in graflow("resume", "s", "--store", "checkpoints", status=1).err


@task(inject_context=True)
def saving(context):
    return context.checkpoint({"n": 1}, storage="sqlite")


def test_one_checkpoint_of_a_task_goes_to_another_storage(data: Path) -> None:
    flow = workflow("w", "s").add(saving)
    flow.execute()

    handle = flow.execution_context.get_result("saving")
    assert handle.path.startswith(f"sqlite:///{data}/")
    assert ExecutionContext.resume(handle.path).completed_tasks == {"saving"}


def test_outside_of_a_task_too(data: Path) -> None:
    flow = workflow("w", "s").add(*idle("one"))

    path, metadata = flow.execution_context.checkpoint(storage="sqlite")

    assert path == metadata.path
    assert path.startswith(f"sqlite:///{data}/")
    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_GCS_URL"):
        flow.execution_context.checkpoint(storage="gcs")


def test_the_name_of_the_workflow_may_stand_in_a_path() -> None:
    flow = workflow("etl", "s", store="runs/${workflow.name}").add(*idle("one"))

    assert flow.execution_context.checkpoint()[0].startswith("runs/etl/session_s_")


# --- first programs of other libraries' tutorials survive a kill with nothing set but a session id ---


HEAD = """
import os
from graflow_ckpt import Backoff, group, task, workflow
def say(line):
    with open("started", "a") as file:
        file.write(line + "\\n")
    if line == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), 9)
"""
STEPS_AND_A_QUEUE = """
@task
def step_one():
    say("step_one")
    return "one"
@task
def step_two(step_one):
    say("step_two")
    return step_one + " two"
@task
def work(n):
    say(f"work {n}")
    return n * n
@task(inject_context=True)
def enqueue(context):
    say("enqueue")
    for n in range(10):
        context.next_task(work.bind(n=n, id=f"work_{n}"), before="collect")
@task(inject_context=True)
def collect(context):
    say("collect")
    return context.get_result("step_two"), [context.get_result(f"work_{n}") for n in range(10)]
with workflow("steps", session_id="first") as flow:
    step_one >> step_two >> enqueue >> collect
    print(flow.execute(max_steps=100))
"""
CHAIN_AND_CHORD = """
@task
def add(x, y):
    say(f"add {x} {y}")
    return x + y
@task
def times(first, factor):
    say("times")
    return first * factor
@task
def total(header):
    say("total")
    return sum(header.values())
with workflow("chord", session_id="first") as flow:
    header = group(*[add.bind(x=n, y=n, id=f"add_{n}") for n in range(4)], name="header")
    add.bind(x=2, y=3, id="first") >> times.bind(factor=8) >> header >> total
    print(flow.execute())
"""
RETRIES_AND_MAPPING = """
@task
def repositories():
    say("repositories")
    return ["a", "b", "c"]
@task(max_retries=2, backoff=Backoff(0.001))
def stars(repo):
    if repo == "b" and not os.path.exists("tried"):
        os.mkdir("tried")
        raise ConnectionError("not yet")
    say(f"stars {repo}")
    return ord(repo)
@task(inject_context=True)
def each(context, repositories):
    say("each")
    for repo in repositories:
        context.next_task(stars.bind(repo=repo, id=f"stars_{repo}"), before="report")
@task(inject_context=True)
def report(context):
    say("report")
    return {repo: context.get_result(f"stars_{repo}") for repo in "abc"}
with workflow("mapping", session_id="first") as flow:
    repositories >> each >> report
    print(flow.execute())
"""
STATE_GRAPH = """
def answer(context, who, other):
    messages = context.get_channel().get("messages", default=[])
    messages.append(f"{who} {len(messages)}")
    say(messages[-1])
    if len(messages) < 9:
        context.next_task(other, goto=True)
@task(inject_context=True)
def agent(context):
    answer(context, "agent", tool)
@task(inject_context=True)
def tool(context):
    answer(context, "tool", agent)
@task
def end(messages):
    say("end")
    return messages
with workflow("graph", session_id="first") as flow:
    agent >> end
    print(flow.execute())
"""


@pytest.mark.parametrize(
    ("program", "kill_at", "result"),
    [
        (STEPS_AND_A_QUEUE, "collect", ("one two", [n * n for n in range(10)])),
        (CHAIN_AND_CHORD, "total", 12),
        (RETRIES_AND_MAPPING, "report", {"a": 97, "b": 98, "c": 99}),
        (STATE_GRAPH, "tool 5", [f"{('agent', 'tool')[n % 2]} {n}" for n in range(9)]),
    ],
    ids=["steps and a queue", "chain and chord", "retries and mapping", "state graph"],
)
def test_a_first_program_survives_a_kill_with_only_an_id(program: str, kill_at: str, result: Any) -> None:
    command = [sys.executable, written(HEAD + program)]

    ended(command, KILLED, "", {"KILL_AT": kill_at})
    again, third = (ended(command, 0, "", {}) for _ in range(2))

    assert again.out == third.out == f"{result}\n"
    assert [line for line, n in Counter(Path("started").read_text().splitlines()).items() if n > 1] == [
        kill_at
    ]
    assert again.err.startswith("session first continues from step ")
    assert third.err.startswith("session first was finished ")
    assert (again.err + third.err).count("\n") == 2
