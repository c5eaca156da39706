"""What was running when its process died, and what a journal makes of it: real processes, real kills."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, Workflow, task, workflow
from graflow_ckpt.core.errors import GraphError, InDoubt, JournalDamaged, JournalFailed, TaskError
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.stores.local import LocalStore
from tests.acceptance.processes import run, started
from tests.unit.stores.faults import FaultyDisk

# argv: on_interrupted, then tasks that kill their process
PROGRAM = """
import os, signal, sys
from graflow_ckpt import task, workflow

ON, DEADLY = sys.argv[1], sys.argv[2:]

def body(name):
    with open("runs", "a") as runs:
        print(name, file=runs)
    if name in DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)

with workflow("w", session_id="s", durability="journal") as flow:
    @task
    def first():
        body("first")
        return 1

    @task(inject_context=True, on_interrupted=ON)
    def second(context, first):
        context.get_channel().set("half", first)
        body("second")
        print("attempt", context.attempt, context.idempotency_key)
        return 2

    @task
    def third(second=None):
        body("third")
        return f"after {second}"

    first >> second >> third

if __name__ == "__main__":
    print("result:", flow.execute())
"""

KILLED = -signal.SIGKILL


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def runs() -> list[str]:
    return Path("runs").read_text().split()


def test_with_rerun_the_task_runs_again_and_no_completed_one_does(program: Path) -> None:
    run(program, "rerun", "second", status=KILLED)

    said = run(program, "rerun")

    assert runs() == ["first", "second", "second", "third"]
    assert "attempt 2 s/second/0" in said
    assert "result: after 2" in said


def test_with_skip_its_successors_go_on_without_it(program: Path) -> None:
    run(program, "skip", "second", status=KILLED)

    assert "result: after None" in run(program, "skip")
    assert runs() == ["first", "second", "third"]


def test_with_fail_the_session_fails_by_name_and_the_next_run_tries_again(program: Path) -> None:
    run(program, "fail", "second", status=KILLED)

    said = run(program, "fail", status=1)

    assert "second was running when its process died" in said
    assert runs() == ["first", "second"]
    assert "result: after 2" in run(program, "fail")


def test_with_ask_nothing_runs_until_there_is_an_answer(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(program, "ask", "second", status=KILLED)

    said = run(program, "ask", status=1)

    assert "running when the process died: second" in said
    assert "--in-doubt" in said
    assert runs() == ["first", "second"]


@pytest.mark.parametrize(
    ("answer", "result"), [("rerun", "after 2"), ("skip", "after None"), ("fail", TaskError)]
)
def test_an_answer_is_carried_out(program: Path, answer: str, result: Any) -> None:
    run(program, "ask", "second", status=KILLED)
    flow = same_program("ask")
    flow.settings = replaced(flow.settings, in_doubt=(("second", answer),))

    if isinstance(result, str):
        assert flow.execute() == result
    else:
        with pytest.raises(result, match="second was running"):
            flow.execute()


def test_without_an_answer_the_error_has_the_tasks(program: Path) -> None:
    run(program, "ask", "second", status=KILLED)

    with pytest.raises(InDoubt) as doubt:
        same_program("ask").execute()

    assert doubt.value.tasks == ["second"]


def same_program(on: str) -> Workflow:
    with workflow("w", session_id="s", durability="journal", changed="reuse") as flow:

        @task
        def first() -> int:
            raise AssertionError("has run before")

        @task(inject_context=True, on_interrupted=on)
        def second(context, first) -> int:
            return 2

        @task
        def third(second=None) -> str:
            return f"after {second}"

        first >> second >> third
    return flow


def replaced(settings: Settings, **changes: Any) -> Settings:
    from dataclasses import replace

    return replace(settings, **changes)


def test_a_task_that_takes_its_process_down_three_times_fails_by_name(program: Path) -> None:
    for _ in range(3):
        run(program, "rerun", "second", status=KILLED)

    said = run(program, "rerun", "second", status=1)

    assert "second was running when its process died (3 times)" in said
    assert runs().count("second") == 3


def test_other_than_rerun_without_a_journal_is_refused_before_anything_runs() -> None:
    with workflow("w") as flow:

        @task(on_interrupted="skip")
        def a() -> None: ...

        with pytest.raises(GraphError, match=r"'a' has on_interrupted='skip'.*durability='journal'"):
            flow.execute()


def test_a_kill_of_a_stopped_process_loses_no_committed_step(program: Path) -> None:
    slow = program.with_name("slow.py")
    slow.write_text(
        PROGRAM.replace(
            'body("third")\n', 'body("third"); print("at work", flush=True); sys.stdin.readline()\n'
        )
    )
    with started(slow, "rerun") as process:
        process.hear("at work")
        process.signal(signal.SIGSTOP)
        process.signal(signal.SIGKILL)
        assert process.wait() == KILLED

    assert "result: after 2" in run(program, "rerun")
    assert runs() == ["first", "second", "third", "third"]


# --- the journal itself ----------------------------------------------------------------


def steps(count: int, fails_at: int = -1) -> Workflow:
    """A loop of so many steps, each adding to a list."""
    with workflow("w", session_id="s", durability="journal") as flow:

        @task(inject_context=True)
        def turn(context) -> list[int]:
            numbers = context.get_channel().get("numbers", default=[])
            if context.cycle == fails_at:
                raise KeyboardInterrupt
            numbers.append(context.cycle)
            if context.cycle + 1 < count:
                context.next_iteration()
            return numbers

    return flow


def journals() -> list[Path]:
    return sorted(Path("checkpoints").glob(".s.*.journal"), key=lambda path: path.stat().st_mtime_ns)


def interrupted() -> Path:
    with pytest.raises(KeyboardInterrupt):
        steps(6, fails_at=4).execute()
    return journals()[-1]


def test_a_torn_tail_costs_the_torn_commit_only() -> None:
    journal = interrupted()
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-10])
    flow = steps(6)

    assert flow.execution_context.steps == 3
    assert flow.execute() == [0, 1, 2, 3, 4, 5]


def test_damage_in_the_middle_is_refused_by_name() -> None:
    journal = interrupted()
    whole = bytearray(journal.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    journal.write_bytes(whole)

    with pytest.raises(JournalDamaged, match=r"journal of session s .* is damaged at byte \d+") as damage:
        _ = steps(6).execution_context

    assert damage.value.session == "s"
    assert "checkpoints list" in damage.value.hint


@pytest.mark.parametrize("call", ["write_at", "sync_data"])
def test_a_journal_that_fails_stops_the_session_and_nothing_later_is_committed(call: str) -> None:
    ran = []
    disk = FaultyDisk()

    with workflow("w", session_id="s", durability="journal") as flow:

        @task(inject_context=True)
        def turn(context) -> None:
            ran.append(context.cycle)
            context.get_channel().append("log", context.cycle)
            if context.cycle == 2:
                disk.arm(call, errno.EIO)
            context.next_iteration()

    flow.execution_context.home.store = LocalStore("checkpoints", disk=disk)
    with pytest.raises(JournalFailed, match="Input/output error"):
        flow.execute()
    assert ran == [0, 1, 2]
    with pytest.raises(JournalFailed):
        flow.execution_context.get_channel().set("later", 1)

    with workflow("w", session_id="s", durability="journal", changed="reuse") as again:

        @task(id="turn", inject_context=True)
        def other(context) -> list[int]:
            return context.get_channel().get("log")

    assert again.execution_context.steps == 2
    assert again.execute() == [0, 1]


def test_a_cut_that_a_journal_waits_for_and_that_fails_stops_the_session() -> None:
    disk = FaultyDisk()
    ran = []

    with workflow("w", session_id="s", durability="journal") as flow:

        @task(inject_context=True)
        def turn(context) -> None:
            ran.append(context.cycle)
            if context.cycle == 1:
                disk.arm("rename", errno.ENOSPC)
                context.get_channel().set("big", bytes(2_000_000))
            context.next_iteration()

    flow.execution_context.home.store = LocalStore("checkpoints", disk=disk)
    with pytest.raises(Exception, match="No space left"):
        flow.execute()

    assert ran == [0, 1]
    assert len(CheckpointManager.list_checkpoints("s")) == 1


def test_values_of_all_kinds_come_back_from_the_journal() -> None:
    with workflow("w", session_id="s", durability="journal") as flow:

        @task(inject_context=True)
        def fill(context) -> Box:
            channel = context.get_channel()
            channel.set("plain", {"a": (1, 2.5, b"x")})
            channel.set("box", Box(1))
            channel.append("log", Box(2))
            return Box(3)

        @task(inject_context=True)
        def change(context, fill: Box) -> None:
            context.get_channel().get("box").items.append(fill.items[0])

        @task
        def dies() -> None:
            raise KeyboardInterrupt

        fill >> change >> dies
        with pytest.raises(KeyboardInterrupt):
            flow.execute()

    with workflow("w", session_id="s", durability="journal", changed="reuse") as again:
        context = again.execution_context
    channel = context.get_channel()
    assert context.replayed == 3
    assert channel.get("plain") == {"a": (1, 2.5, b"x")}
    assert channel.get("box").items == [1, 3]
    assert [item.items for item in channel.get("log")] == [[2]]
    assert context.get_result("fill").items == [3]
    context.home.close()


class Box:
    """A live value."""

    def __init__(self, *items: int) -> None:
        self.items = list(items)
