"""The loop that async bodies run on."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from graflow_ckpt import task, workflow
from graflow_ckpt.core.errors import TaskError, WorkflowCancelled
from graflow_ckpt.engine.coroutines import Loop
from tests.loops import chain

LONG = 20.0  # seconds: only a hang takes so long


def outcome(loop: Loop, coroutine: Any) -> tuple[Any, BaseException | None]:
    outcomes: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    loop.submit(coroutine, lambda result, error: outcomes.put((result, error)))
    return outcomes.get(timeout=LONG)


def test_results_and_exceptions_come_back() -> None:
    async def good() -> int:
        return 1

    async def bad() -> int:
        raise LookupError("x")

    loop = Loop()
    try:
        assert outcome(loop, good()) == (1, None)
        result, error = outcome(loop, bad())
    finally:
        loop.close()

    assert result is None
    assert isinstance(error, LookupError)


def test_a_cancelled_coroutine_is_told_and_ends() -> None:
    started, ended = threading.Event(), threading.Event()
    outcomes: SimpleQueue[BaseException | None] = SimpleQueue()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(LONG)
        finally:
            ended.set()

    loop = Loop()
    cancel = loop.submit(hang(), lambda result, error: outcomes.put(error))
    assert started.wait(LONG)
    cancel()

    assert isinstance(outcomes.get(timeout=LONG), asyncio.CancelledError)
    assert ended.is_set()
    loop.close()
    cancel()  # after the loop: nothing to do any more


def test_close_ends_what_still_runs() -> None:
    started, ended = threading.Event(), threading.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(LONG)
        finally:
            ended.set()

    loop = Loop()
    loop.submit(hang(), lambda result, error: None)
    assert started.wait(LONG)

    loop.close()

    assert ended.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "graflow-loop"]


def test_a_callers_loop_is_used_and_not_closed() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        loop = Loop(asyncio.get_running_loop())
        outcomes: asyncio.Queue[Any] = asyncio.Queue()

        async def where() -> asyncio.AbstractEventLoop:
            return asyncio.get_running_loop()

        loop.submit(where(), lambda result, error: outcomes.put_nowait(result))
        found = await outcomes.get()
        loop.close()
        assert found is asyncio.get_running_loop()
        return found

    assert asyncio.run(main()).is_closed()


# --- in a workflow ---------------------------------------------------------------------


def test_sync_and_async_tasks_are_mixed() -> None:
    with workflow("w") as flow:

        @task
        def a() -> int:
            return 1

        @task
        async def b(a: int) -> int:
            await asyncio.sleep(0)
            return a + 1

        @task(inject_context=True)
        async def c(context, a: int) -> int:
            context.get_channel().set("c", a)
            return a + 2

        @task
        def d(b: int, c: int) -> tuple[int, int]:
            return b, c

        a >> (b | c) >> d
        assert flow.execute() == (2, 3)

    assert flow.get_channel().get("c") == 1


def test_async_members_of_a_group_run_at_the_same_time_on_one_loop() -> None:
    meeting: list[asyncio.Event] = []
    loops = set()

    with workflow("w") as flow:

        def member() -> Any:
            async def meet() -> None:
                loops.add(asyncio.get_running_loop())
                if not meeting:
                    meeting.append(asyncio.Event())
                    await asyncio.wait_for(meeting[0].wait(), LONG)
                else:
                    meeting[0].set()

            return meet

        task(id="a")(member())
        task(id="b")(member())
        flow.execute()

    assert len(loops) == 1
    assert flow.execution_context.completed_tasks == {"a", "b"}


def test_cancel_workflow_works_in_a_coroutine_and_cannot_be_swallowed() -> None:
    async def a(context) -> None:
        try:
            context.cancel_workflow("enough")
        except WorkflowCancelled:
            return

    with pytest.raises(WorkflowCancelled, match="enough"):
        chain(a).execute()


def test_a_parameter_that_nothing_fills_fails_the_coroutine_by_its_name() -> None:
    async def a(context, first: int = 0, rate: int = 0) -> str:
        return context.get_channel().get("rate", "none")

    async def b(a: str, rate: int) -> None: ...

    with pytest.raises(TaskError, match="'rate' of task 'b'"):
        chain(a, b).execute()


@pytest.mark.parametrize(
    "middleware", [(), (lambda claim, call_next: call_next(claim),)], ids=["", "in middleware"]
)
def test_a_coroutine_that_exits_leaves_the_run(middleware: Any) -> None:
    async def a() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit) as left:
        chain(a, middleware=middleware).execute()

    assert left.value.code == 7


# --- aexecute --------------------------------------------------------------------------


def test_aexecute_runs_coroutines_on_the_callers_loop_and_lets_it_go_on() -> None:
    async def main() -> tuple[Any, int]:
        own = asyncio.get_running_loop()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())

        async def a() -> bool:
            await asyncio.sleep(0.05)
            return asyncio.get_running_loop() is own

        def b(a: bool) -> bool:
            threading.Event().wait(0.05)
            return a

        result = await chain(a, b).aexecute()
        ticking.cancel()
        return result, ticks

    result, ticks = asyncio.run(main())

    assert result is True
    assert ticks > 10


def test_execute_in_a_running_loop_does_not_wait_for_that_loop() -> None:
    async def main() -> Any:
        async def a() -> str:
            await asyncio.sleep(0.01)
            return "ran"

        return chain(a).execute()

    assert asyncio.run(main()) == "ran"


def test_two_aexecutes_run_side_by_side() -> None:
    async def main() -> list[Any]:
        meeting = asyncio.Barrier(2)

        def make(name: str) -> Any:
            async def a() -> str:
                await asyncio.wait_for(meeting.wait(), LONG)
                return name

            return chain(a, workflow=name)

        return await asyncio.gather(make("one").aexecute(), make("two").aexecute())

    assert asyncio.run(main()) == ["one", "two"]


def test_cancelling_aexecute_stops_the_session_after_what_runs_and_keeps_it() -> None:
    ran = []

    async def main() -> Any:
        started = asyncio.Event()

        async def a() -> int:
            started.set()
            await asyncio.sleep(0.05)
            return 1

        def b(a: int) -> int:
            ran.append(a)
            return a + 1

        flow = chain(a, b, session_id="s")
        running = asyncio.create_task(flow.aexecute())
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return flow

    flow = asyncio.run(main())
    assert ran == []
    assert flow.execution_context.completed_tasks == {"a"}
    assert flow.execution_context.home.last.steps == 1
    assert flow.execute() == 2
    assert ran == [1]
