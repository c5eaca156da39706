"""The command line in real processes, on pipes and on a pseudo terminal, and programs for it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil

LONG = 60.0  # seconds: only a hang takes so long
GRAFLOW = [sys.executable, "-m", "graflow_ckpt"]

# Counts up to `limit`, one step each; kills itself once, in the step that it is told.
COUNT = """
import os, signal, sys
from graflow_ckpt import task, workflow

with workflow("count") as ctx:

    @task(inject_context=True)
    def count(context, limit=6, data=0):
        with open("steps.log", "a") as log:
            log.write(f"{data}\\n")
        context.get_channel().set("n", data + 1)
        context.progress(data + 1, limit)
        if sys.argv[1:2] == [str(data)] and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if data + 1 < limit:
            context.next_iteration(data + 1)
        return data + 1

    print("result", ctx.execute())
"""

# Two tasks, each told by a file whether to fail.
CHAIN = """
import os
from graflow_ckpt import task, workflow

def risky(name):
    if os.path.exists(f"{name}.fails"):
        raise ZeroDivisionError(name)

with workflow("chain") as ctx:

    @task
    def first():
        print("first runs")
        risky("first")
        return 1

    @task
    def second(first):
        print("second runs")
        risky("second")
        return first + 1

    first >> second
    print("result", ctx.execute())
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def documents(self) -> list[Any]:
        """Standard output as JSON lines: nothing else may be in it."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def graflow(*arguments: str | Path, status: int | None = 0, stdin: str = "", **environment: str) -> Ended:
    """Run the command line; it has to end with this status (None: with any)."""
    return ended([*GRAFLOW, *map(str, arguments)], status, stdin, environment)


def inside(*arguments: str | Path, status: int | None = 0, **environment: str) -> Ended:
    """The same within this process, for commands that run no program and ask nothing: that takes no time."""
    from graflow_ckpt.cli import main

    before, out, err = dict(os.environ), io.StringIO(), io.StringIO()
    os.environ.update(environment)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            ended = main([str(argument) for argument in arguments])
    finally:  # a command exports what it has resolved
        os.environ.clear()
        os.environ.update(before)
    assert status is None or ended == status, f"{ended}\n{out.getvalue()}\n{err.getvalue()}"
    return Ended(ended, out.getvalue(), err.getvalue())


def python(*arguments: str | Path, status: int | None = 0) -> Ended:
    return ended([sys.executable, *map(str, arguments)], status, "", {})


def ended(command: Sequence[str], status: int | None, stdin: str, environment: dict[str, str]) -> Ended:
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, **environment},
        check=False,
    )
    assert status is None or done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return Ended(done.returncode, done.stdout, done.stderr)


def completed(line: str, ask: Callable[..., Ended] = graflow, **environment: str) -> list[str]:
    """What a shell offers for the last word."""
    words = str(len(line.split(" ")) - 1)
    typed = {"COMP_WORDS": line, "COMP_CWORD": words, "_GRAFLOW_CKPT_COMPLETE": "bash_complete"}
    told = ask(status=None, **typed, **environment).out
    return [item.partition(",")[2] for item in told.splitlines() if item]


KILLED = -signal.SIGKILL


def program(name: str, text: str) -> Path:
    path = Path(name).absolute()
    path.write_text(text)
    return path


def run_count(*arguments: str | Path, status: int = 0, **environment: str) -> Ended:
    """Write COUNT to count.py, and run it."""
    program("count.py", COUNT)
    return graflow("run", "count.py", *arguments, status=status, **environment)


def steps() -> list[int]:
    """The steps that COUNT has begun."""
    return [int(line) for line in Path("steps.log").read_text().split()]


def checkpoints(session: str = "*") -> list[str]:
    """Oldest first."""
    found = Path("checkpoints").glob(f"session_{session}_step_*.meta.json")
    paths = [str(path).removesuffix(".meta.json") + ".pkl" for path in found]
    return sorted(paths, key=lambda path: int(path.rpartition("-")[2].removesuffix(".pkl")))


# --- on a terminal -----------------------------------------------------------------------


class Terminal:
    """A command on a pseudo terminal."""

    def __init__(self, *arguments: str | Path, **environment: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", COLUMNS="100", LINES="30", **environment)
            os.execv(sys.executable, [*GRAFLOW, *map(str, arguments)])
        self.seen = b""

    def read_until(self, pattern: str) -> None:
        deadline = time.monotonic() + LONG
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            if not self._read():
                raise AssertionError(f"{pattern!r} was not shown, but:\n{self.text}")

    def _read(self) -> bool:
        ready, _, _ = select.select([self._fd], [], [], 1.0)
        if not ready:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux: the other side is closed
            return False
        self.seen += data
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """The exit status."""
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def text(self) -> str:
        """What was shown, without what moves the cursor and colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen.decode(errors="replace"))


# --- real processes ---------------------------------------------------------------------


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
    return program(name, text)


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
    done = ended([sys.executable, str(program), *arguments], status, "", environment)
    told = [line for line in done.err.splitlines(keepends=True) if " continues from step " not in line]
    return done.out + "".join(told)
