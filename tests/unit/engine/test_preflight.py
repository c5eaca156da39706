"""What is found out before the first task, and what leaves no trace on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import EveryTask, task, workflow
from graflow_ckpt.core.errors import CheckpointError, GraphError, NotStorable


def ask_in_a_helper(context: Any) -> None:
    context.checkpoint()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, False),
        ({"session_id": "s"}, True),
        ({"session_id": "s", "durability": "none"}, False),
        ({"durability": "journal"}, True),
        ({"checkpoint": EveryTask()}, True),
    ],
)
def test_a_session_that_nobody_will_come_back_to_leaves_nothing_on_the_disk(
    options: dict[str, Any], kept: bool
) -> None:
    with workflow("w", **options) as flow:

        @task
        def a() -> None: ...

        flow.execute()

    trios = list(Path().glob("checkpoints/*.pkl"))
    assert bool(trios) == kept


def test_a_body_or_a_helper_that_asks_for_checkpoints_is_seen() -> None:
    inside: list[bool] = []

    def build(body: Any) -> Any:
        with workflow("w") as flow:
            task(id="look")(lambda: inside.append(Path("checkpoints").exists()))
            task(id="ask", inject_context=True)(body)
        return flow

    build(lambda context: context.checkpoint()).execute()
    build(ask_in_a_helper).execute()

    assert inside == [True, True]


def test_nothing_runs_if_the_folder_cannot_be_written(tmp_path: Path) -> None:
    ran = []
    (tmp_path / "file").write_text("")

    with workflow("w", session_id="s", store=tmp_path / "file") as flow:

        @task
        def a() -> None:
            ran.append(1)

        with pytest.raises(CheckpointError, match="file"):
            flow.execute()

    assert ran == []


def test_nothing_runs_if_the_key_could_be_changed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    key = tmp_path / "key"
    key.write_text("k1:" + "ab" * 32)
    key.chmod(0o666)
    monkeypatch.setenv("GRAFLOW_CKPT_KEY_FILE", str(key))

    with workflow("w", session_id="s", durability="journal") as flow:

        @task
        def a() -> None:
            ran.append(1)

        with pytest.raises(CheckpointError, match="Others can read"):
            flow.execute()

    assert ran == []


def test_an_input_that_cannot_be_kept_is_refused_where_it_is_set() -> None:
    import threading

    with (
        workflow("w", session_id="s") as flow,
        pytest.raises(NotStorable, match="lock") as refused,
    ):
        flow.get_channel().set("lock", threading.Lock())

    assert refused.value.path == "lock"
    flow.execution_context.home.close()


def test_a_workflow_without_tasks_is_refused() -> None:
    with workflow("w") as flow, pytest.raises(GraphError, match="no task to start with"):
        flow.execute()


def test_a_parameter_that_nothing_can_fill_is_refused_before_anything_runs() -> None:
    ran = []

    with workflow("w") as flow:

        @task
        def a() -> None:
            ran.append(1)

        @task
        def b(a: int, first: int) -> None: ...

        a >> b
        with pytest.raises(GraphError, match="'first' of task 'b'"):
            flow.execute()

    assert ran == []
