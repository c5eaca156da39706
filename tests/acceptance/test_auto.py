"""Durable by default: a session with an id keeps each commit, and large values within a budget of time.

Each case of the table in docs/sessions.md, and what a kill in a gap costs.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt import Budget, CheckpointManager, task, workflow
from graflow_ckpt.engine import cuts as engine_cuts
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.command_line import KILLED, graflow, program
from tests.loops import LONG, cuts
from tests.loops import loop as loop_of
from tests.servers import Server
from tests.unit.stores.faults import FaultyDisk

loop = partial(loop_of, durability="auto")
PAGE = Path("docs/sessions.md").resolve()
MIB = 1 << 20

# Three tasks with results of a size; killed in the third one, once.
THREE = """
import os, sys
from graflow_ckpt import task, workflow

SIZE = int(sys.argv[1])

with workflow("three", *sys.argv[2:3]) as ctx:

    @task
    def one():
        print("one runs", flush=True)
        return os.urandom(SIZE)

    @task
    def two(one):
        print("two runs", flush=True)
        return {sys.argv[3]}

    @task
    def three(two):
        print("three runs", flush=True)
        if not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
        return len(two)

    one >> two >> three
    print("result", ctx.execute())
"""

# A model that changes each round, killed at the start of a round, once.
MODEL = """
import os
from graflow_ckpt import task, workflow

class Model:
    def __init__(self):
        self.weights = bytearray(3 << 20)
        self.rounds = []

with workflow("train", "s") as ctx:

    @task(inject_context=True)
    def turn(context):
        model = context.get_channel().get("model", default=None) or Model()
        if context.cycle == 5 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
        print("round", context.cycle, flush=True)
        model.rounds.append(context.cycle)
        model.weights[context.cycle] = 1
        context.get_channel().set("model", model)
        if context.cycle < 8:
            context.next_iteration()
        return model.rounds

    ctx.add(turn)
    print("result", ctx.execute())
"""


def three(size: int, *arguments: str, two: str = "os.urandom(SIZE)") -> tuple[str, str]:
    """What two runs print, the first of which is killed in the third task."""
    program("three.py", THREE.replace("{sys.argv[3]}", two))
    first = graflow("run", "three.py", "--", str(size), *arguments, status=KILLED)
    second = graflow("run", "three.py", "--", str(size), *arguments)
    assert f"result {size}" in second.out
    return first.out, second.out


def a_session_with_an_id(request: pytest.FixtureRequest) -> None:
    _, again = three(10, "s")

    assert again.split("\n")[0] == "three runs"


def a_result_or_value_of_more_than_one_mebibyte(request: pytest.FixtureRequest) -> None:
    for number, two in enumerate(("os.urandom(SIZE)", "bytearray(os.urandom(SIZE))")):
        Path("killed").unlink(missing_ok=True)

        _, again = three(3 * MIB, f"s{number}", two=two)

        assert again.split("\n")[0] == "three runs"


def a_large_value_that_changes_again_and_again(request: pytest.FixtureRequest) -> None:
    program("train.py", MODEL)
    graflow("run", "train.py", status=KILLED)

    planned = graflow("plan", "s")
    ended = graflow("run", "train.py")

    assert "'model'" in planned.out + planned.err
    assert "result [0, 1, 2, 3, 4, 5, 6, 7, 8]" in ended.out
    assert "round 5" in ended.out
    assert "round 0" not in ended.out  # the first change was saved, by the credit
    by_budget = [meta for meta in CheckpointManager.list_checkpoints("s") if meta.cause == "budget"]
    assert 1 <= len(by_budget) <= 2


def a_run_without_an_id(request: pytest.FixtureRequest) -> None:
    first, second = three(10)

    assert first == "one runs\ntwo runs\nthree runs\n"
    assert second.startswith(first)
    assert not Path("checkpoints").exists()


def grow(context) -> None:
    """A new large value, live and nobody else's."""
    context.get_channel().set("large", [bytearray(2 * MIB), context.cycle])


def a_task_that_must_not_run_twice(request: pytest.FixtureRequest) -> None:
    with workflow("w", "s", durability="auto") as flow:

        @task(inject_context=True, on_interrupted="skip")
        def pay(context) -> int:
            grow(context)
            saved.append(cuts("budget"))
            if context.cycle < 3:
                context.next_iteration()
            return context.cycle

        flow.add(pay)

    saved: list[list[int]] = []
    assert flow.execute() == 3

    assert [steps[-1:] for steps in saved] == [[], [1], [2], [3]]


def a_record_that_cannot_be_written(request: pytest.FixtureRequest) -> None:
    disk = FaultyDisk()
    flow = loop(
        5, lambda context: disk.arm("sync_data") if context.cycle == 2 else None,
        store=LocalStore("checkpoints", disk=disk),
    )  # fmt: skip

    assert flow.execute() == 4

    assert cuts("budget") == [3]


def a_long_journal(request: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_cuts, "LONGEST", 10)

        assert loop(60).execute() == 59

    assert len(cuts("budget")) == 2
    assert cuts("budget")[-1] >= 40


def a_written_durability(request: pytest.FixtureRequest) -> None:
    assert loop_of(3, durability="checkpoint").execute() == 2

    assert cuts("journal") == cuts("budget") == []
    assert list(Path("checkpoints").glob(".s.*.journal")) == []


def keep_at(url: str) -> None:
    """A loop there, of which no journal is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAFLOW_CKPT_KEY", new_key())
        flow = loop(3, grow, store=url)

        assert flow.execute() == 2

        assert list(flow.execution_context.home.store.segments("s")) == []
        assert "budget" in {meta.cause for meta in CheckpointManager.list_checkpoints("s", store=url)}


def a_bucket(request: pytest.FixtureRequest) -> None:
    keep_at(request.getfixturevalue("objects_url"))


def a_server_that_confirms_early(request: pytest.FixtureRequest) -> None:
    with Server() as server:
        keep_at(server.url)


CASES = {
    "a session with an id": a_session_with_an_id,
    "a result or value of more than 1 MiB": a_result_or_value_of_more_than_one_mebibyte,
    "a large value that changes again and again": a_large_value_that_changes_again_and_again,
    "a run without an id": a_run_without_an_id,
    "a task with `on_interrupted` other than `rerun`": a_task_that_must_not_run_twice,
    "a record that cannot be written": a_record_that_cannot_be_written,
    "a long journal": a_long_journal,
    "a bucket": a_bucket,
    "a server that confirms what is not on its disk": a_server_that_confirms_early,
    "a durability that is written": a_written_durability,
}


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_the_page(case: str, request: pytest.FixtureRequest) -> None:
    CASES[case](request)


def test_the_page_has_these_cases() -> None:
    section = PAGE.read_text().partition("## Durable by default")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]

    assert rows[1:] == [*CASES]


def test_without_the_checkpoint_that_closed_a_gap_the_session_stands_before_it() -> None:
    text = MODEL.replace('set("model", model)', 'set("model", model) if context.cycle == 4 else None')
    program("train.py", text)
    graflow("run", "train.py", status=KILLED)
    (saved,) = [meta for meta in CheckpointManager.list_checkpoints("s") if meta.cause == "budget"]
    Path(saved.path).write_bytes(b"spoilt")

    context = loop(4).execution_context

    assert saved.steps == 5
    assert context.steps == 4
    assert context.state.gap is not None
    assert context.state.gap[0] == "model"


def test_a_checkpoint_that_waits_for_a_loan_holds_tasks_back_for_its_budget_alone() -> None:
    done = threading.Event()
    order: list[str] = []
    with workflow("w", "s", max_parallel=2) as flow:

        @task(inject_context=True)
        def long(context):
            held = context.get_channel().get("held", default=[object])
            assert done.wait(LONG)
            return len(held)

        @task(inject_context=True)
        def quick(context):
            grow(context)
            order.append("quick")
            if context.cycle < 3:
                context.next_iteration()
            else:
                done.set()

        flow.add(long, quick)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_cuts, "Budget", lambda: Budget(0.05, credit=0.2))
        flow.execute()

    assert order == ["quick"] * 4


def test_without_a_session_id_nothing_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with workflow("w") as flow:
        flow.add(task(id="one")(lambda: 1))
    with caplog.at_level(logging.WARNING):
        assert flow.execute() == 1

    assert flow.execution_context.settings.durability == "checkpoint"
    assert not os.path.exists("checkpoints")
    assert caplog.text == ""
