"""A steward goes on, whatever goes wrong, and does not say the same all the time."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.fleet import steward as stewards
from graflow_ckpt.fleet.board import Board, Order
from graflow_ckpt.fleet.health import pools
from graflow_ckpt.fleet.steward import Charge, Complaints, Steward
from graflow_ckpt.links.redis import open_link
from tests.servers import Server


def charge_at(url: str) -> Charge:
    worker, own, parent = Board(3).lines
    worker.begin(os.getpid())
    return Charge("p", url, url, ("default",), time.time(), [("worker-1", worker)], parent, own)


@contextmanager
def at_work(charge: Charge) -> Iterator[Steward]:
    steward = Steward(charge)
    ear, mouth = os.pipe()
    thread = threading.Thread(target=steward.run, args=(ear,))
    thread.start()
    yield steward
    assert thread.is_alive(), "it has given up"
    charge.line.tell(Order.LEAVE, 0.0)
    os.write(mouth, b"!")
    thread.join(10)
    os.close(ear)
    os.close(mouth)


def signs(url: str) -> list[float]:
    try:
        link = open_link(url)
        found = [pool.age for pool in pools(link)]
        link.close()
        return found
    except ServerGone:
        return []


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_says_once_a_second_that_the_pool_is_alive(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stewards, "SIGN", 0.05)
    with at_work(charge_at(redis_url)):
        until(lambda: signs(redis_url))
        (before,) = signs(redis_url)
        until(lambda: signs(redis_url)[0] < before + 0.05)


def test_it_survives_a_server_that_dies_and_says_so_once(
    own_redis: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stewards, "AWAY", 0.01)
    server = own_redis()
    with at_work(charge_at(server.url)):
        until(lambda: signs(server.url))
        server.kill()
        until(lambda: "a round failed" in caplog.text)
        server.start()
        until(lambda: signs(server.url))

    assert caplog.text.count("a round failed") == 1


def test_it_survives_faults_of_its_own(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    charge = charge_at(redis_url)
    with at_work(charge) as steward:
        broken = stewards.Chore("what cannot be done", 0.01, lambda: 1 / 0)
        steward._chores.append(broken)
        until(lambda: "what cannot be done" in caplog.text)
        until(lambda: signs(redis_url))

    assert "ZeroDivisionError" in caplog.text  # with where it was


def test_the_same_trouble_is_said_once_a_minute_with_how_often_it_came(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complaints = Complaints()
    for _ in range(5):
        complaints.say("a round", ValueError("broken"))
    complaints.say("a round", KeyError("another"))
    monkeypatch.setattr(stewards, "SAID", 0.0)
    complaints.say("a round", ValueError("broken"))

    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [
        "a round failed: broken",
        "a round failed: 'another'",
        "a round failed: broken (4 more times in the last minute)",
    ]


# --- forks ------------------------------------------------------------------------------


ROOT = Path(__file__).parents[3]

PROLOGUE = """
import atexit, os, signal, sys, time
from graflow_ckpt.fleet.worker import fork
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
        "from graflow_ckpt.fleet import worker as forks\n"
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
