"""Wrong words: what a stranger gives in the wrong place is refused by its name, and makes nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, TaskExecutionContext, Workflow, load
from graflow_ckpt.core.errors import BadSessionId, GraphError
from tests.acceptance.command_line import COUNT, GRAFLOW, graflow
from tests.loops import chain


def one() -> int:
    return 1


def flow(**settings: Any) -> Workflow:
    return chain(one, **settings)


# --- in a program ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: flow(session_id="").execute(), BadSessionId, "'' is not a session id"),
        (lambda: ExecutionContext(flow().graph, ""), BadSessionId, "'' is not a session id"),
        (lambda: ExecutionContext.fork("x.pkl", ""), BadSessionId, "'' is not a session id"),
        (lambda: CheckpointManager.get_latest(3), BadSessionId, "3 is not a session id"),
        (lambda: flow(store=""), GraphError, "store: '' is not an address, a path or a store"),
        (lambda: flow(store=" "), GraphError, "store: ' ' is not"),
        (lambda: ExecutionContext.create(flow().graph, store=" ").execute(), ValueError, "is empty"),
        (lambda: flow().execute(max_steps=-1), GraphError, "max_steps: -1 is not a whole number from 0"),
        (
            lambda: ExecutionContext.create(flow().graph, max_steps=-1),
            GraphError,
            "max_steps: -1 is not",
        ),
        (lambda: ExecutionContext.create(flow().graph).execute("3"), GraphError, "max_steps: '3' is not"),
        (lambda: flow().execute(inputs={1: 1}), GraphError, "the name of an input: 1 is not"),
        (lambda: flow().execution_context.checkpoint(""), GraphError, "path: '' is not the path"),
        (lambda: flow().execution_context.checkpoint(3), GraphError, "path: 3 is not the path"),
        (lambda: CheckpointManager.verify(3), GraphError, "path: 3 is not the path"),
        (lambda: CheckpointManager.resume_from_checkpoint(" "), GraphError, "path: ' ' is not the path"),
        (lambda: CheckpointManager.update_metadata("x.pkl", {}), GraphError, "what `verify` or a list gave"),
        (lambda: load(None), GraphError, "path: None is not the path"),
        (lambda: flow().execution_context.channel.set(5, 1), TypeError, "a string, not int"),
        (lambda: flow().execution_context.channel.append(None, 1), TypeError, "a string, not NoneType"),
    ],
)
def test_a_program_is_told_what_is_wrong(call: Callable[[], Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as refused:
        call()

    assert said in str(refused.value)
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda context: context.get_channel().append(3, 1), "a string, not int"),
        (lambda context: context.get_channel().get(3, []).append(1), "a string, not int"),
        (lambda context: context.checkpoint(storage=3), "storage: 3 is not a text"),
        (lambda context: context.cancel_workflow(3), "message: 3 is not a text"),
        (lambda context: context.terminate_workflow(3), "message: 3 is not a text"),
    ],
)
def test_a_task_is_told_what_is_wrong(body: Callable[[TaskExecutionContext], Any], said: str) -> None:
    def a(context: TaskExecutionContext) -> None:
        body(context)

    with pytest.raises((GraphError, TypeError)) as refused:
        chain(a).execute()

    assert said in str(refused.value)


def test_the_path_of_a_checkpoint_may_be_a_path() -> None:
    path, _ = flow(session_id="s").execution_context.checkpoint(Path("here.pkl"))

    assert path == "here.pkl"
    assert CheckpointManager.verify(Path(path)).session_id == "s"
    assert load(Path(path)).session_id == "s"
    assert ExecutionContext.resume(Path(path)).execute() == 1


# --- typed -------------------------------------------------------------------------------


@pytest.fixture
def counted() -> None:
    """A program, and a session that it has run."""
    Path("program.py").write_text(COUNT)
    graflow("run", "program.py", "--session", "s")


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_store_of_no_name_is_a_usage_error(blank: str) -> None:
    before = {*os.listdir()}

    for command in (("run", "program.py", "--session", "new"), ("sessions",), ("checkpoints", "list")):
        refused = graflow(*command, "--store", blank, status=2)
        assert "is no place: give a folder or an address" in refused.err

    assert {*os.listdir()} == before


@pytest.mark.usefixtures("counted")
def test_nothing_is_copied_to_where_it_ends_with_the_command() -> None:
    graflow("checkpoints", "export", "s", "s.db")

    for command in (("copy", "s", "--to", "memory:"), ("import", "s.db", "--store", "memory:")):
        assert "ends with this command" in graflow("checkpoints", *command, status=2).err


def test_a_store_in_memory_is_named_in_no_command_that_continues() -> None:
    Path("program.py").write_text(COUNT)

    ran = graflow("run", "program.py", "--session", "s", "--store", "memory:", "--max-steps", "2")

    assert "its store ends with this process" in ran.err
    assert "graflow-ckpt resume" not in ran.err


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    "command",
    [
        ("checkpoints", "fork", "s", ""),
        ("resume", "s", "--fork", ""),
        ("run", "program.py", "--durability", "none", "--every", "1"),
    ],
)
def test_what_would_mean_something_else_is_refused(command: tuple[str, ...]) -> None:
    before = sorted(Path("checkpoints").iterdir())

    refused = graflow(*command, status=2)

    assert "not a session id" in refused.err or "--every does nothing" in refused.err
    assert sorted(Path("checkpoints").iterdir()) == before


@pytest.mark.parametrize("command", [("sessions",), ("doctor",), ("checkpoints", "list")])
def test_a_working_folder_that_was_deleted_is_said(command: tuple[str, ...]) -> None:
    nowhere = f"mkdir gone && cd gone && rmdir ../gone && exec {shlex.join([*GRAFLOW, *command])}"

    ended = subprocess.run(["sh", "-c", nowhere], capture_output=True, text=True, check=False, timeout=60)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "The working folder was deleted." in ended.stderr
    assert "Traceback" not in ended.stderr
