"""graflow-ckpt checkpoints fork: another session with other values, and the first one as it was."""

from __future__ import annotations

import pytest

from tests.acceptance.command_line import checkpoints, graflow, program

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

RATE = """
from graflow_ckpt import EveryTask, task, workflow

with workflow("rate", checkpoint=EveryTask()) as ctx:
    @task(inject_context=True)
    def climb(context, data=0):
        channel = context.get_channel()
        channel.set("height", channel.get("height", 0) + channel.get("rate", 1))
        channel.set("rate", channel.get("rate", 1))
        if data < 3:
            context.next_iteration(data + 1)
        return channel.get("height")
    print("result", ctx.execute())
"""


@pytest.fixture
def cuts() -> list[str]:
    program("rate.py", RATE)
    graflow("run", "rate.py", "--session", "s")
    return checkpoints("s")


def test_a_fork_begins_where_the_checkpoint_is_with_the_values_that_were_set(cuts: list[str]) -> None:
    made = graflow("checkpoints", "fork", cuts[0], "fast", "--set", "rate=100", "--json").document
    done = graflow("resume", "fast")

    assert (made["session"], made["from"], made["set"]) == ("fast", cuts[0], ["rate"])
    assert done.out == "result 301\n"
    assert checkpoints("s") == cuts
    assert "session s was finished" in graflow("resume", "s").err


def test_it_gets_a_name_and_runs_nothing(cuts: list[str]) -> None:
    first = graflow("checkpoints", "fork", cuts[1])
    second = graflow("checkpoints", "fork", cuts[1], "--json").document

    assert first.out.startswith("checkpoints/session_s-fork_step_2_")
    assert "session s-fork begins at step 2; graflow-ckpt resume s-fork" in first.err
    assert second["session"] == "s-fork-2"


def test_only_values_that_are_there_can_be_set(cuts: list[str]) -> None:
    told = graflow("checkpoints", "fork", cuts[0], "x", "--set", "rat=2", status=1)

    assert "has no value 'rat' that could be set" in told.err
    assert "It has: rate." in told.err
    assert checkpoints("x") == []
    graflow("checkpoints", "fork", cuts[0], "x", "--set", "rate", status=2)
    graflow("checkpoints", "fork", cuts[0], "s", status=1)
