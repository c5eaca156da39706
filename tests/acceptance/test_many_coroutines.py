"""A thousand coroutines under way: bounds, deadlines, cancelling, and checkpoints that wait for loans."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryN, Workflow, task, workflow
from graflow_ckpt.core.errors import WorkflowCancelled
from graflow_ckpt.engine.settings import Settings
from tests.acceptance.live import LONG, Box

Body = Callable[..., Coroutine[Any, Any, Any]]


class Crowd:
    """Coroutines that wait until so many of them are under way; the most that were at once."""

    def __init__(self, count: int) -> None:
        self.count, self.here, self.most = count, 0, 0
        self.all = asyncio.Event()

    async def meet(self) -> None:
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self.count:
            self.all.set()
        await asyncio.wait_for(self.all.wait(), LONG)
        self.here -= 1


def add(flow: Workflow, count: int, body: Body, **options: Any) -> None:
    first = task(id="c0", **options)(body)
    flow.add(first, *(first.bind(id=f"c{n}") for n in range(1, count)))


def test_a_thousand_run_at_once_without_any_setting() -> None:
    crowd = Crowd(1000)

    with workflow("w") as flow:
        add(flow, 1000, crowd.meet)
        flow.execute()

    assert crowd.most == 1000


def test_max_parallel_bounds_threads_and_coroutines_together() -> None:
    lock = threading.Lock()
    here: list[int] = [0, 0]

    def come() -> None:
        with lock:
            here[0] += 1
            here[1] = max(here)

    def go() -> None:
        with lock:
            here[0] -= 1

    full = asyncio.Event()

    async def coroutine() -> None:
        come()
        if here[1] == 7:
            full.set()
        await asyncio.wait_for(full.wait(), LONG)
        go()

    def thread() -> None:
        come()
        go()

    with workflow("w", max_parallel=7) as flow:
        add(flow, 50, coroutine)
        threads = task(id="t0", timeout=60)(thread)
        flow.add(threads, *(threads.bind(id=f"t{n}") for n in range(1, 50)))
        flow.execute()

    assert here[1] == 7


def test_coroutines_take_no_thread_from_other_tasks_and_threads_keep_their_bound() -> None:
    ended = threading.Semaphore(0)
    lock = threading.Lock()
    here: list[int] = [0, 0]

    async def coroutine() -> None:  # until all others have run
        deadline = asyncio.get_running_loop().time() + LONG
        while ended._value < 100 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    def thread() -> None:
        with lock:
            here[0] += 1
            here[1] = max(here)
        with lock:
            here[0] -= 1
        ended.release()

    with workflow("w") as flow:
        add(flow, 500, coroutine, priority=1)
        threads = task(id="t0", timeout=60)(thread)
        flow.add(threads, *(threads.bind(id=f"t{n}") for n in range(1, 100)))
        flow.execute()

    assert ended._value == 100
    assert here[1] <= Settings().slots.threads


def test_all_of_a_thousand_end_at_their_deadline() -> None:
    async def hang() -> None:
        await asyncio.sleep(LONG)

    with workflow("w", on_failure="continue") as flow:
        add(flow, 1000, hang, timeout=0.3)
        flow.execute()

    errors = flow.execution_context.state.errors
    assert len(errors) == 1000
    assert all(error.startswith("TaskTimeout") for error in errors.values())


def test_one_of_a_thousand_cancels_the_session_and_those_under_way_end_and_are_kept() -> None:
    crowd, cancelled = Crowd(1000), asyncio.Event()

    async def member(context: Any) -> None:
        await crowd.meet()
        if context.task_id == "c0":
            cancelled.set()
            context.cancel_workflow("enough")
        await asyncio.wait_for(cancelled.wait(), LONG)

    with workflow("w", durability="none") as flow:
        add(flow, 1000, member, inject_context=True)
        with pytest.raises(WorkflowCancelled, match="enough"):
            flow.execute()

    assert flow.execution_context.completed_tasks == {f"c{n}" for n in range(1, 1000)}
    assert (flow.execution_context.state.status, crowd.most) == ("cancelled", 1000)


@pytest.mark.usefixtures("checkpoints_alone")
def test_a_checkpoint_is_taken_while_nothing_is_on_loan_also_among_hundreds() -> None:
    async def member(context: Any) -> None:
        box = context.get_channel().get(f"box{context.task_id}")
        box.items.append("begun")
        await asyncio.sleep(0)
        box.items.append("ended")

    with workflow("w", session_id="s", checkpoint=EveryN(100), keep=None) as flow:
        for n in range(400):
            flow.get_channel().set(f"boxc{n}", Box())
        add(flow, 400, member, inject_context=True)
        flow.execute()

    cuts = CheckpointManager.list_checkpoints("s")
    assert len(cuts) >= 2
    for cut in cuts:
        restored, _ = CheckpointManager.resume_from_checkpoint(cut.path)
        done = restored.completed_tasks
        channel = restored.get_channel()
        for n in range(400):
            expected = ["begun", "ended"] if f"c{n}" in done else []
            assert channel.get(f"boxc{n}").items == expected
