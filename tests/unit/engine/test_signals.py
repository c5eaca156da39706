"""What a session does when it is asked to stop; real signals to real processes are in test_interrupts.py."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from graflow_ckpt.core.errors import Interrupted
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.signals import Stop, handled
from graflow_ckpt.frontends.dsl import Workflow
from tests.acceptance.places import Box
from tests.loops import chain


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


# --- several sessions at once ------------------------------------------------------------


@pytest.mark.parametrize("ends", [(0, 1), (1, 0)], ids=["first", "last"])
def test_whichever_of_two_sessions_ends_first_the_handlers_are_put_back_after_the_other(
    ends: tuple[int, int],
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stops = [Stop(name, 60, lambda: None) for name in "ab"]
    open_now = [ExitStack() for _ in stops]
    for stack, stop in zip(open_now, stops, strict=True):
        stack.enter_context(handled(stop))

    open_now[ends[0]].close()
    signal.raise_signal(signal.SIGTERM)

    assert stops[ends[0]].signal is None
    assert stops[ends[1]].signal == signal.SIGTERM
    open_now[ends[1]].close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_all_sessions_hear_a_signal_and_it_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    stops = [Stop(name, 60, lambda: None) for name in "abc"]

    with ExitStack() as stack:
        for stop in stops:
            stack.enter_context(handled(stop))
        signal.raise_signal(signal.SIGTERM)

    assert [stop.signal for stop in stops] == [signal.SIGTERM] * 3
    assert capfd.readouterr().err.count("finishing what runs") == 1


def test_a_grace_period_that_is_over_ends_its_own_session_alone() -> None:
    came, left = threading.Event(), list[Interrupted]()
    hasty = Stop("hasty", 0.05, lambda: None, lambda error: came.set())
    patient = Stop("patient", 60, lambda: None, left.append)

    with handled(patient), handled(hasty):
        signal.raise_signal(signal.SIGTERM)
        assert came.wait(5)

    assert left == []


def resting(name: str, until: asyncio.Event | None = None) -> Workflow:
    """Two tasks; given an event, the first waits for it, and asks the process to end."""
    with workflow(name, session_id=name, checkpoint=EveryTask()) as flow:

        @task(id="rest")
        async def rest() -> None:
            if until is not None:
                await until.wait()
                signal.raise_signal(signal.SIGTERM)

        @task(id="after")
        def after() -> str:
            return name

        rest >> after
    return flow


def test_sessions_of_one_loop_are_stopped_also_after_one_of_them_has_ended() -> None:
    async def both() -> None:
        ended = asyncio.Event()

        async def short() -> None:
            assert await resting("short").aexecute() == "short"
            ended.set()

        await asyncio.gather(short(), resting("long", ended).aexecute())

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="session long stopped; it goes on at step 1"):
        asyncio.run(both())

    assert signal.getsignal(signal.SIGTERM) is before
    assert CheckpointManager.list_checkpoints("long")


# --- tasks -------------------------------------------------------------------------------


def test_a_signal_while_the_session_goes_back_stops_it_after_that() -> None:
    attempts = []

    def make(context) -> None:
        context.get_channel().set("box", Box())

    def tears(context) -> list[int]:
        attempts.append(context.attempt)
        box = context.get_channel().get("box")
        box.items.append(len(attempts))
        if len(attempts) == 1:
            signal.raise_signal(signal.SIGTERM)
            raise OSError
        return list(box.items)

    flow = chain(make, tears, max_retries=1, backoff=100, session_id="s", checkpoint=EveryTask())
    with pytest.raises(Interrupted, match="it goes on at step 1"):
        flow.execute()
    assert attempts == [1]
    assert flow.execute() == [2]


def test_a_commit_that_was_interrupted_half_way_is_not_saved(caplog: pytest.LogCaptureFixture) -> None:
    flow = chain(a=lambda: 1, b=lambda a: a + 1, session_id="s", durability="checkpoint")

    def recorder(state: SessionState, now: float, ops: Sequence[Op]) -> None:
        if any(op[0] == "end" for op in ops):
            raise Interrupted("in the middle of a commit", "s")

    flow.execution_context.session.recorder = recorder
    with pytest.raises(Interrupted, match="nothing of it was saved"):
        flow.execute()

    assert "A commit was interrupted half way" in caplog.text
    assert CheckpointManager.list_checkpoints("s") == []
