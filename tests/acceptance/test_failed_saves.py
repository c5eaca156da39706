"""Saves that fail: an event, a handle with an error, and no failed run unless that was asked for."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    Event,
    EveryN,
    EveryTask,
    Workflow,
    task,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.local import LocalStore
from tests.unit.stores.faults import FaultyDisk

LONG = 20.0  # seconds: only a hang takes so long


def loop(steps: int, body: Callable[[Any], None] = lambda context: None, **options: Any) -> Workflow:
    """A workflow of one task that comes round `steps` times."""
    with workflow("w", session_id="s", **options) as flow:

        @task(inject_context=True)
        def turn(context) -> int:
            body(context)
            if context.cycle + 1 < steps:
                context.next_iteration()
            return context.cycle

    return flow


def cuts(cause: str = "policy") -> list[int]:
    """The steps at which there are cuts, oldest first."""
    found = CheckpointManager.list_checkpoints("s")
    return [metadata.steps for metadata in reversed(found) if metadata.cause == cause]


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
