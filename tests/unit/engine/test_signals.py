"""What a session does when it is asked to stop; real signals to real processes are in test_interrupts.py."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from graflow_ckpt.core.errors import Interrupted
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.signals import Stop, handled


def test_the_first_signal_stops_and_the_next_one_leaves() -> None:
    stopped = []
    stop = Stop("s", 60, lambda: stopped.append(1))

    stop(signal.SIGTERM, None)
    assert stop.signal == signal.SIGTERM
    assert stopped == [1]
    with pytest.raises(Interrupted, match="Session s did not finish"):
        stop(signal.SIGTERM, None)
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT, None)
    assert stopped == [1]
    stop.close()


def test_a_run_in_another_thread_is_told_to_leave() -> None:
    left: list[Interrupted] = []
    stop = Stop("s", 60, lambda: None, left.append)

    stop(signal.SIGTERM, None)
    stop(signal.SIGTERM, None)

    assert left[0].code == 75
    stop.close()


def test_who_asks_is_told_whether_it_was_the_first() -> None:
    stopped = []
    stop = Stop("s", 60, lambda: stopped.append(1))

    assert stop.ask()
    assert not stop.ask()
    assert stopped == [1]


def test_the_end_of_the_grace_period_is_a_signal_of_its_own() -> None:
    came = threading.Event()
    stop = Stop("s", 0.05, lambda: None, lambda error: came.set())

    with handled(stop):
        stop(signal.SIGINT, None)
        assert came.wait(10)


def test_a_session_that_finishes_in_time_stops_the_clock() -> None:
    stop = Stop("s", 60, lambda: None)
    before = threading.active_count()

    with handled(stop):
        stop(signal.SIGTERM, None)

    assert threading.active_count() <= before + 1


def test_handlers_that_python_has_not_set_become_the_default() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with handled(Stop("s", 60, lambda: None)):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_between_two_tasks_stops_before_the_next_one() -> None:
    ran = []

    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:

        @task
        def a() -> None:
            ran.append("a")
            signal.raise_signal(signal.SIGTERM)

        @task
        def b() -> str:
            ran.append("b")
            return "done"

        a >> b
        with pytest.raises(Interrupted, match="it goes on at step 1") as left:
            flow.execute()
        assert ran == ["a"]
        assert left.value.code == 75
        assert left.value.session == flow.session_id
        assert flow.execute() == "done"


def test_a_signal_while_the_session_goes_back_stops_it_after_that() -> None:
    attempts = []

    with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:

        @task(inject_context=True)
        def make(context) -> None:
            context.get_channel().set("box", Box())

        @task(inject_context=True, max_retries=1, backoff=100)
        def tears(context) -> list[int]:
            attempts.append(context.attempt)
            box = context.get_channel().get("box")
            box.items.append(len(attempts))
            if len(attempts) == 1:
                signal.raise_signal(signal.SIGTERM)
                raise OSError
            return list(box.items)

        make >> tears
        with pytest.raises(Interrupted, match="it goes on at step 1"):
            flow.execute()
        assert attempts == [1]
        assert flow.execute() == [2]


class Box:
    """A live value."""

    def __init__(self) -> None:
        self.items: list[int] = []


def test_a_commit_that_was_interrupted_half_way_is_not_saved(caplog: pytest.LogCaptureFixture) -> None:
    with workflow("w", session_id="s", durability="checkpoint") as flow:

        @task
        def a() -> int:
            return 1

        @task
        def b(a: int) -> int:
            return a + 1

        a >> b

    def recorder(state: SessionState, now: float, ops: Sequence[Op]) -> None:
        if any(op[0] == "end" for op in ops):
            raise Interrupted("in the middle of a commit", "s")

    flow.execution_context.session.recorder = recorder
    with pytest.raises(Interrupted, match="nothing of it was saved"):
        flow.execute()

    assert "A commit was interrupted half way" in caplog.text
    assert CheckpointManager.list_checkpoints("s") == []
