"""Where the command line and programs keep sessions by default, and how each finds the other's."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from graflow_ckpt import ExecutionContext, task, workflow
from graflow_ckpt.core.errors import CheckpointError
from tests.acceptance.command_line import COUNT, KILLED, graflow, program, python, steps


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "graflow_ckpt" / "checkpoints.db"


def test_the_command_line_keeps_sessions_in_the_users_database(data: Path) -> None:
    program("count.py", COUNT)

    graflow("run", "count.py", "--session", "s", "--every", "1", "--", "3", status=KILLED)

    assert not Path("checkpoints").exists()
    with closing(sqlite3.connect(data)) as database:
        assert database.execute("SELECT count(*) FROM checkpoints").fetchone()[0] >= 3
    assert [row["session"] for row in graflow("sessions", "--json").document] == ["s"]
    assert "result 6" in graflow("resume", "s").out
    assert steps() == [0, 1, 2, 3, 3, 4, 5]


def test_a_program_goes_on_with_what_the_command_line_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    program("count.py", COUNT)
    graflow("run", "count.py", "--session", "s", "--every", "1", "--", "3", status=KILLED)
    monkeypatch.setenv("GRAFLOW_CKPT_SESSION", "s")

    assert "result 6" in python("count.py").out

    assert steps() == [0, 1, 2, 3, 3, 4, 5]
    assert not Path("checkpoints").exists()


def test_the_command_line_finds_what_programs_have_left_in_the_folder(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    program("count.py", COUNT.replace('workflow("count")', 'workflow("count", durability="journal")'))
    graflow("run", "count.py", "--session", "first")
    monkeypatch.setenv("GRAFLOW_CKPT_SESSION", "second")
    python("count.py", "3", status=KILLED)
    monkeypatch.delenv("GRAFLOW_CKPT_SESSION")

    assert [row["session"] for row in graflow("sessions", "--json").document] == ["second", "first"]
    assert "result 6" in graflow("resume", "second").out  # from the folder
    assert "nothing" in graflow("resume", "first").err  # from the database, where it is completed


def test_programs_of_two_folders_may_use_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        program("count.py", COUNT)

        ended = graflow("run", "count.py", "--session", "s")

        assert "result 6" in ended.out
        assert steps() == [0, 1, 2, 3, 4, 5]
    assert "is of another program" in ended.err
    assert Path("checkpoints").is_dir()


def test_a_store_that_is_named_is_the_only_one_that_counts() -> None:
    program("count.py", COUNT)
    graflow("run", "count.py", "--session", "s")

    assert "is neither a checkpoint" in graflow("resume", "s", "--store", "checkpoints", status=1).err


@task(inject_context=True)
def saving(context):
    return context.checkpoint({"n": 1}, storage="sqlite")


def test_one_checkpoint_of_a_task_goes_to_another_storage(data: Path) -> None:
    with workflow("w", "s") as flow:
        flow.add(saving)

    flow.execute()

    handle = flow.execution_context.get_result("saving")
    assert handle.path.startswith(f"sqlite:///{data}/")
    assert ExecutionContext.resume(handle.path).completed_tasks == {"saving"}


def test_outside_of_a_task_too(data: Path) -> None:
    with workflow("w", "s") as flow:
        flow.add(task(id="one")(lambda: 1))

    path, metadata = flow.execution_context.checkpoint(storage="sqlite")

    assert path == metadata.path
    assert path.startswith(f"sqlite:///{data}/")
    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_GCS_URL"):
        flow.execution_context.checkpoint(storage="gcs")


def test_the_name_of_the_workflow_may_stand_in_a_path() -> None:
    with workflow("etl", "s", store="runs/${workflow.name}") as flow:
        flow.add(task(id="one")(lambda: 1))

    assert flow.execution_context.checkpoint()[0].startswith("runs/etl/session_s_")
