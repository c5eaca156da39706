"""The loop of a run: slots, retries, deadlines, late results, groups and limits."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

import pytest

from graflow_ckpt import Backoff, Event, task, workflow
from graflow_ckpt.core.errors import (
    TaskTimeout,
)
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
