"""Results that nobody needs any more leave the session, and nothing is made up in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, task
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.core.errors import ResultForgotten, UnknownTask
from tests.acceptance.places import Make

BIG = 200_000


def test_a_result_that_was_forgotten_is_refused_by_name_and_its_task_stays_completed(workflow: Make) -> None:
    with workflow("w") as flow:

        @task
        def extract() -> bytes:
            return bytes(BIG)

        @task(inject_context=True)
        def count(context, extract: bytes) -> int:
            context.forget("extract")
            return len(extract)

        @task(inject_context=True)
        def late(context, count: int) -> str:
            with pytest.raises(ResultForgotten, match="The result of 'extract' was asked for by 'late'"):
                context.get_result("extract")
            with pytest.raises(ResultForgotten):
                context.get_channel().get("extract.__result__")
            return f"{count} bytes"

        extract >> count >> late
        assert flow.execute() == "200000 bytes"

    assert flow.execution_context.completed_tasks == {"extract", "count", "late"}


def test_a_task_that_fails_has_forgotten_nothing(workflow: Make) -> None:
    tries: list[int] = []

    with workflow("w") as flow:

        @task
        def extract() -> int:
            return 5

        @task(inject_context=True, max_retries=1)
        def count(context, extract: int) -> int:
            context.forget("extract")
            tries.append(extract)
            if len(tries) == 1:
                raise OSError("once")
            return extract

        extract >> count
        assert flow.execute() == 5

    assert tries == [5, 5]


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_checkpoints_are_without_it_and_what_goes_on_from_them_does_not_have_it(
    tmp_path: Path, durability: str
) -> None:
    def run(mended: bool) -> tuple[object, list[str]]:
        with in_memory("w", "s", store=str(tmp_path), durability=durability) as flow:

            @task(inject_context=True)
            def extract(context) -> bytes:
                context.checkpoint()
                return bytes(BIG)

            @task(inject_context=True)
            def count(context, extract: bytes) -> int:
                context.forget(extract_task)
                if durability == "checkpoint":
                    context.checkpoint()
                return len(extract)

            extract_task = extract

            @task(inject_context=True)
            def late(context, count: int) -> int:
                if not mended:
                    context.get_result("extract")
                return count

            extract >> count >> late
            return flow.execute(), [
                m.path for m in CheckpointManager.list_checkpoints("s", store=str(tmp_path))
            ]

    with pytest.raises(ResultForgotten):
        run(mended=False)
    result, paths = run(mended=True)

    assert result == BIG
    sizes = [CheckpointManager.verify(path).size for path in paths]
    assert sizes[0] < BIG < max(sizes)  # the newest first; one was taken while it was needed


def test_only_tasks_of_the_graph_can_be_forgotten() -> None:
    with in_memory("w") as flow:

        @task(inject_context=True)
        def one(context) -> None:
            context.forget("two")

        with pytest.raises(UnknownTask, match="'two'"):
            flow.execute()
