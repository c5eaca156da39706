"""Another process that does a job in the store (jobs.py), and a line to it.

Promise: it is a fresh interpreter with the same import path; when the `with` block ends, it has ended,
killed if it had not yet. What it printed on stderr is part of the error if it ends before its time.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import cloudpickle

if TYPE_CHECKING:
    from graflow_ckpt.testing.contract import Opener  # the other process does without pytest

_PATIENCE = 60.0


class Companion:
    """`with Companion(opener, "own") as other: other.hear()`."""

    def __init__(self, opener: Opener, job: str, *arguments: Any) -> None:
        task = cloudpickle.dumps((opener, job, arguments)).hex()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", "graflow_ckpt.testing.companion"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._said = b""
        self.say(task)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, word: Any = "go on") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(word).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """The next thing that it says."""
        while b"\n" not in self._said:
            if not self._more():
                raise AssertionError(f"the other process ended ({self.wait()}): {self._complaint()}")
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def rest(self) -> list[Any]:
        """Everything that it has said until it ended; what it was cut off in is not counted."""
        while self._more():
            pass
        lines, self._said = self._said.split(b"\n")[:-1], b""
        return [json.loads(line) for line in lines]

    def wait(self) -> int:
        return self._process.wait(_PATIENCE)

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """Stop it in the middle of whatever it does; returns when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            _close(stream)

    def _more(self) -> bool:
        assert self._process.stdout is not None
        end = time.monotonic() + _PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(end - time.monotonic()):
                raise AssertionError(f"the other process says nothing: {self._complaint()}")
        found = os.read(self._process.stdout.fileno(), 1 << 16)
        self._said += found
        return bool(found)

    def _complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(BrokenPipeError):  # it was killed before it read everything
            stream.close()


def main() -> None:
    """In the other process."""
    from graflow_ckpt.testing import jobs

    def heard() -> Any:
        line = sys.stdin.readline()
        if not line:
            os._exit(1)  # the test has ended
        return json.loads(line)

    def say(word: Any) -> None:
        sys.stdout.write(json.dumps(word) + "\n")
        sys.stdout.flush()

    opener, job, arguments = cloudpickle.loads(bytes.fromhex(heard()))
    getattr(jobs, job)(opener(), say, heard, *arguments)


if __name__ == "__main__":
    main()
