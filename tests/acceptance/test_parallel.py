"""Workflows, coroutines and ranks side by side, and inside each other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryN, EveryTask, Workflow, task, workflow
from graflow_ckpt.core.errors import SessionBusy, WorkflowCancelled
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.testing.drivers import at_once
from tests.acceptance.command_line import graflow, run, started, written
from tests.acceptance.places import LONG, Box, Make, idle
from tests.loops import chain, of


def test_two_workflows_in_two_threads_do_not_see_each_other(workflow: Make) -> None:
    meeting = threading.Barrier(2, timeout=LONG)
    results: dict[str, Any] = {}

    def program(name: str) -> None:
        with workflow(name, session_id=name, checkpoint=EveryTask()) as flow:
            meeting.wait()

            @task(inject_context=True)
            def first(context) -> str:
                context.get_channel().set("who", name)
                meeting.wait()
                return name

            meeting.wait()

            @task(inject_context=True)
            def second(context, first: str) -> list[str]:
                meeting.wait()
                return [first, context.get_channel().get("who"), context.session_id]

            first >> second
            meeting.wait()
            results[name] = flow.execute()

    at_once([partial(program, name) for name in ("one", "two")])

    assert results == {"one": ["one"] * 3, "two": ["two"] * 3}
    for name in results:
        assert {m.session_id for m in CheckpointManager.list_checkpoints(name)} == {name}
        assert CheckpointManager.list_checkpoints(name)[0].steps == 2


def test_one_workflow_object_serves_one_session_after_the_other(workflow: Make) -> None:
    flow = chain(task(id="a")(lambda: "done"), make=workflow)

    first = flow.execution_context.session_id
    assert flow.execute() == "done"
    assert flow.execute() == "done"
    assert flow.execution_context.session_id != first


def build(name: str, inner: Workflow | None = None, fails: bool = False) -> Workflow:
    def body() -> Any:
        if fails:
            raise OSError("inner")
        return inner.execute() if inner is not None else "inner result"

    return chain(of(body, f"{name}-task"), workflow=name, session_id=name)


def test_a_workflow_inside_a_task_of_another_is_a_session_of_its_own() -> None:
    inner = build("inner")

    assert build("outer", inner).execute() == "inner result"

    assert CheckpointManager.list_checkpoints("inner")[0].status == "completed"
    assert CheckpointManager.list_checkpoints("outer")[0].status == "completed"


def test_the_failure_of_an_inner_workflow_fails_the_task_that_ran_it() -> None:
    with pytest.raises(OSError, match="inner"):
        build("outer", build("inner", fails=True)).execute()

    assert CheckpointManager.list_checkpoints("outer")[0].status == "failed"


def test_many_members_run_on_few_threads_and_all_of_them_run(workflow: Make) -> None:
    threads = set()

    with workflow("w", max_parallel=3) as flow:
        for number in range(40):
            task(id=f"t{number}")(lambda: threads.add(threading.get_ident()))

        flow.execute()

    assert len(flow.execution_context.completed_tasks) == 40
    assert len(threads) <= 4  # the last one may run in the caller's


def test_priority_decides_who_comes_first(workflow: Make) -> None:
    order: list[str] = []

    with workflow("w", max_parallel=1) as flow:
        for name, priority in (("low", -1), ("plain", 0), ("high", 5)):
            task(id=name, priority=priority)(lambda name=name: order.append(name))

        flow.execute()

    assert order == ["high", "plain", "low"]


def test_threads_of_a_run_end_with_it(workflow: Make) -> None:
    workflow("w", session_id="ends").add(*idle(*"abc")).execute()

    for thread in threading.enumerate():
        if thread.name.startswith("graflow-ends"):
            thread.join(LONG)
    assert not [t for t in threading.enumerate() if t.name.startswith("graflow-ends")]


# --- a thousand coroutines under way ----------------------------------------------------


class Crowd:
    """Coroutines that wait until so many of them are under way; the most that were at once."""

    def __init__(self, count: int) -> None:
        self.count, self.here, self.most = count, 0, 0
        self.all = asyncio.Event()

    async def meet(self) -> None:
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self.count:
            self.all.set()
        await asyncio.wait_for(self.all.wait(), LONG)
        self.here -= 1


class Most:
    """How many are here, and the most that were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.here = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.here += 1
            self.most = max(self.most, self.here)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.here -= 1


def many(count: int, body: Callable[..., Any], name: str = "c", **options: Any) -> list[Any]:
    """So many tasks of this body, side by side."""
    first = of(body, f"{name}0", **options)
    return [first, *(first.bind(id=f"{name}{n}") for n in range(1, count))]


def test_a_thousand_run_at_once_without_any_setting() -> None:
    crowd = Crowd(1000)

    async def member() -> None:
        await crowd.meet()

    workflow("w").add(*many(1000, member)).execute()

    assert crowd.most == 1000


def test_max_parallel_bounds_threads_and_coroutines_together() -> None:
    here, full = Most(), asyncio.Event()

    async def coroutine() -> None:
        with here:
            if here.most == 7:
                full.set()
            await asyncio.wait_for(full.wait(), LONG)

    def thread() -> None:
        with here:
            pass

    flow = workflow("w", max_parallel=7)
    flow.add(*many(50, coroutine), *many(50, thread, "t", timeout=60)).execute()

    assert here.most == 7


def test_coroutines_take_no_thread_from_other_tasks_and_threads_keep_their_bound() -> None:
    ended, here = threading.Semaphore(0), Most()

    async def coroutine() -> None:  # until all others have run
        deadline = asyncio.get_running_loop().time() + LONG
        while ended._value < 100 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    def thread() -> None:
        with here:
            pass
        ended.release()

    flow = workflow("w").add(*many(500, coroutine, priority=1), *many(100, thread, "t", timeout=60))
    flow.execute()

    assert ended._value == 100
    assert here.most <= Settings().slots.threads


def test_all_of_a_thousand_end_at_their_deadline() -> None:
    async def hang() -> None:
        await asyncio.sleep(LONG)

    flow = workflow("w", on_failure="continue").add(*many(1000, hang, timeout=0.3))
    flow.execute()

    errors = flow.execution_context.state.errors
    assert len(errors) == 1000
    assert all(error.startswith("TaskTimeout") for error in errors.values())


def test_one_of_a_thousand_cancels_the_session_and_those_under_way_end_and_are_kept() -> None:
    crowd, cancelled = Crowd(1000), asyncio.Event()

    async def member(context: Any) -> None:
        await crowd.meet()
        if context.task_id == "c0":
            cancelled.set()
            context.cancel_workflow("enough")
        await asyncio.wait_for(cancelled.wait(), LONG)

    flow = workflow("w", durability="none").add(*many(1000, member))
    with pytest.raises(WorkflowCancelled, match="enough"):
        flow.execute()

    assert flow.execution_context.completed_tasks == {f"c{n}" for n in range(1, 1000)}
    assert (flow.execution_context.state.status, crowd.most) == ("cancelled", 1000)


@pytest.mark.usefixtures("checkpoints_alone")
def test_a_checkpoint_is_taken_while_nothing_is_on_loan_also_among_hundreds() -> None:
    async def member(context: Any) -> None:
        box = context.get_channel().get(f"box{context.task_id}")
        box.items.append("begun")
        await asyncio.sleep(0)
        box.items.append("ended")

    flow = workflow("w", session_id="s", checkpoint=EveryN(100), keep=None).add(*many(400, member))
    for n in range(400):
        flow.get_channel().set(f"boxc{n}", Box())
    flow.execute()

    cuts = CheckpointManager.list_checkpoints("s")
    assert len(cuts) >= 2
    for cut in cuts:
        restored, _ = CheckpointManager.resume_from_checkpoint(cut.path)
        done = restored.completed_tasks
        channel = restored.get_channel()
        for n in range(400):
            expected = ["begun", "ended"] if f"c{n}" in done else []
            assert channel.get(f"boxc{n}").items == expected


# --- several ranks, threads and processes of one program, and who owns a session --------


PROGRAM = """
import os, sys
from graflow_ckpt import task, workflow
from graflow_ckpt.engine.settings import Settings

SESSION = os.environ.get("SESSION", "s")
with workflow("w", session_id=SESSION, grace=float(os.environ.get("GRACE", "30"))) as flow:
    @task
    def first():
        return os.getpid()

    @task(inject_context=True)
    def second(context, first):
        if "wait" in sys.argv:
            print("at work", flush=True)
            sys.stdin.readline()
        context.checkpoint({"by": os.getpid()})
        return first

    first >> second

from dataclasses import replace
if "take" in sys.argv:
    flow.settings = replace(flow.settings, take_over=True)
print("result:", flow.execute(), flush=True)
"""


TAKE_OVER = ("run", "program.py", "--session", "s", "--take-over")


@pytest.fixture
def program() -> Path:
    return written(PROGRAM)


def test_a_session_that_another_process_runs_is_refused_by_the_name_of_its_owner(program: Path) -> None:
    with started(program, "wait") as owner:
        owner.hear("at work")

        said = run(program, status=1)
        owner.tell()

        assert owner.wait() == 0
    assert f"Session 's' is in use by process {owner.pid}" in said
    assert "--take-over" in said


def test_ranks_with_sessions_of_their_own_do_not_meet(program: Path) -> None:
    with started(program, "wait", SESSION="s-rank0") as owner:
        owner.hear("at work")

        assert "result:" in run(program, SESSION="s-rank1")


def test_the_same_session_in_two_threads_is_refused() -> None:
    entered, leave = threading.Event(), threading.Event()
    results: list[Any] = []

    def a() -> int:
        entered.set()
        leave.wait(20)
        return 1

    flow = chain(a, session_id="s")
    thread = threading.Thread(target=lambda: results.append(flow.execute()))
    thread.start()
    assert entered.wait(20)
    with pytest.raises(SessionBusy):
        _ = workflow("w", session_id="s").execution_context
    leave.set()
    thread.join()

    assert results == [1]


def test_a_killed_owner_is_taken_over_without_a_word(program: Path) -> None:
    with started(program, "wait") as owner:
        owner.hear("at work")
        owner.signal(signal.SIGKILL)
        owner.wait()

    assert "result:" in run(program)


def test_a_stopped_owner_is_ended_by_the_command_and_by_no_setting(program: Path) -> None:
    with started(program, "wait", GRACE="0.5") as old:  # what it does before it ends
        old.hear("at work")
        old.signal(signal.SIGSTOP)
        assert "in use by" in run(program, status=1)
        assert "graflow-ckpt resume s --take-over" in run(program, "take", status=1)

        asked = graflow(*TAKE_OVER, status=2)
        taken = graflow(*TAKE_OVER, "--yes")
        old.wait()

    assert f"in use by process {old.pid}" in asked.err
    assert str(program) in asked.err
    assert "--yes" in asked.err
    said = [line for line in taken.err.splitlines() if str(old.pid) in line]
    assert said == [
        f"graflow-ckpt: process {old.pid} is asked to end; it has 35 s to save",
        f"graflow-ckpt: process {old.pid} has ended",
        f"graflow-ckpt: session s is taken over from process {old.pid}",
    ]
    assert "result:" in taken.out
    by = {m.user_metadata.get("by") for m in CheckpointManager.list_checkpoints("s")}
    assert old.pid not in by


HEIR = """
import os, signal, subprocess, sys
from graflow_ckpt.stores.files.store import LocalStore
lease = LocalStore("checkpoints").acquire("s")
null = subprocess.DEVNULL
heir = subprocess.Popen(["sleep", "60"], pass_fds=[lease._lock.fd], stdout=null, stderr=null)
print(heir.pid, flush=True)
signal.pause()
"""


def test_a_session_whose_lock_a_child_keeps_is_not_said_to_be_taken_over(program: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HEIR], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        heir = int(owner.stdout.readline())
        try:
            taken = graflow(*TAKE_OVER, "--yes", status=1)
        finally:
            os.kill(heir, signal.SIGKILL)

    assert f"process {owner.pid} has ended" in taken.err
    assert f"process {heir} " in taken.err
    assert "is taken over" not in taken.err
