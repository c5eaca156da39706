"""The command line and its shell: help, completion, pipes, how fast it starts, and a terminal."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from graflow_ckpt import __version__
from graflow_ckpt.cli.app import COMMANDS, app
from tests.acceptance.command_line import (
    CHAIN,
    COUNT,
    GRAFLOW,
    Terminal,
    checkpoints,
    completed,
    graflow,
    program,
    run_count,
)
from tests.measured import unmeasured

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    """The words of each command, groups included."""
    yield before
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield (*before, name)


ALL = list(commands(app))
GROUPS = {words for words in ALL if any(other[:-1] == words for other in ALL)} - {("sessions",)}


def help_of(words: tuple[str, ...]) -> str:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "--help"]).output


@pytest.mark.parametrize("command", [words for words in ALL if words not in GROUPS], ids=" ".join)
def test_the_help_of_each_command_has_examples_and_json(command: tuple[str, ...]) -> None:
    told = help_of(command)

    assert "Examples:\n" in told
    assert f"graflow-ckpt {' '.join(command)}" in told
    assert "--json" in told


def test_no_help_is_cut_off_or_wider_than_a_terminal_of_80_columns() -> None:
    told = {words: help_of(words) for words in ALL}

    assert len(told) > 40
    assert [line for text in told.values() for line in text.splitlines() if len(line) > 80] == []
    assert [words for words, text in told.items() if "..." in text.replace("ARGS]...", "")] == []


def test_the_help_lists_all_commands() -> None:
    told = graflow("--help").out

    for name in COMMANDS:
        assert f"\n  {name} " in told


def test_the_version_is_told() -> None:
    assert graflow("--version").out.startswith(f"graflow-ckpt {__version__}, Python 3.")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run"], ["run", "x.py", "--every", "x"], ["resume", "--x"]]
)
def test_usage_errors_have_status_2(arguments: list[str]) -> None:
    done = graflow(*arguments, status=2)

    assert "Usage: graflow-ckpt" in done.err
    if arguments[0] != "nonsense":
        assert graflow(*arguments[:1], "--json", *arguments[1:], status=2).document["error"] == "Usage"


FLEET = {"redis", "rq", "pydantic", "tomllib", "graflow_ckpt.fleet"}


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command has loaded."""
    code = (
        f"import sys; from graflow_ckpt.cli import main; main({list(arguments)!r});"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=unmeasured(), capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("command", ["run", "sessions", "worker", "submit", "top"])
def test_help_loads_neither_rich_nor_the_engine_nor_what_a_fleet_needs(command: str) -> None:
    loaded = loaded_by(command, "--help")

    assert "click" in loaded
    assert {"rich", "cloudpickle", "msgpack", "blake3", "asyncio", "graflow_ckpt.engine"} & loaded == set()
    assert loaded & FLEET == set()


def test_a_tab_loads_nothing_for_a_fleet_where_none_is_named() -> None:
    code = (
        "import atexit, sys; from graflow_ckpt.cli import main;"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main([])"
    )
    typed = {
        "_GRAFLOW_CKPT_COMPLETE": "bash_complete",
        "COMP_WORDS": "graflow-ckpt resume ",
        "COMP_CWORD": "2",
    }

    done = subprocess.run(
        [sys.executable, "-c", code], env=unmeasured() | typed, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "graflow_ckpt.cli.run.resume" in done.stderr.split()
    assert FLEET.isdisjoint(done.stderr.split())


@pytest.mark.parametrize("command", [["sessions"], ["doctor"], ["checkpoints", "list"]], ids=" ".join)
def test_where_no_fleet_is_named_nothing_is_loaded_for_one(command: list[str]) -> None:
    assert loaded_by(*command) & FLEET == set()


def test_help_starts_fast() -> None:
    def seconds(command: list[str]) -> float:
        """Of the processor: others may be using it, too."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = min(seconds([sys.executable, "-c", "pass"]) for _ in range(5))
    ours = min(seconds([*GRAFLOW, "--help"]) for _ in range(5))

    assert ours - bare < 0.15


def test_whoever_has_read_enough_may_close_the_pipe() -> None:
    run_count("--session", "s", "--every", "1")

    with subprocess.Popen(
        [*GRAFLOW, "checkpoints", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        told = listing.stderr.read()

    assert told == b""


# --- completion ------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed_with_where_to_put_it(shell: str) -> None:
    done = graflow("completion", shell)

    assert "_GRAFLOW_CKPT_COMPLETE" in done.out
    assert "put this into" in done.err
    assert graflow("completion", shell, "--json").document["script"] + "\n" == done.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_its_shell_takes(shell: str) -> None:
    script = graflow("completion", shell).out
    Path("script").write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", "script"], check=True)
    assert script.strip()


def test_commands_sessions_and_checkpoints_are_completed() -> None:
    run_count("--session", "alpha")
    graflow("run", "count.py", "--session", "beta", "--store", "other")

    assert "resume" in completed("graflow-ckpt res")
    assert completed("graflow-ckpt resume al") == ["alpha"]
    assert completed("graflow-ckpt resume checkpoints/s") == checkpoints("alpha")
    assert completed("graflow-ckpt checkpoints list ") == ["alpha"]
    assert completed("graflow-ckpt checkpoints list --store other ") == ["beta"]
    assert completed("graflow-ckpt run count.py --session a") == ["alpha"]
    assert "--rewind" in completed("graflow-ckpt resume --re")
    assert set(completed("graflow-ckpt completion ")) == {"bash", "zsh", "fish"}


def test_in_a_folder_without_sessions_a_tab_is_no_error() -> None:
    Path("checkpoints").rmdir()
    assert completed("graflow-ckpt resume ") == []
    assert os.listdir() == []


# --- on a terminal ----------------------------------------------------------------------


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
