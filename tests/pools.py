"""Pools of workers, each a process of its own with children, and what a test asks of them.

    with Pool(url, folder, surroundings(key=KEY), directly(url, n=2)) as pool:
        pool.ready()

A pool is killed at the end of its block, and then nothing of it may be left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import psutil

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.health import PoolFacts, pools
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores.around.keys import Keyring
from tests.servers import forget, guard
from tests.stretch import LONG, comes, until

ROOT = Path(__file__).parents[1]
KEY = "chaos:" + "5a" * 32
COMMAND = (sys.executable, "-m", "graflow_ckpt", "worker")
"""What users start; its settings are in the environment."""

_PROGRAM = (
    "import sys; from graflow_ckpt.fleet.pool import PoolSettings, run; sys.exit(run(PoolSettings(**{!r})))"
)
_OF_TESTS = ("GRAFLOW_CKPT_CHECK", "GRAFLOW_CKPT_SLOW_SAVE")


def directly(url: str, **settings: Any) -> list[str]:
    """A command that starts a pool of these settings in half the time that the command line takes."""
    return [sys.executable, "-c", _PROGRAM.format({"url": url, **settings})]


def surroundings(**settings: object) -> dict[str, str]:
    """The environment of a pool, with nothing of the user's; settings by their own names."""
    given = {n: v for n, v in os.environ.items() if not n.startswith("GRAFLOW_CKPT_") or n in _OF_TESTS}
    given |= {f"GRAFLOW_CKPT_{name.upper()}": str(value) for name, value in settings.items()}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return given | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}


def client_at(url: str, key: str = KEY) -> Client:
    return Client(open_link(url), keyring=Keyring.load({"GRAFLOW_CKPT_KEY": key}, local=False))


class Pool:
    """A parent, its workers, a steward."""

    def __init__(
        self,
        url: str,
        folder: Path,
        environment: dict[str, str],
        command: Sequence[str] = COMMAND,
        name: str = "pool",
    ) -> None:
        self.url = url
        self.folder = folder
        self.name = name
        self.seen: set[psutil.Process] = set()  # below the parent
        self._environment = environment
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._link: RedisLink | None = None

    # --- its life ----------------------------------------------------------------------

    def start(self) -> Pool:
        if self._process is not None:
            forget(self.pid)
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        guard(self.pid)
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

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)  # nothing happens if it has ended

    def wait(self, within: float = LONG) -> int:
        """Its status, when the parent has ended."""
        assert self._process is not None
        self.family()
        status = self._process.wait(within)
        forget(self.pid)
        return status

    def end(self, number: int = SIGTERM) -> int:
        self.signal(number)
        return self.wait()

    def __enter__(self) -> Pool:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.family()
        self.end(SIGKILL)
        if self._link is not None:
            self._link.close()
        left = self.orphans()
        gone = self.nobody_is_left()
        for pid in () if gone else left:
            os.kill(pid, SIGKILL)
        assert gone, f"these outlived their pool: {left}"

    # --- its processes -----------------------------------------------------------------

    def family(self) -> list[psutil.Process]:
        """Everybody below the parent who is alive now."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        alive = [child for child in found if is_alive(child)]
        self.seen.update(alive)
        return alive

    def pids(self) -> set[int]:
        return {child.pid for child in self.family()}

    def orphans(self) -> list[int]:
        """Of all that were ever seen below it, those that still run."""
        return [child.pid for child in self.seen if is_alive(child)]

    def nobody_is_left(self, within: float = 5.0) -> bool:
        return comes(lambda: not self.orphans(), within)

    # --- what it says ------------------------------------------------------------------

    @property
    def said(self) -> str:
        log = self.folder / f"{self.name}.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def facts(self) -> PoolFacts | None:
        """What it says of itself; None if its server is away, and before its first word."""
        try:
            self._link = self._link or open_link(self.url)
            return next((pool for pool in pools(self._link) if pool.owner.pid == self.pid), None)
        except ServerGone:
            return None

    def ready(self) -> PoolFacts:
        """When all its workers wait for work, as it says itself."""

        def idle() -> Any:
            assert self.status is None, self.said
            facts, here = self.facts(), self.pids()
            idle = {worker.owner.pid for worker in facts.workers if worker.state == "idle"} if facts else {}
            return facts if idle and len(idle) == len(facts.workers) and idle <= here else None

        found: PoolFacts = until(idle)
        return found

    def workers(self) -> list[int]:
        """Their processes, in the order of their seats."""
        facts: Any = until(self.facts)
        return [worker.owner.pid for worker in facts.workers]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
