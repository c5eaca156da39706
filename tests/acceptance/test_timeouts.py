"""Timeouts: when an attempt is over, when its code is, and what is left of it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from graflow_ckpt import Backoff, Event
from graflow_ckpt.core.errors import TaskTimeout
from tests.acceptance.command_line import LONG, gone, run, written
from tests.acceptance.places import Make, idle
from tests.loops import chain, of
from tests.stretch import stretched


def pids_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


# --- in a child process ----------------------------------------------------------------


def note(file: str, *more: int) -> None:
    """Write down the processes that are to be gone."""
    with open(file, "a") as out:
        print(os.getpid(), *more, file=out)


def stubborn(file: str) -> None:
    note(file)
    while True:
        try:
            while True:
                pass
        except BaseException:  # noqa: BLE001
            pass


def in_c(file: str) -> None:
    note(file)
    ctypes.PyDLL(None).sleep(60)  # PyDLL: holds the interpreter lock


def on_a_lock(file: str) -> None:
    note(file)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def busy_in_c(file: str) -> None:
    note(file)
    pow(3, 10**8, 10**3_000_000 + 7)  # one C call of many minutes


def with_children(file: str) -> None:
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    forked = os.fork()
    if not forked:
        while True:
            signal.pause()
    note(file, own.pid, forked)
    own.wait()


BODIES = [stubborn, in_c, on_a_lock, busy_in_c, with_children]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_timeout_ends_the_code_in_a_child_within_a_second(body, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    limit = stretched(1.0)  # a child is started in it
    flow = chain(of(body, "hang", isolation="process", timeout=limit))
    flow.get_channel().set("file", str(file))

    began = time.monotonic()
    with pytest.raises(TaskTimeout):
        flow.execute()
    took = time.monotonic() - began

    pids = pids_in(file)
    assert took < limit + stretched(1.0)
    assert len(pids) == (3 if body is with_children else 1)
    assert all(gone(pid, 1) for pid in pids)


def test_a_retry_runs_in_a_process_of_its_own_after_a_timeout(tmp_path: Path, workflow: Make) -> None:
    def a(context, file: str) -> str:
        context.get_channel().set(f"trace{context.attempt}", 1)
        if context.attempt == 1:
            stubborn(file)
        return "second"

    flow = chain(a, make=workflow, isolation="process", timeout=stretched(1.0), max_retries=1)
    flow.get_channel().set("file", str(tmp_path / "pids"))

    assert flow.execute() == "second"
    assert flow.get_channel().keys() == ["file", "trace2", "a.__result__"]


def test_what_a_body_left_running_ends_with_its_attempt(workflow: Make) -> None:
    def a() -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

    assert gone(chain(a, make=workflow, isolation="process").execute(), 1)


# --- in a thread -----------------------------------------------------------------------


def swallow(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            while time.monotonic() < deadline:
                pass
        except BaseException:  # noqa: BLE001
            pass


def blocked_in_c(seconds: float) -> None:
    ctypes.CDLL(None).usleep(int(seconds * 1e6))


def blocked_on_a_lock(seconds: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=seconds)


@pytest.mark.parametrize("body", [swallow, blocked_in_c, blocked_on_a_lock], ids=lambda body: body.__name__)
def test_a_thread_that_hangs_holds_up_neither_a_retry_nor_the_end(body) -> None:
    attempts, timeout = [], stretched(0.2)

    def hang(context) -> str:
        attempts.append(context.attempt)
        if context.attempt == 1:
            body(15 * timeout)
        return "second"

    began = time.monotonic()
    assert chain(hang, timeout=timeout, max_retries=1).execute() == "second"
    took = time.monotonic() - began

    assert attempts == [1, 2]
    assert took < max(10 * timeout, stretched(2))


def test_a_timeout_in_a_thread_says_how_code_can_be_ended() -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(LONG)

    with pytest.raises(TaskTimeout, match="isolation='process'"):
        chain(hang, timeout=0.05).execute()
    release.set()


def test_a_task_killed_by_its_timeout_leaves_no_channel_write_behind() -> None:
    release = threading.Event()

    def slow(context) -> None:
        context.get_channel().set("half", "done")
        context.get_channel().append("log", "done")
        release.wait(LONG)

    flow = chain(slow, timeout=0.1, on_failure="continue").add(*idle("other"))
    flow.execute()
    release.set()

    assert flow.get_channel().keys() == ["other.__result__"]


def test_every_call_of_an_attempt_that_is_over_is_refused(workflow: Make) -> None:
    over, done = threading.Event(), threading.Event()
    refused: list[str] = []

    def slow(context) -> None:
        channel = context.get_channel()
        assert over.wait(LONG)
        calls = {
            "get": lambda: channel.get("x"),
            "set": lambda: channel.set("x", 1),
            "append": lambda: channel.append("x", 1),
            "checkpoint": context.checkpoint,
            "next_iteration": context.next_iteration,
            "next_task": lambda: context.next_task("slow"),
            "terminate": context.terminate_workflow,
            "cancel": context.cancel_workflow,
            "progress": lambda: context.progress(1),
        }
        for name, call in calls.items():
            try:
                call()
            except TaskTimeout:
                refused.append(name)
        if context.cancelled:
            refused.append("cancelled")
        done.set()

    ending = [lambda e: e.kind == "task_ended" and over.set()]
    chain(slow, make=workflow, timeout=0.05, on_failure="continue", observers=ending).execute()

    assert done.wait(LONG)
    assert refused == [
        "get", "set", "append", "checkpoint", "next_iteration", "next_task", "terminate", "cancel",
        "progress", "cancelled",
    ]  # fmt: skip


def test_the_interpreter_ends_although_a_thread_hangs() -> None:
    program = written(
        "import threading\n"
        "from graflow_ckpt import task, workflow\n"
        "with workflow('w', on_failure='continue') as flow:\n"
        "    @task(timeout=0.1)\n"
        "    def hang():\n"
        "        threading.Lock().acquire() and threading.Event().wait()\n"
        "    flow.execute()\n"
        "    print(flow.execution_context.status)\n"
    )

    assert "completed" in run(program)


# --- async def -------------------------------------------------------------------------


def test_a_coroutine_is_cancelled_at_its_deadline(workflow: Make) -> None:
    ended = threading.Event()
    seen: list[Event] = []

    async def hang() -> None:
        try:
            await asyncio.sleep(LONG)
        finally:
            ended.set()

    with pytest.raises(TaskTimeout):
        chain(hang, make=workflow, timeout=0.1, observers=[seen.append]).execute()

    assert ended.wait(1)
    assert not [event for event in seen if event.kind == "task_late"]


def test_a_coroutine_that_swallows_its_cancellation_is_fenced_and_retried(workflow: Make) -> None:
    swallowed, finish = threading.Event(), threading.Event()

    async def stubborn(context) -> str:
        if context.attempt == 2:
            finish.set()
            return "second"
        context.get_channel().set("x", 1)
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            swallowed.set()
            while not finish.is_set():
                await asyncio.sleep(0.001)
        return "first"

    options = {"timeout": stretched(0.1), "max_retries": 1, "backoff": Backoff(0.05)}
    flow = chain(stubborn, make=workflow, **options)

    assert flow.execute() == "second"
    assert swallowed.is_set()
    assert "x" not in flow.get_channel()
