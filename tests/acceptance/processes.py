"""Real processes: whether one has gone, and programs that are started, listened to and signalled."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil

LONG = 30.0  # seconds: only a hang takes so long


def gone(pid: int, within: float) -> bool:
    """Whether a process has ended, or ends in time."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        select.select([], [], [], 0.01)
    return False


class Started:
    """A program at work: what it says comes in line by line, what it is told goes to its stdin."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self.said: list[str] = []
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._listen, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, stream: Any) -> None:
        for line in stream:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def hear(self, text: str) -> str:
        """Wait for a line with this text."""
        open_streams = 2 - sum(not thread.is_alive() for thread in self._threads)
        deadline = time.monotonic() + LONG
        while open_streams or not self._lines.empty():
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            if line is None:
                open_streams -= 1
                continue
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not said, but:\n" + "\n".join(self.said))

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit status; all that was said is in `said`."""
        status = self.process.wait(LONG)
        for thread in self._threads:
            thread.join(LONG)
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                self.said.append(line)
        return status

    @property
    def text(self) -> str:
        return "\n".join(self.said)


def written(text: str, name: str = "program.py") -> Path:
    """A program in the test's own folder."""
    path = Path(name).absolute()
    path.write_text(text)
    return path


@contextmanager
def started(program: Path, *arguments: str, **environment: str) -> Iterator[Started]:
    """A program that runs beside the test, and no longer than it."""
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield Started(process)
        finally:
            process.kill()


def run(program: Path, *arguments: str, status: int = 0, **environment: str) -> str:
    """What a program has said when it has ended with this status, but for how its run began."""
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    told = [line for line in done.stderr.splitlines(keepends=True) if " continues from step " not in line]
    return done.stdout + "".join(told)
