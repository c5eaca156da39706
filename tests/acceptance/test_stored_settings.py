"""The settings of a session are part of it: they come back where no program says them again.

Bound arguments are part of a task, and objects of the user are looked at without running their code.
"""

from __future__ import annotations

import json
import logging
import signal
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
    Workflow,
    WorkflowEngine,
    task,
    workflow,
)
from graflow_ckpt.checkpoint.retention import DEFAULT, KeepFor
from graflow_ckpt.core.errors import CheckpointError, GraphChanged
from graflow_ckpt.core.policy import Policy, Since
from graflow_ckpt.engine.settings import Settings
from tests.acceptance.command_line import graflow, python

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


def two(place: Path, **options: Any) -> Workflow:
    """Two tasks, one after the other."""
    with workflow("w", "s", store=str(place), **options) as flow:

        @task
        def a() -> int:
            return 1

        @task
        def b(a: int) -> int:
            return a + 1

        _ = a >> b
    return flow


def stopped(place: Path, **options: Any) -> str:
    """Run the first of them; the path of the checkpoint."""
    flow = two(place, **options)
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

    flow = two(tmp_path, max_parallel=2)
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


def test_a_setting_of_tomorrow_is_refused_by_name() -> None:
    document = Settings().document() | {"policy": {"is": "policy.Tomorrow", "share": 0.05}}

    with pytest.raises(CheckpointError, match=r"'policy\.Tomorrow', which this version"):
        Settings().with_stored(document)


PROGRAM = """
import os, signal, sys
from graflow_ckpt import KeepLast, task, workflow

def note(name):
    with open("log", "a") as file:
        file.write(name + "\\n")

with workflow("w", "s", durability="journal", keep=KeepLast(100)) as flow:

    @task
    def a():
        note("a")

    @task
    def b():
        note("b")
        if os.path.exists("kill"):
            os.kill(os.getpid(), signal.SIGKILL)

    @task
    def c():
        note("c")
        if os.path.exists("kill c"):
            os.kill(os.getpid(), signal.SIGKILL)

    a >> b >> c
    flow.execute()
"""


def test_a_session_that_is_resumed_without_its_program_keeps_its_settings(own_folder: Path) -> None:
    folder = own_folder
    program = folder / "program.py"
    program.write_text(PROGRAM)
    (folder / "kill").touch()
    python("program.py", status=-signal.SIGKILL)
    program.unlink()
    (folder / "kill").unlink()
    (folder / "kill c").touch()
    graflow("resume", "s", status=-signal.SIGKILL)
    (folder / "kill c").unlink()

    graflow("resume", "s")

    ran = (folder / "log").read_text().split()
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


def test_a_durable_program_with_models_of_pydantic_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blocks.py").write_text(PYDANTIC)

    assert python("blocks.py").out.strip() == "6"
