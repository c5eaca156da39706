"""SIGTERM and Ctrl-C, sent to real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager
from tests.acceptance.command_line import gone, run, started, written
from tests.loops import chain
from tests.stretch import stretched

# Four steps; in the second one it says "at work" and waits for a line. argv: how it is run, grace.
PROGRAM = """
import asyncio, select, signal, sys
from graflow_ckpt import task, workflow

HOW, GRACE = sys.argv[1], float(sys.argv[2])

def say(text):
    print(text, flush=True)

def work(items):
    say("at work")
    while not select.select([sys.stdin], [], [], 0.05)[0]:  # a signal right before a long wait waits too
        pass
    sys.stdin.readline()

before = signal.getsignal(signal.SIGTERM)
with workflow("w", session_id="s", grace=GRACE) as flow:
    @task(inject_context=True)
    def first(context):
        say("first")
        context.get_channel().set("items", [1] if HOW != "live" else Live([1]))

    @task(inject_context=True, timeout=1000 if HOW == "thread" else None)
    def second(context):
        items = context.get_channel().get("items")
        work(items)
        items.append(2)
        say(f"cancelled: {context.cancelled}")

    @task(id="second", inject_context=True)
    async def async_second(context):
        items = context.get_channel().get("items")
        await asyncio.to_thread(work, items)
        items.append(2)

    @task(inject_context=True)
    def third(context):
        say("third")
        context.get_channel().get("items").append(3)

    @task(inject_context=True)
    def last(context):
        return list(context.get_channel().get("items"))

class Live(list):
    pass

chain = workflow("w", session_id="s", grace=GRACE)
chain.add(first >> (async_second if HOW == "async" else second) >> third >> last)
result = asyncio.run(chain.aexecute()) if HOW == "async" else chain.execute()
say(f"restored: {signal.getsignal(signal.SIGTERM) is before}")
say(f"result: {result}")
"""


@pytest.fixture
def program() -> Path:
    return written(PROGRAM)


def goes_on(program: Path, how: str) -> list[str]:
    """What the same program says when it is started again, until it has its result."""
    with started(program, how, "30") as second:
        second.tell()
        assert second.wait() == 0
    assert "result: [1, 2, 3]" in second.said
    return second.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["inline", "thread", "async"])
def test_the_first_signal_lets_the_task_finish_saves_and_says_how_to_go_on(
    program: Path, how: str, number: signal.Signals
) -> None:
    with started(program, how, "30") as first:
        first.hear("at work")
        first.signal(number)
        first.hear(f"{number.name}: finishing what runs")
        first.tell()
        status = first.wait()

    assert status == 75
    assert "third" not in first.said
    if how != "async":
        assert "cancelled: True" in first.said
    assert "it goes on at step 2" in first.text
    assert "graflow-ckpt resume s" in first.text
    assert "Traceback" not in first.text
    again = run(program, how, "30")
    assert "at work" not in again
    assert "restored: True" in again
    assert "result: [1, 2, 3]" in again


@pytest.mark.parametrize("how", ["inline", "thread", "async"])
def test_a_second_ctrl_c_leaves_at_once(program: Path, how: str) -> None:
    with started(program, how, "30") as first:
        first.hear("at work")
        first.signal(signal.SIGINT)
        first.hear("finishing what runs")
        began = time.monotonic()
        first.signal(signal.SIGINT)
        if how == "async":
            first.tell()  # the executor of asyncio.to_thread, which is the program's, waits for its thread
        status = first.wait()

    assert time.monotonic() - began < stretched(5)
    assert status in (130, -signal.SIGINT)  # a shell makes 130 of both
    assert "KeyboardInterrupt" in first.text
    goes_on(program, how)


def test_a_second_sigterm_leaves_at_once_and_keeps_what_is_complete(program: Path) -> None:
    with started(program, "inline", "30") as first:
        first.hear("at work")
        first.signal(signal.SIGTERM)
        first.hear("finishing what runs")
        first.signal(signal.SIGTERM)
        status = first.wait()

    assert status == 75
    assert "it goes on at step 1" in first.text
    newest = CheckpointManager.list_checkpoints("s")[0]
    assert newest.steps == 1
    assert newest.cause == "signal"
    assert "first" not in goes_on(program, "inline")


def test_a_live_value_that_is_out_when_the_grace_period_ends_is_not_photographed(program: Path) -> None:
    with started(program, "live", "0.3") as first:
        first.hear("at work")
        first.signal(signal.SIGTERM)
        status = first.wait()

    assert status == 75
    assert "items is on loan: the last checkpoint stands" in first.text
    assert "it goes on at step 1" in first.text  # the journal has it
    assert "first" not in goes_on(program, "live")


@pytest.mark.parametrize("how", ["inline", "thread", "async"])
def test_after_the_grace_period_the_process_leaves_with_what_is_complete(program: Path, how: str) -> None:
    with started(program, how, "0.3") as first:
        first.hear("at work")
        began = time.monotonic()
        first.signal(signal.SIGTERM)
        if how == "async":
            first.hear("goes on at")
            first.tell()  # see above
        status = first.wait()

    assert status == 75
    assert time.monotonic() - began < stretched(5)
    assert "it goes on at step 1" in first.text


def alone(body: str, grace: float = 30, **options: object) -> Path:
    """A program of one task, which says that it is at work, and these lines."""
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    return written(
        "import select, sys, time\n"
        "import graflow_ckpt.engine.signals as signals\n"
        "from graflow_ckpt import task, workflow\n"
        "signals._LAST_RESORT = 0.3\n"
        f"with workflow('w', session_id='s', grace={grace}) as flow:\n"
        f"    @task(**{options})\n"
        "    def only():\n"
        f"        print('at work', flush=True)\n{lines}"
        "    print('result:', flow.execute())\n"
    )


def test_a_body_that_swallows_everything_is_left_behind_in_the_end() -> None:
    program = alone("while True:\n  try: time.sleep(0.05)\n  except BaseException: pass", grace=0.3)
    with started(program) as process:
        process.hear("at work")
        process.signal(signal.SIGTERM)
        status = process.wait()

    assert status == 75
    assert "a task does not let go" in process.text


def test_a_signal_during_the_last_task_ends_the_program_and_keeps_the_result() -> None:
    program = alone("while not select.select([sys.stdin], [], [], 0.05)[0]: pass\nreturn 7")
    with started(program) as process:
        process.hear("at work")
        process.signal(signal.SIGTERM)
        process.hear("finishing")
        process.tell()
        assert process.wait() == 75

    assert "result:" not in process.text
    assert "result: 7" in run(program)


def test_a_signal_ends_the_wait_for_a_retry() -> None:
    with started(alone("raise OSError", max_retries=1, backoff=1000)) as process:
        process.hear("it runs again")
        process.signal(signal.SIGTERM)
        assert process.wait() == 75


APART = """
import os
from graflow_ckpt import task, workflow
if __name__ == "__main__":
    with workflow("w", session_id="s") as flow:
        @task(isolation="process")
        def work():
            open("pids", "w").write(str(os.getpid()))
            print("at work", flush=True)
            open("go").read()
            return "done"
        print("result:", flow.execute())
"""


def test_a_process_of_a_task_gets_no_ctrl_c_and_finishes(tmp_path: Path) -> None:
    program, fifo = written(APART), tmp_path / "go"
    os.mkfifo(fifo)
    with started(program) as process:
        process.hear("at work")
        process.signal(signal.SIGINT)
        process.hear("finishing")
        fifo.write_text("go")
        assert process.wait() == 75

    assert "result: done" in run(program)
    assert gone(int(Path("pids").read_text()), 1)


def test_no_handlers_are_installed_outside_of_the_main_thread() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=chain(look).execute)
    thread.start()
    thread.join()

    assert found == [before]


def test_the_handlers_of_before_are_restored_also_after_a_failure() -> None:
    def mine(number: int, frame: object) -> None: ...

    def look() -> None:
        inside.append(signal.getsignal(signal.SIGTERM))
        raise OSError("mine")

    before = signal.signal(signal.SIGTERM, mine)
    inside: list[object] = []
    try:
        with pytest.raises(OSError, match="mine"):
            chain(look).execute()
        after = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert inside != [mine]
    assert after is mine
