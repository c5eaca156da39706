"""The tasks of a program (see model.py) as a fleet runs them, and what each execution writes down.

One line when a body begins and one when it ends, each with a single write to a file that is opened to
append: it is outside of Redis, and nothing that happens to a worker takes a line back. The names of the
file and of the pace are in the environment of the workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from graflow_ckpt import AtLeast, BestEffort, group, task, workflow
from graflow_ckpt.frontends.dsl import Workflow
from tests.acceptance.program import Body, Fork, Part, Program, mix
from tests.servers import Server, forget, guard

RUNS = "CHAOS_RUNS"
PACE = "CHAOS_PACE"
"""By how much bodies are longer than some 30 ms on average."""


class Broken(Exception):
    """What a body raises that is to fail."""


@task(inject_context=True)
def play(context: Any, body: Body, made: dict[str, Body], data: Any = None) -> int:
    """Every task of a program: what it does stands in `body`."""
    note("began", context)
    seen = [body.constant, context.cycle, data, *(context.get_result(name) for name in body.reads)]
    time.sleep(length(body.name, context.cycle))
    channel = context.get_channel()
    for kind, name, number in body.ops:
        item = mix(number, context.cycle)
        if kind == "set":
            channel.set(name, mix(number, *seen))
        elif kind == "add":
            channel.set(name, channel.get(name, 0) + number)
        elif kind == "append":
            channel.append(name, item)
        else:
            channel.set(name, [*channel.get(name, []), item])
    if context._attempt.claim.spec.retry_count < body.flaky:  # not context.attempt: that counts deaths, too
        note("failed", context)
        raise Broken(body.name)
    ask(context, body.asks(context.cycle), made)
    note("ended", context)
    return mix(*seen)


def ask(context: Any, asks: tuple[Any, ...], made: dict[str, Body]) -> None:
    """Where it goes on."""
    verb = asks[0]
    if verb == "again":
        context.next_iteration(asks[1])
    elif verb == "goto":
        context.next_task(asks[1], goto=True)
    elif verb == "make":
        context.next_task(bound(made[asks[1]], {}), before=asks[2] or ())


def length(name: str, cycle: int) -> float:
    """Seconds: a few ms mostly, some that a signal will meet."""
    draw = mix(name, cycle, 3) % 100
    return (0.3 if draw < 3 else 0.004 + draw * 0.0005) * float(os.environ.get(PACE, "1"))


# --- what is written down --------------------------------------------------------------


def note(what: str, context: Any) -> None:
    """what, when, where, and of which attempt."""
    spec = context._attempt.claim.spec
    session = getattr(context._host, "_session", None)  # none where a session is in memory
    token = getattr(session, "token", "-")
    where = f"{time.time():.6f} {os.getpid()}"
    line = f"{what} {where} {spec.task_id} {spec.cycle} {spec.key} {spec.retry_count} {token}\n"
    os.write(_file(os.environ[RUNS]), line.encode())


@cache
def _file(name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


# --- the workflow ----------------------------------------------------------------------


def bound(body: Body, made: dict[str, Body]) -> Any:
    """A body as a task of its own name and options."""
    backoff = 0.1 if body.retries and mix(body.name) % 2 else 0.0
    options = {"max_retries": body.retries, "priority": body.priority, "backoff": backoff}
    mine = {ask[1]: made[ask[1]] for ask in body.visits if ask[0] == "make"}
    return task(inject_context=True, id=body.name, **options)(play.func).bind(body=body, made=mine)


def build(program: Program, session: str | None = None, **settings: Any) -> Workflow:
    """The workflow of a program."""
    made = {body.name: body for body in program.made}
    tasks: dict[str, Any] = {body.name: bound(body, made) for body in program.bodies}  # the block would take
    with workflow(
        "chaos", session, **settings
    ) as flow:  # what is decorated in it, besides what is bound of it
        for chain in program.chains:
            expression(chain, tasks)
    return flow


def expression(chain: tuple[Part, ...], known: dict[str, Any]) -> Any:
    """Join the tasks that are known as the chain has them; a group is made when it is met first."""
    parts = []
    for part in chain:
        if isinstance(part, Fork) and part.name not in known:
            members = [expression(member, known) for member in part.members]
            policy = {"all": None, "best": BestEffort(), "least": AtLeast(max(1, part.need))}[part.policy]
            known[part.name] = group(*members, policy=policy, name=part.name)
        parts.append(known[part if isinstance(part, str) else part.name])
    joined = parts[0]
    for part in parts[1:]:
        joined = joined >> part
    return joined


# --- pools of workers as users start them, each a process of its own with children, and what runs in them ---


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
