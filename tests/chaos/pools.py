"""Pools of workers as users start them, each a process of its own with children, and what runs in them.

No pool outlives its test: workers die with their parent, and the parent is killed. What a pool says
goes to a file in its folder; everything that was ever seen of it can be asked after at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.servers import Server, forget, guard

ROOT = Path(__file__).parent.parent.parent
KEY = "chaos:" + "5a" * 32
PATIENCE = 30.0

Identity = tuple[int, float]
"""A process: its pid, and when it began."""


def until(what: Callable[[], bool], within: float = PATIENCE, step: float = 0.005) -> bool:
    """Look until it is so; False if it never was."""
    deadline = time.monotonic() + within
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True


def surroundings(url: str, **settings: str) -> dict[str, str]:
    """The environment of a pool, with nothing of the user's; settings by their own names."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("GRAFLOW_CKPT_")}
    ours = {"REDIS_URL": url, "KEY": KEY, "LOG_LEVEL": "info"}
    ours |= {name: value for name, value in settings.items() if not name.startswith("CHAOS_")}
    given |= {f"GRAFLOW_CKPT_{name.upper()}": value for name, value in ours.items()}
    given |= {name: value for name, value in settings.items() if name.startswith("CHAOS_")}
    return given | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


class Pool:
    """`graflow-ckpt worker`: a parent, its workers, a steward."""

    def __init__(self, name: str, url: str, folder: Path, **settings: str) -> None:
        self.name = name
        self.folder = folder
        self.seen: set[Identity] = set()
        self.starts = 0
        self._environment = surroundings(url, **settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def start(self) -> Pool:
        if self._process is not None:
            forget(self._process.pid)
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "graflow_ckpt", "worker"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        guard(self._process.pid)
        self.starts += 1
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def family(self) -> list[psutil.Process]:
        """Everybody below the parent who is alive now."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        alive = [child for child in found if is_alive(child)]
        self.seen |= {(child.pid, child.create_time()) for child in alive if child.is_running()}
        return alive

    def kill(self) -> None:
        self.family()
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the parent a signal and wait for it; its status."""
        assert self._process is not None
        self._process.send_signal(number)
        status = self._process.wait(PATIENCE)
        forget(self._process.pid)
        return status

    def orphans(self) -> list[int]:
        """Of all that were ever seen below it, those that still run."""
        return [pid for pid, began in self.seen if _runs(pid, began)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _runs(pid: int, began: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.create_time() == began and is_alive(process)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def pools(*several: Pool) -> Iterator[tuple[Pool, ...]]:
    """Started, and killed at the end with all that they have left."""
    try:
        for pool in several:
            pool.start()
        yield several
    finally:
        for pool in several:
            if pool.starts and pool.status is None:
                pool.kill()
        left = [pid for pool in several for pid in pool.orphans()]
        gone = until(lambda: not any(pool.orphans() for pool in several), 5.0)
        for pid in () if gone else left:
            os.kill(pid, signal.SIGKILL)
        assert gone, f"these outlived their pool: {left}"


@contextmanager
def private_server(**config: str) -> Iterator[Server]:
    """A server with a log on disk; directives with _ for -."""
    settings = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    with Server({**settings, **{name.replace("_", "-"): value for name, value in config.items()}}) as server:
        yield server


def everybody(several: Iterable[Pool]) -> list[psutil.Process]:
    return [process for pool in several for process in pool.family()]
