"""Tasks that a fleet runs in tests. Each execution leaves a line in a file, outside of Redis.

A worker that has just been started imports this module before it takes over: it loads little.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from graflow_ckpt import task
from tests.stretch import until


def note(folder: str, word: str) -> None:
    """One line, whole or not at all: appends of this size are atomic."""
    fd = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{word} {os.getpid()} {time.monotonic():.6f}\n".encode())
    finally:
        os.close(fd)


def until_go(folder: str) -> None:
    """Wait until the file `go` appears."""
    while not Path(folder, "go").exists():
        time.sleep(0.005)


@task
def quick(folder: str, name: str) -> str:
    note(folder, name)
    return name


@task
def held(folder: str, name: str) -> str:
    note(folder, name)
    until_go(folder)
    note(folder, f"{name}-over")
    return name


@task
def deaf(folder: str, name: str) -> str:
    """Nothing that is raised in it ends it."""
    note(folder, name)
    while not Path(folder, "go").exists():
        try:
            time.sleep(0.005)
        except BaseException:  # noqa: BLE001
            note(folder, f"{name}-swallowed")
    return name


@task
def hogs(folder: str, name: str) -> None:
    """Keeps the interpreter's lock: one call in C that never looks up."""
    note(folder, name)
    re.match(r"(a+)+$", "a" * 60 + "b")


@task
def computes(folder: str, name: str) -> None:
    """In C for minutes, where no handler runs; other threads may."""
    note(folder, name)
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 500_000_000)


@task
def tidy(folder: str, name: str) -> str:
    """Puts its things in order when it is ended."""
    try:
        note(folder, name)
        until_go(folder)
    finally:
        note(folder, f"{name}-unwound")
    return name


@task
def has_children(folder: str, name: str) -> list[int]:
    """How a child that it forks and a program that it starts come to their ends."""
    import multiprocessing
    import subprocess

    fork = multiprocessing.get_context("fork")
    runs = fork.Event()  # a signal that comes earlier is thrown away by Python, whose handler is not set yet
    child = fork.Process(target=lambda: runs.set() or time.sleep(60))
    child.start()
    runs.wait(10)
    child.terminate()
    child.join(10)
    with subprocess.Popen(["sleep", "60"]) as program:
        program.send_signal(signal.SIGINT)
        program.wait(10)
    return [child.exitcode or 0, program.returncode]


@task
def poison(folder: str, name: str) -> None:
    note(folder, name)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def quits(folder: str, name: str) -> None:
    note(folder, name)
    raise SystemExit(3)


@task
def vanishes(folder: str, name: str) -> None:
    note(folder, name)
    os._exit(0)


@task
def fails_once(folder: str, name: str) -> str:
    note(folder, name)
    if not Path(folder, f"{name}-failed").exists():
        Path(folder, f"{name}-failed").touch()
        raise ValueError("the first time")
    return name


@task(on_interrupted="fail")
def once_only(folder: str, name: str) -> str:
    note(folder, name)
    until_go(folder)
    return name


@task
def naps(folder: str, name: str, seconds: float = 0.01) -> str:
    note(folder, name)
    time.sleep(seconds)
    return name


@task(timeout=0.2)
def never_ends(folder: str, name: str) -> None:
    note(folder, name)
    until_go(folder)


def call(one: Any, url: str, folder: Path, name: str, **options: Any) -> Any:
    """A session of one call."""
    return one.submit(str(folder), name, url=url, **options)


# --- what tasks have noted --------------------------------------------------------------


def lines(folder: Path) -> list[tuple[str, int, float]]:
    """What tasks have noted: their word, their process, when."""
    try:
        text = Path(folder, "log").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    words = (line.split() for line in text.splitlines())
    return [(word, int(pid), float(at)) for word, pid, at in words]


def noted(folder: Path, word: str, times: int = 1) -> list[tuple[str, int, float]]:
    """Wait until a task has noted a word so often."""

    def found() -> list[tuple[str, int, float]]:
        mine = [line for line in lines(folder) if line[0] == word]
        return mine if len(mine) >= times else []

    result: list[tuple[str, int, float]] = until(found)
    return result


def begun(task: Any, url: str, folder: Path, name: str, **options: Any) -> Any:
    """A session of one call, whose body has begun."""
    handle = call(task, url, folder, name, **options)
    noted(folder, name)
    return handle


def go(folder: Path) -> None:
    Path(folder, "go").touch()


def killed(pid: int) -> float:
    """SIGKILL; when."""
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at
