"""Checkpoints of sessions that several workers share: one cut per due moment, and saves that fail."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    Event,
    EveryN,
    EverySeconds,
    EveryTask,
    KeepLast,
    WhenIdle,
    Workflow,
    task,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.fleet.client import Terms
from graflow_ckpt.fleet.handle import Handle
from tests.acceptance.elsewhere import Fleet
from tests.acceptance.places import Make, in_redis
from tests.loops import LONG, cuts, loop
from tests.servers import Server


@pytest.fixture
def make(redis_url: str, redis_server: Server, key: str) -> Make:
    return in_redis(redis_server.client())


@pytest.fixture
def fleet(redis_url: str, make: Make, own_folder: Path) -> Iterator[Fleet]:
    made = Fleet(redis_url, str(own_folder / "checkpoints"), workers=3)
    yield made
    made.close()


def submitted(fleet: Fleet, flow: Workflow) -> Handle:
    starts = tuple(flow.graph.roots())
    return fleet.client.submit(flow.graph, flow.settings, starts, {}, Terms("s", store=fleet.store))


# --- several workers ---------------------------------------------------------------------


MEETING = threading.Barrier(3, timeout=LONG)


def wide(members: int, *, meet: bool = False, **options: Any) -> Workflow:
    """Tasks that can all run at once, twice in a row; three of them wait for each other."""
    with workflow("wide", "s", **options) as flow:
        for number in range(members):
            first = task(id=f"first{number}")(meets if meet and number < 3 else short)
            first >> task(id=f"then{number}")(short)
    return flow


def meets() -> None:
    """All three workers are there then."""
    MEETING.wait()


def short() -> None:
    threading.Event().wait(0.001)


def second_time(context: Any) -> None:
    if context.attempt == 1:
        raise ConnectionError("not yet")


@pytest.mark.parametrize("together", [False, True], ids=["in turns", "at once"])
def test_workers_of_one_session_cut_once_for_each_due_moment(fleet: Fleet, together: bool) -> None:
    handle = submitted(fleet, wide(30, meet=together, checkpoint=EveryN(10), keep=KeepLast(99)))

    status = fleet.work_together(handle) if together else fleet.work(handle)

    assert (status.status, status.steps) == ("completed", 60)
    assert fleet.ran_by("s") == 3
    made = cuts()
    assert 1 <= len(made) <= 6
    assert all(later - earlier >= 10 for earlier, later in pairwise([0, *made]))
    assert together or made[0] < 20  # whoever is to save may be kept waiting while others go on


def test_numbers_of_cuts_go_up_with_what_they_show(fleet: Fleet) -> None:
    handle = submitted(fleet, wide(30, checkpoint=EveryN(3), keep=KeepLast(99)))

    fleet.work_together(handle)

    made = list(reversed(CheckpointManager.list_checkpoints("s")))
    assert [m.sequence for m in made] == sorted({m.sequence for m in made})
    assert [m.transition for m in made] == sorted(m.transition for m in made)


def test_a_wave_is_through_when_nobody_runs_anything(fleet: Fleet) -> None:
    """A worker that has nothing to do is not yet a session that has nothing to do."""
    with workflow("waves", "s", checkpoint=WhenIdle(), keep=KeepLast(99)) as flow:
        wave = [task(id=f"a{number}")(short) for number in range(6)]
        joined = wave[0]
        for member in wave[1:]:
            joined = joined | member
        joined >> task(id="last", inject_context=True, max_retries=1, backoff=0.1, jitter=0.0)(second_time)

    fleet.work_together(submitted(fleet, flow))

    held = [m.steps for m in reversed(CheckpointManager.list_checkpoints("s"))]
    assert held[-1] == 7
    assert 6 in held  # nothing runs between the two attempts of the last one


def test_a_policy_by_time_outlives_the_slices(fleet: Fleet) -> None:
    """Slices begin anew every few milliseconds here; the time since the last cut does not."""
    handle = submitted(fleet, wide(60, checkpoint=EverySeconds(0.05)))

    fleet.work(handle)

    assert len(cuts()) >= 1


# --- saves that fail ---------------------------------------------------------------------


def block() -> None:
    """From now on nothing can be written there."""
    shutil.rmtree("checkpoints", ignore_errors=True)
    Path("checkpoints").touch()


def unblock() -> None:
    Path("checkpoints").unlink()


def test_a_failed_save_is_an_event_and_does_not_stop_the_run(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    handles = []

    def ask(context: Any) -> None:
        if context.cycle == 0:
            block()
            handles.append(context.checkpoint())

    flow = loop(3, ask, make=make, observers=[seen.append])

    assert flow.execute() == 2
    (failed,) = [event for event in seen if event.kind == "checkpoint_failed"]
    assert failed.facts["cause"] == "request"
    assert "checkpoints" in failed.facts["error"]
    assert handles[0].done()
    assert handles[0].error is not None
    assert "checkpoint failed" in caplog.text


def test_a_policy_that_could_not_save_tries_again_at_its_next_time(make: Make) -> None:
    seen: list[str] = []

    def spoil(context: Any) -> None:
        if context.cycle == 0:
            block()
        elif context.cycle == 3:
            unblock()

    flow = loop(6, spoil, make=make, checkpoint=EveryN(2), observers=[lambda event: seen.append(event.kind)])
    flow.execute()

    assert cuts() == [4, 6]
    assert seen.count("checkpoint_failed") == 1


def test_with_on_save_failure_fail_a_failed_save_stops_the_run(make: Make) -> None:
    ran: list[int] = []

    def ask(context: Any) -> None:
        ran.append(context.cycle)
        if context.cycle == 1:
            block()
            context.checkpoint()

    flow = loop(5, ask, make=make, on_save_failure="fail")
    with pytest.raises(CheckpointError, match="checkpoints"):
        flow.execute()

    assert ran == [0, 1]
    context = flow.execution_context
    assert (context.status, context.steps) == ("paused", 2)
    assert "The checkpoint failed" in context.state.reason
    unblock()
    assert flow.execute() == 4  # the step itself was committed
    assert ran == [0, 1, 2, 3, 4]


def test_with_on_save_failure_fail_no_worker_goes_on(fleet: Fleet) -> None:
    Path("checkpoints").touch()
    handle = submitted(fleet, loop(5, checkpoint=EveryTask(), on_save_failure="fail"))

    status = fleet.work(handle)

    assert (status.status, status.steps) == ("paused", 1)
    assert status.reason.startswith("The checkpoint failed")
    unblock()
    handle.resume()
    assert fleet.work(handle).status == "completed"
    assert cuts() == [2, 3, 4, 5]
