"""What a caller changes in a session while no run drives it, and a kill in the run that follows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graflow_ckpt.core.facts import TaskSpec
from tests.loops import chain, of, pair

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

CHANGES = {
    "one more task": lambda context: context.add_to_queue("extra"),
    "two more tasks": lambda context: [context.add_to_queue("extra"), context.add_to_queue("extra")],
    "a task with small data": lambda context: context.add_to_queue(
        TaskSpec("extra", context.to_cell("d", 1))
    ),
    "a task with large data": lambda context: context.add_to_queue(
        TaskSpec("extra", context.to_cell("d", bytes(2 << 20)))
    ),
    "a task that counts as completed": lambda context: context.mark_task_completed("extra"),
}


def main(place: str, change: str, step: str) -> None:
    log = Path(place, "log")

    def note(name: str) -> None:
        with log.open("a") as file:
            file.write(f"{name}\n")

    def a() -> None:
        note("a")

    def b() -> None:
        note("b")
        if step != "3":
            os.kill(os.getpid(), signal.SIGKILL)

    def extra(data: object = None) -> None:
        note("extra")

    flow = chain(a, b, session_id="s", durability="journal", max_parallel=1, store=f"{place}/checkpoints")
    flow.add(of(extra))
    if step == "2":
        CHANGES[change](flow.execution_context)
    flow.execute("a")


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_between_runs_survives_a_kill(tmp_path: Path, change: str) -> None:
    def run(step: int) -> int:
        command = [sys.executable, "-m", __name__, str(tmp_path), change, str(step)]
        return subprocess.run(command, cwd=Path(__file__).parents[2], timeout=60).returncode

    assert run(1) == -signal.SIGKILL
    assert run(2) == -signal.SIGKILL
    assert run(3) == 0

    ran = (tmp_path / "log").read_text().split()
    assert (ran.count("a"), ran.count("b")) == (1, 3)
    times = {"two more tasks": 2, "a task that counts as completed": 0}.get(change, 1)
    assert ran.count("extra") == times


def test_what_is_queued_between_two_runs_of_one_context_runs(tmp_path: Path) -> None:
    ran: list[str] = []
    flow = pair(ran, durability="journal", store=str(tmp_path))
    context = flow.execution_context

    flow.execute(max_steps=1)
    context.add_to_queue("a")
    context.execute(max_steps=100)

    assert ran == ["a", "b", "a", "b"]


if __name__ == "__main__":
    main(*sys.argv[1:])
