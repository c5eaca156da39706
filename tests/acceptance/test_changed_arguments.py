"""Bound arguments are part of a task, and objects of the user are looked at without running their code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, task, workflow
from graflow_ckpt.core.errors import GraphChanged
from tests.acceptance.command_line import python

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


def run(n: Any, store: Path, **settings: Any) -> Any:
    with workflow("bound", session_id="bound", store=str(store), **settings) as flow:
        grow.bind(n=n) >> tell
        return flow.execute()


def test_a_completed_task_whose_bound_argument_has_changed_is_not_reused_in_silence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not with 2"):
        run(1, tmp_path)

    with pytest.raises(GraphChanged) as refused:
        run(5, tmp_path)
    assert [row.task for row in refused.value.table if row.state == "completed"] == ["grow"]
    with pytest.raises(ValueError, match="not with 2"):
        run(1, tmp_path)
    with pytest.raises(ValueError, match="not with 6"):
        run(5, tmp_path, changed="rerun")


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
