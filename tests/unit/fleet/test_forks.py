"""Children end with their parent, with the status of their body, and without what they inherited."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROLOGUE = """
import atexit, os, signal, sys, time
from graflow_ckpt.fleet.forks import fork
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("lambda: 3", 3),
        ("lambda: sys.exit(4)", 4),
        ("lambda: sys.exit()", 0),
        ("lambda: 1 / 0", 1),
        ("lambda: os.kill(os.getpid(), 9)", -9),
    ],
)
def test_a_child_ends_with_the_status_of_its_body(body: str, status: int) -> None:
    done = run(f"pid = fork({body}); print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")

    assert done.stdout.strip() == str(status), done.stderr


def test_what_a_child_has_printed_is_not_lost_and_the_parent_s_not_said_twice() -> None:
    done = run("sys.stdout.write('parent ')\nos.waitpid(fork(lambda: sys.stdout.write('child ') and 0), 0)")

    assert done.stdout == "parent child "


def test_the_parent_s_exit_handlers_are_the_parent_s() -> None:
    done = run("atexit.register(print, 'bye'); pid = fork(lambda: 0); os.waitpid(pid, 0)")

    assert done.stdout.split() == ["bye"]


def test_a_thread_that_does_not_end_keeps_no_child() -> None:
    done = run(
        "import threading\n"
        "def body():\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    return 5\n"
        "pid = fork(body); print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )

    assert done.stdout.strip() == "5"


def test_a_child_is_gone_when_its_parent_is_killed() -> None:
    program = PROLOGUE + "print(fork(lambda: time.sleep(60) or 0), flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        reader = os.pidfd_open(child)

        parent.kill()

        assert select.select([reader], [], [], 5)[0] == [reader]
        os.close(reader)


def test_a_child_whose_parent_was_quicker_leaves_at_once() -> None:
    done = run(
        "from graflow_ckpt.fleet import forks\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    forks.die_with(1)\n"  # as if its parent had ended meanwhile, and init had it now
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )

    assert done.stdout.strip() == "1"


def test_workers_do_not_draw_the_same_random_numbers() -> None:
    done = run(
        "import numpy, random\n"
        "numpy.random.seed(1); random.seed(1)\n"
        "def body():\n"
        "    print(numpy.random.random(), random.random(), flush=True)\n"
        "    return 0\n"
        "for _ in range(2): os.waitpid(fork(body), 0)"
    )

    drawn = done.stdout.split()
    assert len(set(drawn)) == 4, done.stdout + done.stderr
