"""Failures of tasks, of their groups and of saves: what they do to a session, and how it goes on."""

from __future__ import annotations

import errno
import logging
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    AtLeast,
    BestEffort,
    CheckpointManager,
    Event,
    EveryN,
    EveryTask,
    ExecutionContext,
    Workflow,
    group,
    task,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointError, GraphError, GroupFailed, TooLarge, ValueTorn
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.command_line import graflow, program
from tests.acceptance.places import LONG, Box, Make, idle
from tests.loops import chain, cuts, loop, of
from tests.unit.stores.faults import FaultyDisk


@task
def good() -> int:
    return 1


@task
def bad() -> int:
    raise OSError


@task
def after(parts: dict[str, int]) -> dict[str, int]:
    return parts


def test_a_failed_member_of_a_best_effort_group_does_not_stop_it(workflow: Make) -> None:
    with workflow("w") as flow:
        group(good | bad, policy=BestEffort(), name="parts") >> after
        assert flow.execute() == {"good": 1}

    assert flow.execution_context.completed_tasks == {"good", "after"}


def test_a_member_that_only_read_a_live_value_does_not_stop_a_best_effort_group(workflow: Make) -> None:
    def bad(context) -> int:
        context.get_channel().get("model")
        raise OSError

    def good(context) -> int:
        return context.get_channel().get("model").items[0]

    parts = group(of(good) | of(bad), policy=BestEffort(), name="parts")
    flow = chain(parts, after, make=workflow)
    flow.get_channel().set("model", Box(1))

    assert flow.execute() == {"good": 1}


def test_a_member_that_left_a_live_value_changed_stops_a_best_effort_group_by_name() -> None:
    def bad(context) -> int:
        context.get_channel().get("model").items = [2]
        raise OSError("disk")

    flow = chain(group(good | of(bad), policy=BestEffort()))
    flow.get_channel().set("model", Box(1))
    with pytest.raises(ValueTorn, match=r"'bad' failed.*'model'") as torn:
        flow.execute()

    assert isinstance(torn.value.__cause__, OSError)


def test_a_group_of_which_too_few_succeed_fails_by_name(workflow: Make) -> None:
    with workflow("w") as flow:
        worse = task(id="worse")(lambda: 1 / 0)
        group(good | bad | worse, policy=AtLeast(2), name="parts") >> after
        with pytest.raises(GroupFailed, match="parts"):
            flow.execute()

    assert "after" not in flow.execution_context.completed_tasks


def test_on_failure_continue_runs_what_does_not_depend_on_the_failed_task(workflow: Make) -> None:
    with workflow("w", on_failure="continue") as flow:
        _, never = idle("other", "never")
        bad >> never
        flow.execute()

    context = flow.execution_context
    assert context.completed_tasks == {"other"}
    assert set(context.state.skipped) == {"never"}
    assert context.status == "completed"


def test_on_failure_pause_lets_siblings_finish_and_starts_nothing_more(workflow: Make) -> None:
    """The first failure is the one that comes out."""
    failed, ran = threading.Event(), []

    def bad() -> int:
        raise OSError("x")

    def slow() -> int:
        assert failed.wait(LONG)
        return 1

    def worse() -> None:
        assert failed.wait(LONG)
        raise LookupError("second")

    def after(slow: int) -> None:
        ran.append("after")

    seeing = [lambda e: e.kind == "task_ended" and failed.set()]
    flow = chain(slow, after, make=workflow, observers=seeing).add(of(bad), of(worse))
    with pytest.raises(OSError, match="x"):
        flow.execute()

    assert flow.execution_context.completed_tasks == {"slow"}
    assert ran == []


# --- a group that failed its session ----------------------------------------------------


def test_a_group_fails_again_as_long_as_too_few_are_mended(workflow: Make) -> None:
    """Two of three members have to succeed; one of them is a chain, one a group of its own."""
    ran, broken = list[str](), list[str]()

    def noted(context) -> str:
        ran.append(context.task_id)
        if context.task_id in broken:
            raise RuntimeError
        return context.task_id

    def run(*names: str) -> object:
        broken[:] = names
        tasks = ("start", "plain", "head", "tail", "left", "right", "after")
        start, plain, head, tail, left, right, after = (of(noted, name) for name in tasks)
        two = group(plain, head >> tail, group(left, right, policy=AtLeast(2)), policy=AtLeast(2))
        return chain(start, two, after, make=workflow, session_id="s", max_parallel=1).execute()

    for names in (("plain", "head", "left"), ("plain", "head")):
        with pytest.raises(GroupFailed):
            run(*names)

    assert run("head") == "after"
    assert ran[5:] == ["plain", "head", "left", "plain", "head", "after"]


# --- saves that fail --------------------------------------------------------------------


def on_a_bad_disk(*args: Any, **options: Any) -> Workflow:
    """A loop whose session is owned when its disk is full for the first save."""
    disk = FaultyDisk()
    flow = loop(*args, store=LocalStore("checkpoints", disk=disk), **options)
    assert flow.execution_context.home.lease is not None
    disk.arm("rename", errno.ENOSPC)
    return flow


def test_a_failed_save_is_an_event_and_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    handles = []

    def ask(context) -> None:
        if context.cycle == 0:
            handles.append(context.checkpoint())

    flow = on_a_bad_disk(3, ask, observers=[seen.append])

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

    flow = on_a_bad_disk(5, ask, on_save_failure="fail")

    with pytest.raises(CheckpointError, match="No space left"):
        flow.execute()
    assert ran == [0, 1]


def test_a_policy_that_could_not_save_tries_again_at_its_next_time() -> None:
    flow = on_a_bad_disk(6, checkpoint=EveryN(2))

    flow.execute()

    assert cuts() == [4, 6]


def test_a_value_that_has_become_unpicklable_is_named_by_the_failed_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_CHECK", "0")  # which would notice earlier
    seen: list[Event] = []

    def make(context) -> None:
        context.get_channel().set("box", Box())

    def spoil(context) -> None:
        context.get_channel().get("box", readonly=True).lock = threading.Lock()

    chain(make, spoil, session_id="s", checkpoint=EveryTask(), observers=[seen.append]).execute()

    (failed, _) = [event for event in seen if event.kind == "checkpoint_failed"]
    assert "box" in failed.facts["error"]
    assert "lock" in failed.facts["error"]


def test_a_session_says_why_its_last_save_failed_and_a_later_save_clears_that() -> None:
    for asks, why in ((False, "No space left"), (True, "None")):
        body = lambda context, asks=asks: asks and context.cycle == 0 and context.checkpoint()  # noqa: E731
        flow = on_a_bad_disk(3, body)

        assert flow.execute() == 2
        assert why in str(flow.execution_context.last_save_error)
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

    def grow(context: Any) -> None:
        context.get_channel().set("data", bytes(sizes[context.cycle]))
        if fails and context.cycle + 1 == len(sizes):
            raise OSError("broken")

    flow = loop(len(sizes), grow, checkpoint=EveryTask(), store=store, rng=False, **options)
    with pytest.raises(OSError, match="broken") if fails else nullcontext():
        flow.execute()
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
