"""Processes: told apart by more than their pid, and dead ones told for sure or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from graflow_ckpt.links import processes
from graflow_ckpt.links.processes import describe, end, is_gone, is_myself, myself, named
from tests.stretch import until


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-c", "import sys; sys.stdin.read()", "redis://:hunter2@h:1/0", "an argument"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_this_process_is_described_by_more_than_its_pid() -> None:
    me = myself()

    assert me.pid == os.getpid()
    assert me.started.isdigit()
    assert me.boot
    assert me.pid_ns.startswith("pid:[")
    assert me.host
    assert "python" in me.argv
    assert me.since.endswith("+00:00")


def test_another_process_is_described_by_the_same_things(other: subprocess.Popen[bytes]) -> None:
    until(lambda: "an argument" in describe(other.pid).argv)  # it may not have become that program yet
    found, me = describe(other.pid), myself()

    assert (found.pid, found.boot, found.pid_ns, found.host) == (other.pid, me.boot, me.pid_ns, me.host)
    assert "redis://h:1/0" in found.argv
    assert "hunter2" not in found.argv
    assert int(found.started) >= int(me.started)
    assert is_myself(me)
    assert not is_myself(found)


def test_a_living_process_is_not_gone(other: subprocess.Popen[bytes]) -> None:
    assert not is_gone(myself())
    assert not is_gone(describe(other.pid))


def test_a_killed_process_is_gone_before_its_parent_has_noticed(other: subprocess.Popen[bytes]) -> None:
    owner = describe(other.pid)

    other.kill()
    until(lambda: is_gone(owner))
    other.wait()

    assert is_gone(owner)


def test_a_pid_that_another_process_has_now_is_a_process_that_is_gone() -> None:
    assert is_gone(replace(myself(), started="1"))


def test_a_living_process_that_proc_does_not_show_is_not_gone(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's under hidepid=2: its files in /proc are not there."""
    owner, read = describe(other.pid), processes._read
    monkeypatch.setattr(
        processes, "_read", lambda path: "" if path.startswith(f"/proc/{other.pid}/") else read(path)
    )

    assert not is_gone(owner)

    other.kill()
    other.wait()
    assert is_gone(owner)


DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"

HIDDEN = """
import ctypes, os, sys
from dataclasses import replace
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.processes import is_gone
owner = Owner(int(sys.argv[1]), *sys.argv[2:])
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None):
    raise SystemExit(77)
if libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2"):
    raise SystemExit(77)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
assert not os.path.exists(f"/proc/{owner.pid}")
assert not is_gone(owner)
assert is_gone(replace(owner, pid=(1 << 22) - 1))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_s_process_is_not_gone_where_proc_hides_it(other: subprocess.Popen[bytes]) -> None:
    owner = [str(fact) for fact in asdict(describe(other.pid)).values()]

    found = subprocess.run(
        [sys.executable, "-c", HIDDEN, *owner], capture_output=True, text=True, check=False
    )

    if found.returncode == 77:
        pytest.skip("this user may not make a mount namespace")
    assert found.returncode == 0, found.stderr


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs handles of processes")
def test_the_end_of_a_process_is_waited_for_on_its_handle(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it polls"))

    assert end(describe(other.pid), 10)

    assert other.wait() == -signal.SIGTERM


def test_one_that_does_not_hear_is_killed_after_the_grace_period() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        assert end(describe(process.pid), 0.1) is True

    assert process.returncode == -signal.SIGKILL


def test_where_there_are_no_handles_a_process_is_ended_too(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)

    assert end(describe(other.pid), 10)

    assert other.wait() == -signal.SIGTERM


@pytest.mark.parametrize("unlike", ["boot", "pid_ns"])
def test_of_another_machine_or_container_nothing_is_known(unlike: str) -> None:
    stranger = replace(myself(), pid=1 << 30)
    assert is_gone(stranger)

    assert not is_gone(replace(stranger, **{unlike: "another"}))
    assert not is_gone(replace(stranger, **{unlike: ""}))


def test_an_owner_is_named_by_what_finds_it() -> None:
    assert named(replace(myself(), pid=7, host="h", argv="train.py")).startswith("process 7 on h (since 20")
    assert named(None) == "another owner"
