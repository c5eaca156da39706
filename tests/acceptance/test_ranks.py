"""Several ranks, threads and processes of one program, and who owns a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, workflow
from graflow_ckpt.core.errors import SessionBusy
from graflow_ckpt.engine.settings import Settings
from tests.acceptance.processes import run, started, written

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


def test_with_rank_set_the_refusal_says_how_each_rank_gets_a_session_of_its_own(program: Path) -> None:
    with started(program, "wait", RANK="0") as owner:
        owner.hear("at work")

        said = run(program, status=1, RANK="1")

    assert "RANK is set" in said
    assert 'session_id=f"s-rank{r}"' in said
    assert '"s-rank1"' in said


def test_ranks_with_sessions_of_their_own_do_not_meet(program: Path) -> None:
    with started(program, "wait", SESSION="s-rank0") as owner:
        owner.hear("at work")

        assert "result:" in run(program, SESSION="s-rank1")


def test_the_same_session_twice_in_one_process_is_refused() -> None:
    first = workflow("w", session_id="s").execution_context

    with pytest.raises(SessionBusy, match="in use by this process itself"):
        _ = workflow("w", session_id="s").execution_context

    first.home.close()
    workflow("w", session_id="s").execution_context.home.close()


def test_the_same_session_in_two_threads_is_refused() -> None:
    entered, leave = threading.Event(), threading.Event()
    results: list[Any] = []

    def execute() -> None:
        from graflow_ckpt import task

        with workflow("w", session_id="s") as flow:

            @task
            def a() -> int:
                entered.set()
                leave.wait(20)
                return 1

            results.append(flow.execute())

    thread = threading.Thread(target=execute)
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

        command = (sys.executable, "-m", "graflow_ckpt", "run", str(program), "--session", "s", "--take-over")
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        taken = subprocess.run([*command, "--yes"], capture_output=True, text=True)
        old.wait()

    assert asked.returncode == 2
    assert f"in use by process {old.pid}" in asked.stderr
    assert str(program) in asked.stderr
    assert "--yes" in asked.stderr
    assert taken.returncode == 0, taken.stderr
    said = [line for line in taken.stderr.splitlines() if str(old.pid) in line]
    assert said == [
        f"graflow-ckpt: process {old.pid} is asked to end; it has 35 s to save",
        f"graflow-ckpt: process {old.pid} has ended",
        f"graflow-ckpt: session s is taken over from process {old.pid}",
    ]
    assert "result:" in taken.stdout
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
    command = (sys.executable, "-m", "graflow_ckpt", "run", str(program), "--session", "s", "--take-over")
    with subprocess.Popen([sys.executable, "-c", HEIR], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        heir = int(owner.stdout.readline())
        try:
            taken = subprocess.run([*command, "--yes"], capture_output=True, text=True)
        finally:
            os.kill(heir, signal.SIGKILL)

    assert taken.returncode == 1
    assert f"process {owner.pid} has ended" in taken.stderr
    assert f"process {heir} " in taken.stderr
    assert "is taken over" not in taken.stderr


def test_a_context_that_ended_lets_its_session_go() -> None:
    from graflow_ckpt import WorkflowEngine, task

    with workflow("w") as flow:

        @task
        def a() -> int:
            return 1

    for _ in range(2):
        context = ExecutionContext(flow.graph, "s", settings=Settings())
        assert WorkflowEngine().execute(context) == 1
        assert context.home.lease is None
