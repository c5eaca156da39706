"""An outlook over a fleet: sessions, queues and workers at one look, and rates from one look to the next.

`top` draws it as three tables; of one session `status` shows what holds it up, and where it came from.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import Any

from graflow_ckpt.cli import words
from graflow_ckpt.cli.client import document, shortened
from graflow_ckpt.cli.terminal import Document, Manner, clean, style_of
from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.health import PoolFacts, pools
from graflow_ckpt.fleet.status import Status, read_all

RECENT = 60.0  # seconds for which a session that has ended is still shown
_NEWEST = 50  # sessions that are looked at although nothing runs in them


@dataclass(frozen=True, slots=True)
class Queue:
    """The tasks and tokens of one queue, over all sessions, and the workers that serve it."""

    name: str
    ready: int
    running: int  # workers that are at something of it
    tokens: int  # that wait for a worker
    workers: int  # that serve it


@dataclass(frozen=True, slots=True)
class Outlook:
    """One look."""

    at: str
    time: float
    sessions: list[Status]  # those that are shown
    hidden: int  # and so many that are not
    rates: dict[str, float]  # of each session: steps per second since the last look
    queues: list[Queue]
    pools: list[PoolFacts]

    @property
    def rate(self) -> float:
        return sum(self.rates.values())

    @property
    def workers(self) -> int:
        return sum(len(pool.workers) for pool in self.pools)

    @property
    def busy(self) -> int:
        return sum(bool(worker.session) for pool in self.pools for worker in pool.workers)

    def document(self) -> Document:
        return {
            "at": self.at, "time": self.time, "rate": round(self.rate, 3),
            "workers": self.workers, "busy": self.busy,
            "sessions": [
                {**document(row, self.at), "rate": round(self.rates.get(row.session, 0.0), 3)}
                for row in self.sessions
            ],
            "hidden": self.hidden,
            "queues": [asdict(queue) for queue in self.queues],
            "pools": [asdict(pool) for pool in self.pools],
        }  # fmt: skip


class Overview:
    """Looks, and remembers the last look."""

    def __init__(self, client: Client, limit: int) -> None:
        self._client = client
        self._limit = limit
        self._steps: dict[str, int] = {}
        self._at: float | None = None

    def look(self) -> Outlook:
        found = {row.session: row for row in read_all(self._client.link, self._client.lately(_NEWEST))}
        now = monotonic()
        passed = now - self._at if self._at is not None else 0.0
        rates = {
            name: max(0, row.steps - self._steps[name]) / passed
            for name, row in found.items()
            if passed and name in self._steps
        }
        self._at, self._steps = now, {name: row.steps for name, row in found.items()}
        shown = [row for row in found.values() if not row.over or time.time() - (row.ended or 0) < RECENT]
        shown.sort(key=lambda row: (row.over, -rates.get(row.session, 0.0), -row.running, -row.created))
        alive = pools(self._client.link)
        queues = self._queues(found.values(), alive)
        return Outlook(
            self._client.link.address, time.time(), shown[: self._limit], max(0, len(shown) - self._limit),
            rates, queues, alive,
        )  # fmt: skip

    def _queues(self, rows: Iterable[Status], alive: list[PoolFacts]) -> list[Queue]:
        """Return the queues that something waits in, or that a worker serves."""
        ready, running, serving = Counter[str](), Counter[str](), Counter[str]()
        for row in rows:
            for name, size in row.queues:
                ready[name] += 0 if row.over else size
            running.update(dict(row.slices))
        for pool in alive:
            serving.update(dict.fromkeys(pool.queues, len(pool.workers)))
        names = sorted(ready.keys() | serving.keys())
        waiting = self._client.carrier.waiting(names)
        return [Queue(name, ready[name], running[name], waiting[name], serving[name]) for name in names]


_FACTS = ("store", "host", "python", "starts")


def describe(handle: Handle, client: Client) -> Document:
    """Return a session as JSON."""
    facts = handle.facts()
    status = handle.status()
    waiting = [] if status.over else [name for name, size in status.queues if size]
    served = {name for pool in pools(client.link) for name in pool.queues} if waiting else set()
    return {
        **document(status, client.link.address),
        **{name: facts.get(name) for name in _FACTS},
        "unserved": [name for name in waiting if name not in served],
        "declined": handle.declined(),
    }


def session_lines(found: Document) -> Iterator[str]:
    """Yield the same as lines of text."""
    limit = f" of at most {found['max_steps']}" if found["max_steps"] else ""
    total = f" of {found['tasks']}" if found["tasks"] else ""
    skipped = f", {found['skipped']} skipped" if found["skipped"] else ""
    waiting = ", ".join(f"{name} {size}" for name, size in found["queues"].items() if size)
    unserved = f" (no worker serves {', '.join(found['unserved'])})" if found["unserved"] else ""
    cap = f", at most {found['cap']} tasks at once" if found["cap"] else ""
    ended = found["ended"]
    took = f", ran for {words.age(ended - found['created'])}" if ended else ""
    errors = words.fleet_command("failed", "list", "--session", found["session"])
    yield f"session {found['session']} of workflow {found['workflow']} at {found['at']}"
    yield from words.fields(
        ("status", f"{found['status']}{': ' if found['reason'] else ''}{found['reason']}"),
        ("steps", f"{found['steps']}{limit}"),
        ("tasks", f"{found['completed']}{total} done, {found['failed']} failed{skipped}"),
        ("pending", f"{found['ready']} ready, {found['running']} running, {found['delayed']} delayed"),
        ("queues", f"{waiting}{unserved}" if waiting else ""),
        ("workers", f"{words.counted(found['tokens'], 'token')}{cap}"),
        ("submitted", f"{words.age(found['age'])} ago from {found['host'] or '?'}{took}"),
        ("checkpoint", found["checkpoint"] or "none"),
        *(("declined", f"{host}: {why}") for host, why in found["declined"].items()),
        ("errors", errors if found["failed"] else ""),
    )


SESSIONS = ("session", "workflow", "status", "done", "ready", "running", "failed", "rate", "age", "queues")
QUEUES = ("queue", "ready", "running", "tokens", "workers")
WORKERS = ("worker", "host", "pid", "state", "session", "for", "slices", "seen")
RIGHT = frozenset({"done", "ready", "running", "failed", "rate", "age", "tokens", "workers", "pid", "for",
                   "slices", "seen"})  # fmt: skip
NARROWED = frozenset({"session", "workflow", "queues", "worker", "host"})
"""Where a narrow terminal saves room: numbers and states stay whole."""

LATE = 5.0  # seconds after which a pool should have given a sign of life

Rows = list[tuple[Any, ...]]  # Any: whatever a table shows


def printed(manner: Manner, outlook: Outlook) -> None:
    """Print one picture, below what was there."""
    manner.say(headline(outlook))
    for columns, rows in _tables(outlook):
        if rows:
            manner.say("")
            manner.table(columns, rows, right=RIGHT)


def headline(outlook: Outlook) -> str:
    """Return the line above the tables."""
    running = sum(row.status == "running" for row in outlook.sessions)
    more = f" (and {outlook.hidden} more)" if outlook.hidden else ""
    return (
        f"{outlook.at}  {words.counted(running, 'session')} running{more}, "
        f"{words.counted(outlook.workers, 'worker')}, {outlook.busy} busy, {outlook.rate:.3g} tasks/s"
    )


def _tables(outlook: Outlook) -> list[tuple[Sequence[str], Rows]]:
    return [(SESSIONS, _sessions(outlook)), (QUEUES, _queues(outlook)), (WORKERS, _workers(outlook))]


def _sessions(outlook: Outlook) -> Rows:
    rows: Rows = []
    for row in outlook.sessions:
        total = f"/{row.tasks}" if row.tasks is not None else ""
        at = dict(row.slices)
        queues = [f"{name} {size}+{at.get(name, 0)}" for name, size in row.queues if size or at.get(name)]
        rate = outlook.rates.get(row.session, 0.0)
        rows.append((
            row.session, row.workflow, row.status, f"{row.completed}{total}", row.ready, row.running,
            row.failed or "", f"{rate:.3g}/s" if rate else "", words.age(words.seconds_ago(row.created)),
            " ".join(queues) or shortened(row.reason),
        ))  # fmt: skip
    return rows


def _queues(outlook: Outlook) -> Rows:
    return [(q.name, q.ready, q.running, q.tokens, q.workers or "none") for q in outlook.queues]


def _workers(outlook: Outlook) -> Rows:
    rows: Rows = []
    for pool in outlook.pools:
        seen = f"{pool.age:.1f} s" + (" late" if pool.age > LATE else "")
        state = "draining" if pool.draining else ""
        rows += [
            (f"{pool.pool}/{worker.name}", pool.owner.host, worker.owner.pid, state or worker.state,
             worker.session or "-", f"{worker.seconds:.1f} s" if worker.session else "", worker.slices, seen)
            for worker in pool.workers
        ]  # fmt: skip
    return rows


# --- live --------------------------------------------------------------------------------


def live(overview: Overview, every: float) -> None:
    """Show pictures until Ctrl-C. That a server is away is said in the last picture that there was."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    picture: Any = ""
    with Live(console=console, screen=True, auto_refresh=False) as shown:
        try:
            while True:
                began = monotonic()
                try:
                    picture = drawn(overview.look())
                    shown.update(picture, refresh=True)
                except ServerGone as error:
                    shown.update(_away(picture, error), refresh=True)
                sleep(max(0.05, every - (monotonic() - began)))
        except KeyboardInterrupt:
            sys.stdout.flush()


def drawn(outlook: Outlook) -> Any:  # Any: rich renders what it knows
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(clean(headline(outlook)), style="bold")]
    parts += [_table(columns, rows) for columns, rows in _tables(outlook) if rows]
    if not outlook.pools:
        parts.append(Text("no worker gives a sign of life: graflow-ckpt worker", style="yellow"))
    return Group(*parts)


def _table(columns: Sequence[str], rows: Rows) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        whole = name not in NARROWED
        table.add_column(
            name, justify="right" if name in RIGHT else "left", no_wrap=whole, overflow="ellipsis"
        )
    for row in rows:
        texts = [clean(str(cell)) for cell in row]
        table.add_row(*(Text(text, style=style_of(text)) for text in texts))
    return table


def _away(picture: Any, error: ServerGone) -> Any:
    from rich.console import Group
    from rich.text import Text

    return Group(Text(clean(error.message), style="red"), picture)
