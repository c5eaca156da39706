"""A task that goes back up above a fork: the other branch is walked twice, the join waits for both."""

from __future__ import annotations

import pytest

from graflow_ckpt import TaskExecutionContext, task
from graflow_ckpt.core.errors import GraphError
from tests.acceptance.places import Make


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("grouped", [False, True], ids=["edges", "a group"])
@pytest.mark.parametrize(
    "early", [False, True], ids=["the other branch is late", "the other branch is early"]
)
def test_a_join_runs_once_after_a_branch_went_back_above_the_fork(
    rounds: int, grouped: bool, early: bool, workflow: Make
) -> None:
    ran: list[str] = []

    with workflow("back", max_parallel=1) as flow:

        @task
        def start() -> None:
            ran.append("start")

        @task(inject_context=True)
        def back(context: TaskExecutionContext) -> None:
            ran.append("back")
            if context.cycle < rounds:
                context.next_task("start", goto=True)

        @task
        def beside() -> None:
            ran.append("beside")

        @task
        def join() -> None:
            ran.append("join")

        first, second = (beside, back) if early else (back, beside)
        if grouped:
            start >> (first | second) >> join
        else:
            start >> first >> join
            start >> second >> join
        flow.execute("start")

    assert flow.execution_context.status == "completed"
    assert [ran.count(name) for name in ("start", "back", "beside", "join")] == [rounds + 1] * 3 + [1]
    assert ran[-1] == "join"


def test_data_for_a_join_is_refused_where_it_is_given(workflow: Make) -> None:
    with workflow("data") as flow:

        @task(inject_context=True)
        def start(context: TaskExecutionContext) -> None:
            context.next_task("join", goto=True, data=1)

        @task
        def left() -> None: ...

        @task
        def right() -> None: ...

        @task
        def join(number: int = 0) -> int:
            return number

        start >> (left | right)
        left >> join
        right >> join

        with pytest.raises(GraphError, match="takes no data"):
            flow.execute("start")
