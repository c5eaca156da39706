"""What a person sees of a run on a terminal."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.acceptance.command_line import CHAIN, COUNT, Terminal, graflow, program, run_count

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

SLOW = """
import os, select, sys
from graflow_ckpt import task, workflow

with workflow("slow") as ctx:

    @task(inject_context=True)
    def work(context, data=0):
        context.progress(data, 40)
        print(f"line {data}", flush=True)
        select.select([], [], [], 0.05)
        if data < 40:
            context.next_iteration(data + 1)

    ctx.execute()
"""


def test_a_live_block_shows_how_far_a_session_is_below_what_it_prints() -> None:
    program("slow.py", SLOW)

    terminal = Terminal("run", "slow.py", "--session", "s", "--every", "5")
    terminal.read_until(r"last checkpoint: step \d+, \d+ s ago")
    terminal.read_until(r"slow s +\d+ done, 1 running, 0 pending, [\d.]+/s")
    terminal.read_until(r"work .*\d+/40")

    assert terminal.end() == 0
    assert re.search(r"session s \(slow\): new; ", terminal.text)
    assert "session s: completed after 41 steps" in terminal.text
    for number in range(41):
        assert re.search(rf"line {number}\r?\n", terminal.text), number


def test_the_cursor_is_shown_again_at_the_end() -> None:
    program("chain.py", CHAIN)
    Path("second.fails").touch()

    terminal = Terminal("run", "chain.py", "--session", "s")

    assert terminal.end() == 1
    assert terminal.seen.rfind(b"\x1b[?25h") > terminal.seen.rfind(b"\x1b[?25l") > 0
    assert "ZeroDivisionError: second" in terminal.text


@pytest.mark.parametrize(("number", "key"), [(signal.SIGINT, "\x03"), (signal.SIGTERM, "")])
def test_a_signal_saves_and_says_how_to_go_on(number: signal.Signals, key: str) -> None:
    program("slow.py", SLOW)

    terminal = Terminal("run", "slow.py", "--session", "s")
    terminal.read_until("line 3")
    if key:
        terminal.type(key)
    else:
        os.kill(terminal.pid, number)

    assert terminal.end() == 75
    told = re.search(r"it goes on at step (\d+) \(\S+\) with:\s+graflow-ckpt resume s", terminal.text)
    assert told is not None
    assert f"continues from step {told[1]}" in graflow("resume", "s").err


def test_a_second_ctrl_c_leaves_at_once() -> None:
    # not one long wait: a signal that comes right before a system call is seen after it
    wait = "select.select([], [], [], 0.05)"
    program("stuck.py", SLOW.replace(wait, f"[{wait} for _ in range(1200)]"))

    terminal = Terminal("run", "stuck.py", "--session", "s")
    terminal.read_until("line 0")
    terminal.type("\x03")
    terminal.read_until("finishing what runs")
    terminal.type("\x03")

    assert terminal.end() == 130


def test_without_progress_a_terminal_gets_plain_lines() -> None:
    program("count.py", COUNT)

    terminal = Terminal("run", "count.py", "--session", "s", "--no-progress")

    assert terminal.end() == 0
    assert b"\x1b[" not in terminal.seen
    assert "completed after 6 steps" in terminal.text


def test_tables_have_lines_and_colours_on_a_terminal() -> None:
    run_count("--session", "s")

    terminal = Terminal("sessions")

    assert terminal.end() == 0
    assert "───" in terminal.text
    assert b"\x1b[32mcompleted" in terminal.seen


LOGS = """
import logging, os, select, sys
logging.basicConfig(level=logging.INFO, format="log %(message)s")  # keeps what stderr is by now
from graflow_ckpt import task, workflow

with workflow("logs") as ctx:

    @task(inject_context=True)
    def work(context, data=0):
        logging.getLogger("mine").info("number %d", data)
        print(f"half {data} ", end="", flush=True)
        if data == 3:
            pid = os.fork()
            if pid == 0:
                print("from a child", end=".", flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
        select.select([], [], [], 0.05)
        print("whole", data)
        if data < 10:
            context.next_iteration(data + 1)

    ctx.execute()
"""


def test_logs_and_output_of_children_stand_above_the_block() -> None:
    program("logs.py", LOGS)

    terminal = Terminal("run", "logs.py", "--session", "s")

    assert terminal.end() == 0
    for number in range(11):
        assert re.search(rf"(^|[\r\n])log number {number}\r?\n", terminal.text), terminal.text
        assert terminal.text.count(f"half {number} whole {number}") == 1
    assert terminal.text.count("from a child") == 1
