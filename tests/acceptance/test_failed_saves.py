"""Saves that fail: an event, a handle with an error, and no failed run unless that was asked for.

What is larger than max_checkpoint_size_mb is refused in the same way; what a session pauses with is kept.
"""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    Event,
    EveryN,
    EveryTask,
    ExecutionContext,
    Workflow,
    task,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointError, GraphError, TooLarge
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.command_line import graflow, program
from tests.loops import cuts, loop
from tests.unit.stores.faults import FaultyDisk


def on_a_bad_disk(flow: Workflow, method: str, at: int = 1, number: int = errno.ENOSPC) -> FaultyDisk:
    """The session's store from now on; the lease stays with the one before."""
    disk = FaultyDisk(method, number, at)
    flow.execution_context.home._store = LocalStore("checkpoints", disk=disk)
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
from graflow_ckpt.stores.files.store import LocalStore

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


# --- max_checkpoint_size_mb -------------------------------------------------------------


def growing(sizes: list[int], store: str, fails: bool = False, **options: Any) -> ExecutionContext:
    """One step for each size, which is that of the session's one value after it."""
    with workflow("w", session_id="s", checkpoint=EveryTask(), store=store, rng=False, **options) as flow:

        @task(inject_context=True)
        def grow(context) -> None:
            context.get_channel().set("data", bytes(sizes[context.cycle]))
            if context.cycle + 1 < len(sizes):
                context.next_iteration()
            elif fails:
                raise OSError("broken")

        try:
            flow.execute()
        except OSError:
            assert fails
    return flow.execution_context


def sequences(store: str) -> list[int]:
    return [found.steps for found in CheckpointManager.list_checkpoints("s", store=store)][::-1]


@pytest.fixture(params=["folder", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, checkpoints_alone: None) -> str:
    if request.param == "memory":
        MemoryStore("memory://limit").forget()
        return "memory://limit"
    return str(tmp_path / "checkpoints") if request.param == "folder" else f"sqlite:///{tmp_path}/x.db"


def test_what_is_too_large_is_an_event_with_both_sizes_and_the_former_one_stands(store: str) -> None:
    events: list[Event] = []

    context = growing([10, 10, 200_000, 10], store, max_checkpoint_size_mb=0.1, observers=[events.append])

    assert context.status == "completed"
    errors = [event.facts["error"] for event in events if event.kind == "checkpoint_failed"]
    assert len(errors) == 1
    assert errors[0].startswith("Checkpoint size (0.20")
    assert "exceeds limit (0.1 MB). Consider reducing context size or increasing limit." in errors[0]
    assert 3 not in sequences(store)
    assert {1, 2, 4} <= set(sequences(store))
    for found in CheckpointManager.list_checkpoints("s", store=store):
        CheckpointManager.verify(found.path, store=store)


def test_it_ends_the_run_where_a_failed_save_does(store: str) -> None:
    with pytest.raises(TooLarge, match="exceeds limit") as caught:
        growing([200_000, 10], store, max_checkpoint_size_mb=0.1, on_save_failure="fail")

    assert caught.value.size > 200_000
    assert caught.value.limit == 100_000


def test_what_a_session_pauses_with_is_kept_and_it_is_said(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        growing([200_000, 200_000], store, fails=True, max_checkpoint_size_mb=0.1)

    assert sequences(store) == [1]
    assert "exceeds limit (0.1 MB). It is kept, since the session pauses with it." in caplog.text


def test_at_four_fifths_there_is_one_warning(store: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        growing([10, 90_000, 90_000], store, max_checkpoint_size_mb=0.1)

    assert caplog.text.count("approaches limit (0.1 MB)") == 1


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_is_more_than_nothing(limit: float) -> None:
    with pytest.raises(GraphError, match="above 0"):
        workflow("w", max_checkpoint_size_mb=limit)
