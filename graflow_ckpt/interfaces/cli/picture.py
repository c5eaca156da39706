"""The picture of `top`: three tables that are drawn anew, or printed once."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.fleet_rows import shortened
from graflow_ckpt.interfaces.cli.manner import Manner, clean, style_of
from graflow_ckpt.interfaces.cli.outlook import Outlook, Overview

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
    """One picture, below what was there."""
    manner.say(headline(outlook))
    for columns, rows in _tables(outlook):
        if rows:
            manner.say("")
            manner.table(columns, rows, right=RIGHT)


def headline(outlook: Outlook) -> str:
    """The line above the tables."""
    running = sum(row.status == "running" for row in outlook.sessions)
    more = f" (and {outlook.hidden} more)" if outlook.hidden else ""
    return (
        f"{outlook.at}  {words.counted(running, 'session')} running{more}, "
        f"{words.counted(outlook.workers, 'worker')}, {outlook.busy} busy, {outlook.rate:.3g} tasks/s"
    )


def _tables(outlook: Outlook) -> list[tuple[Sequence[str], Rows]]:
    return [(SESSIONS, _sessions(outlook)), (QUEUES, _queues(outlook)), (WORKERS, _workers(outlook))]


def _sessions(outlook: Outlook) -> Rows:
    now = time.time()
    rows: Rows = []
    for row in outlook.sessions:
        total = f"/{row.tasks}" if row.tasks is not None else ""
        at = dict(row.slices)
        queues = [f"{name} {size}+{at.get(name, 0)}" for name, size in row.queues if size or at.get(name)]
        rate = outlook.rates.get(row.session, 0.0)
        rows.append((
            row.session, row.workflow, row.status, f"{row.completed}{total}", row.ready, row.running,
            row.failed or "", f"{rate:.3g}/s" if rate else "", words.age(max(0.0, now - row.created)),
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
    """Until Ctrl-C. A server that is away is said so, in the last picture that there was."""
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
