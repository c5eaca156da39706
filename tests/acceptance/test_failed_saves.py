"""Saves that fail: an event, a handle with an error, and no failed run unless that was asked for."""

from __future__ import annotations

import errno
import threading

import pytest

from graflow_ckpt import Event, EveryN, EveryTask, Workflow, task, workflow
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.local import LocalStore
from tests.acceptance.command_line import graflow, program
from tests.loops import cuts, loop
from tests.unit.stores.faults import FaultyDisk


def on_a_bad_disk(flow: Workflow, method: str, at: int = 1, number: int = errno.ENOSPC) -> FaultyDisk:
    """The session's store from now on; the lease stays with the one before."""
    disk = FaultyDisk(method, number, at)
    flow.execution_context.home.store = LocalStore("checkpoints", disk=disk)
    return disk


def test_a_failed_save_is_an_event_and_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    handles = []

    def ask(context) -> None:
        if context.cycle == 0:
            handles.append(context.checkpoint())

    flow = loop(3, ask, observers=[seen.append])
    on_a_bad_disk(flow, "rename")

    assert flow.execute() == 2
    (failed,) = [event for event in seen if event.kind == "checkpoint_failed"]
    assert failed.facts["cause"] == "request"
    assert "No space left" in failed.facts["error"]
    assert handles[0].done()
    assert "No space left" in str(handles[0].error)
    assert "failed" in repr(handles[0])
    assert cuts("request") == []
    assert cuts("end") == [3]
    assert "checkpoint failed" in caplog.text


def test_with_on_save_failure_fail_a_failed_save_stops_the_run_and_nothing_more_is_committed() -> None:
    ran = []

    def ask(context) -> None:
        ran.append(context.cycle)
        if context.cycle == 1:
            context.checkpoint()

    flow = loop(5, ask, on_save_failure="fail")
    on_a_bad_disk(flow, "rename")

    with pytest.raises(CheckpointError, match="No space left"):
        flow.execute()
    assert ran == [0, 1]


def test_a_policy_that_could_not_save_tries_again_at_its_next_time() -> None:
    flow = loop(6, checkpoint=EveryN(2))
    on_a_bad_disk(flow, "rename")

    flow.execute()

    assert cuts() == [4, 6]


def test_a_value_that_has_become_unpicklable_is_named_by_the_failed_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_CHECK", "0")  # which would notice earlier
    seen: list[Event] = []

    with workflow("w", session_id="s", checkpoint=EveryTask(), observers=[seen.append]) as flow:

        @task(inject_context=True)
        def make(context) -> None:
            context.get_channel().set("box", Box())

        @task(inject_context=True)
        def spoil(context) -> None:
            context.get_channel().get("box", readonly=True).lock = threading.Lock()

        make >> spoil
        flow.execute()

    (failed, _) = [event for event in seen if event.kind == "checkpoint_failed"]
    assert "box" in failed.facts["error"]
    assert "lock" in failed.facts["error"]


class Box:
    """A live value."""


def test_a_session_says_why_its_last_save_failed(caplog: pytest.LogCaptureFixture) -> None:
    flow = loop(3, lambda context: None)
    on_a_bad_disk(flow, "rename")

    assert flow.execute() == 2

    assert "No space left" in str(flow.execution_context.last_save_error)


def test_a_later_save_clears_it() -> None:
    flow = loop(3, lambda context: context.checkpoint() if context.cycle == 0 else None)
    on_a_bad_disk(flow, "rename")

    assert flow.execute() == 2

    assert flow.execution_context.last_save_error is None
    assert cuts("end") == [3]


FULL = """
import errno, os, sys
from graflow_ckpt import task, workflow
from graflow_ckpt.stores.local import LocalStore

with workflow("w", "s", durability=sys.argv[1]) as ctx:

    @task
    def work():
        print("work")
        really = os.rename

        def full(source, target, *more, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        os.rename = full

    ctx.add(work)
    ctx.execute()
"""


@pytest.mark.parametrize(("durability", "status"), [("checkpoint", 74), ("journal", 0), ("none", 0)])
def test_a_run_whose_end_could_not_be_saved_has_a_status_of_its_own(durability: str, status: int) -> None:
    program("full.py", FULL)

    ended = graflow("run", "full.py", "--", durability, status=status)

    assert ("its end could not be saved" in ended.err) == (status == 74)
    assert "work" in ended.out
