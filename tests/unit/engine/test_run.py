"""The loop of a run: slots, retries, deadlines, late results, groups; and the loop of async bodies."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from graflow_ckpt import Backoff, Event, task, workflow
from graflow_ckpt.core.errors import (
    TaskError,
    TaskTimeout,
    WorkflowCancelled,
)
from graflow_ckpt.engine.body.coroutines import Loop
from tests.loops import chain
from tests.stretch import stretched

LONG = 20.0  # seconds: only a hang takes so long


# --- who runs when ---------------------------------------------------------------------


def idle(*names: str) -> list[Any]:
    """Tasks that do nothing."""
    return [task(id=name)(lambda: None) for name in names]


def meeting(*names: str) -> list[Any]:
    """Tasks that return when all of them run."""
    barrier = threading.Barrier(len(names), timeout=LONG)
    return [task(id=name)(lambda: barrier.wait()) for name in names]


def test_parallel_members_run_at_the_same_time() -> None:
    with workflow("w") as flow:
        (a,), (b, c) = idle("a"), meeting("b", "c")
        a >> (b | c)

        flow.execute()

    context = flow.execution_context
    assert {context.get_result("b"), context.get_result("c")} == {0, 1}


def test_what_follows_a_group_runs_at_the_same_time_too() -> None:
    with workflow("w") as flow:
        (a, b), (c, d, e) = idle("a", "b"), meeting("c", "d", "e")
        (a | b) >> (c | d | e)

        flow.execute()

    assert flow.execution_context.completed_tasks == set("abcde")


def test_max_parallel_is_never_passed_even_when_two_attempts_time_out_together() -> None:
    lock, now, most = threading.Lock(), [0], [0]
    release = threading.Event()

    def enter() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])

    def leave() -> None:
        with lock:
            now[0] -= 1

    with workflow("w", max_parallel=2, on_failure="continue") as flow:

        def hang() -> None:
            release.wait(LONG)

        def work() -> None:
            enter()
            threading.Event().wait(0.02)
            leave()

        for name in ("h1", "h2"):
            task(id=name, timeout=0.1, priority=1)(hang)
        for number in range(6):
            task(id=f"w{number}")(work)

        flow.execute()
        release.set()

    assert most[0] == 2
    assert len(flow.execution_context.completed_tasks) == 6


def test_with_one_slot_bodies_run_one_after_the_other_in_the_callers_thread() -> None:
    threads = set()

    with workflow("w", max_parallel=1) as flow:
        for name in "abc":
            task(id=name)(lambda: threads.add(threading.get_ident()))

        flow.execute()

    assert threads == {threading.get_ident()}


def test_a_chain_runs_in_the_callers_thread() -> None:
    threads = []

    def a() -> None:
        threads.append(threading.get_ident())

    def b() -> None:
        threads.append(threading.get_ident())

    chain(a, b).execute()

    assert threads == [threading.get_ident()] * 2


def test_the_exception_of_a_thread_that_wants_to_exit_leaves_the_run() -> None:
    with workflow("w") as flow:

        @task
        def a() -> None:
            raise SystemExit(7)

        @task
        def b() -> None: ...

        flow.add(a, b)
        with pytest.raises(SystemExit) as left:
            flow.execute()

    assert left.value.code == 7


# --- retries ---------------------------------------------------------------------------


def test_a_task_is_tried_max_retries_more_times_and_its_own_exception_comes_out() -> None:
    attempts = []

    def flaky(context) -> None:
        attempts.append(context.attempt)
        raise LookupError(f"attempt {context.attempt}")

    flow = chain(flaky, max_retries=2)
    with pytest.raises(LookupError, match="attempt 3"):
        flow.execute()

    assert attempts == [1, 2, 3]
    assert flow.execution_context.completed_tasks == set()
    assert flow.execution_context.status == "failed"


def test_backoff_delays_a_retry_and_grows() -> None:
    times = []

    def flaky() -> None:
        times.append(monotonic())
        if len(times) < 3:
            raise OSError

    chain(flaky, max_retries=2, backoff=Backoff(0.05, factor=3.0, jitter=0.0)).execute()

    assert times[1] - times[0] >= 0.045
    assert times[2] - times[1] >= 0.145


def test_a_sibling_goes_on_while_a_retry_waits() -> None:
    order = []

    with workflow("w") as flow:

        @task(inject_context=True, max_retries=1, backoff=Backoff(0.2, jitter=0.0))
        def flaky(context) -> None:
            order.append(f"flaky{context.attempt}")
            if context.attempt == 1:
                raise OSError

        @task
        def b() -> None:
            order.append("b")

        @task
        def c() -> None:
            order.append("c")

        flow.add(flaky)
        b >> c
        flow.execute()

    assert order[-1] == "flaky2"
    assert set(order) == {"flaky1", "b", "c", "flaky2"}


# --- deadlines -------------------------------------------------------------------------


def test_a_timeout_ends_the_attempt_at_its_deadline_although_the_thread_hangs() -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(LONG)

    flow = chain(hang, timeout=0.1)
    began = monotonic()
    with pytest.raises(TaskTimeout, match=r"hang.*0\.1 s"):
        flow.execute()
    took = monotonic() - began
    release.set()

    assert 0.1 <= took < 5
    assert flow.execution_context.completed_tasks == set()


def test_a_late_result_is_fenced_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    release, late_wrote, refused = threading.Event(), threading.Event(), []

    def slow(context) -> str:
        if context.attempt == 2:
            release.set()
            assert late_wrote.wait(LONG)
            return "in time"
        context.get_channel().set("early", 1)
        release.wait(LONG)
        try:
            context.get_channel().set("late", 1)
        except TaskTimeout as error:
            refused.append(error)
        assert context.cancelled
        late_wrote.set()
        return "too late"

    flow = chain(slow, timeout=stretched(0.1), max_retries=1, observers=[seen.append])
    assert flow.execute() == "in time"

    assert len(refused) == 1
    assert flow.get_channel().keys() == ["slow.__result__"]
    assert [event.task for event in seen if event.kind == "task_late"] == ["slow"]
    assert [r.message for r in caplog.records if "came back" in r.message] == [
        "task slow came back after its attempt was over; its result is not taken"
    ]


def test_a_late_result_is_reported_while_the_run_waits_for_a_retry(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    over = threading.Event()

    def slow(context) -> int:
        if context.attempt == 1:
            assert over.wait(LONG)  # comes back in the backoff
        return context.attempt

    flow = chain(
        slow,
        timeout=0.05,
        max_retries=1,
        backoff=Backoff(0.3, jitter=0.0),
        observers=[seen.append, lambda e: e.kind == "task_ended" and over.set()],
    )
    assert flow.execute() == 2

    assert [event.task for event in seen if event.kind == "task_late"] == ["slow"]
    assert sum("came back" in r.message for r in caplog.records) == 1


def test_a_body_that_ended_in_time_is_not_late_because_the_run_was_busy() -> None:
    ended = threading.Event()

    def busy(event: Event) -> None:
        if event.kind == "task_started" and event.task == "other":
            assert ended.wait(LONG)
            threading.Event().wait(0.3)  # past the deadline, as in a long save

    with workflow("w", observers=[busy]) as flow:

        @task(timeout=0.25)
        def quick() -> str:
            ended.set()
            return "in time"

        @task
        def other() -> None: ...

        flow.add(quick, other)
        flow.execute()

    assert flow.execution_context.get_result("quick") == "in time"


# --- the loop of async bodies ---------------------------------------------------------


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


# --- tasks made at run time ------------------------------------------------------------


def test_a_task_that_was_made_by_a_commit_that_is_refused_is_not_in_the_graph() -> None:
    data: list[int] = []

    def a(context: Any) -> None:
        channel = context.get_channel()
        if channel.get("n") == 0:
            context.next_task(task(id="made")(lambda: None), before="b")
            channel.set("n", 1)
            context.execution_context.channel.set("n", 2)  # so that this attempt conflicts
        else:
            context.next_task("c", goto=True, data=7)  # which no other branch of b leads to

    def c(value: int) -> None:
        data.append(value)

    flow = chain(a, idle("b")[0], c)
    flow.get_channel().set("n", 0)
    flow.execute()

    assert data == [7]
    assert "made" not in flow.graph.nodes
    assert flow.execution_context.state.skipped.keys() == {"b"}
