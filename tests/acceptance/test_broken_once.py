"""What was broken once: one small program per defect, so that it does not come back."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from graflow_ckpt import task, workflow
from tests.acceptance.processes import run


class Box:
    """A live value."""

    def __init__(self, what: Any) -> None:
        self.what = what


def killed_and_resumed(tmp_path: Path, body: str) -> str:
    """What a program says that kills itself (`crash` is true) and is started again."""
    program = tmp_path / "program.py"
    head = "import os, sys\nfrom graflow_ckpt import task, workflow\ncrash = sys.argv[1:] == ['crash']\n"
    program.write_text(head + dedent(body))
    run(program, "crash", status=9)
    return run(program)


def test_a_live_value_that_comes_back_after_another_is_in_the_journal(tmp_path: Path) -> None:
    said = killed_and_resumed(
        tmp_path,
        """
        class Box:
            pass

        with workflow("w", session_id="s", durability="journal") as flow:
            @task(inject_context=True)
            def first(context):
                context.channel.set("x", Box())
                context.channel.set("items", [Box])

            @task(inject_context=True)
            def second(context):
                context.channel.set("x", 5)
                context.channel.append("items", 3)

            @task(inject_context=True)
            def third(context):
                context.channel.set("x", Box())
                context.channel.set("items", [Box])

            @task
            def last():
                if crash:
                    os._exit(9)

            first >> second >> third >> last
            flow.execute()
            print(type(flow.get_channel().get("x")).__name__, len(flow.get_channel().get("items")))
        """,
    )
    assert "Box 1" in said


def test_a_forked_child_that_leaves_the_interpreter_cuts_nothing_off_the_journal(tmp_path: Path) -> None:
    said = killed_and_resumed(
        tmp_path,
        """
        ready, go = os.pipe()

        with workflow("w", session_id="s", durability="journal") as flow:
            @task
            def fork():
                if "crash" in sys.argv and os.fork() == 0:
                    os.read(ready, 1)
                    sys.exit(0)

            @task(inject_context=True)
            def more(context):
                print("more", context.cycle)
                if context.cycle < 5:
                    context.next_iteration()

            @task
            def last():
                if crash:
                    os.write(go, b"x")
                    os.wait()
                    os._exit(9)
                print("last")

            fork >> more >> last
            flow.execute()
        """,
    )
    assert "more" not in said
    assert "last" in said


@pytest.mark.parametrize("on_interrupted", ["rerun", "skip", "fail", "ask"])
def test_going_back_to_a_cut_is_no_crash(tmp_path: Path, on_interrupted: Any) -> None:
    attempts = []

    with workflow("w", session_id="s", store=tmp_path, durability="journal") as flow:

        @task(inject_context=True)
        def make(context) -> None:
            context.channel.set("box", Box(0))

        @task(inject_context=True, max_retries=5, on_interrupted=on_interrupted)
        def fill(context) -> int:
            attempts.append(0)
            context.channel.get("box").what += 1
            if len(attempts) < 6:
                raise ValueError("not yet")
            return 7

        make >> fill
        assert flow.execute() == 7

    assert flow.get_channel().get("box").what == 1


def test_a_cut_that_is_kept_elsewhere_takes_nothing_off_the_journal(tmp_path: Path) -> None:
    said = killed_and_resumed(
        tmp_path,
        """
        with workflow("w", session_id="s", durability="journal") as flow:
            @task(inject_context=True)
            def step(context):
                print("step", context.cycle)
                if crash and context.cycle in (2, 4, 6):
                    context.execution_context.checkpoint(f"elsewhere/{context.cycle}.pkl")
                if crash and context.cycle == 8:
                    os._exit(9)
                if context.cycle < 9:
                    context.next_iteration()

            flow.execute()
        """,
    )
    assert [line for line in said.splitlines() if line.startswith("step")] == ["step 8", "step 9"]
