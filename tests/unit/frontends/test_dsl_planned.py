"""A program that is run for its graph alone: where it ends, and what is known there."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt.frontends.dsl import task, workflow
from graflow_ckpt.frontends.overrides import Planned, overrides

NOWHERE = "redis://127.0.0.1:1/0"  # nobody may be asked


@task
def add(rows: int = 1, more: int = 0) -> int:
    return rows + more


@pytest.fixture(autouse=True)
def planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(overrides, "planning", True)


def test_a_submit_ends_it_as_an_execute_does() -> None:
    flow = workflow("flow", session_id="mine").add(add)

    with pytest.raises(Planned) as caught:
        flow.submit(NOWHERE, inputs={"rows": 3}, max_steps=5)

    reached = caught.value
    assert (reached.workflow, reached.starts, reached.max_steps) == (flow, ("add",), 5)
    assert reached.inputs == {"rows": 3}
    assert flow.wanted_session == "mine"


def test_a_workflow_that_was_not_chosen_is_not_submitted_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "only", "another")

    assert workflow("flow").add(add).submit(NOWHERE) is None


def test_what_was_put_into_the_channel_is_an_input_and_the_call_wins() -> None:
    flow = workflow("flow").add(add)
    flow.get_channel().set("rows", 3)
    flow.get_channel().set("more", 4)

    with pytest.raises(Planned) as caught:
        flow.execute(inputs={"rows": 5})

    assert caught.value.inputs == {"rows": 5, "more": 4}
