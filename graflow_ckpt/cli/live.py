"""The live block: one line of counts, one of the last checkpoint, a bar per task that reports its progress.

Doors are what a program knows as stdout and stderr, while a live block may be below its output. They are
put up before the program starts, because it may keep them: a logging handler that was made early has to write
above the block as well. A forked child has no thread that draws, and must not wait for its lock: its doors
lead to the real streams.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from graflow_ckpt.cli import words
from graflow_ckpt.cli.terminal import clean

if TYPE_CHECKING:
    from graflow_ckpt.cli.progress import Tally
    from graflow_ckpt.fleet.status import Status

BARS = 8  # tasks that are shown with a bar of their own
_spinner = Spinner("dots", style="cyan")


def block_on(stream: TextIO, draw: Callable[[], RenderableType], *, redirect: bool = True) -> Live:
    """Return a block, drawn anew for each picture; `redirect`: rich leads what is printed above it."""
    console = Console(file=stream, highlight=False)
    return Live(
        get_renderable=draw, console=console, refresh_per_second=8, transient=True,
        redirect_stdout=redirect, redirect_stderr=redirect,
    )  # fmt: skip


def block(tally: Tally) -> RenderableType:
    """Draw the picture of now."""
    head = Table.grid(padding=(0, 1))
    head.add_row(_spinner, Text.assemble((tally.workflow, "bold"), f" {tally.session}"), Text(tally.counts))
    rows: list[RenderableType] = [head]
    bars = dict(tally.bars)
    if bars:
        rows.append(_bars(bars))
    names = [name for name in list(tally.running) if name not in bars]
    if names:
        rows.append(Text(f"  running: {clean(words.listed(names, BARS))}", style="dim"))
    rows.append(_checkpoint(tally))
    return Group(*rows)


def _bars(bars: dict[str, tuple[float, float | None]]) -> Table:
    table = Table.grid(padding=(0, 1))
    for task, (done, total) in list(bars.items())[:BARS]:
        share = f"{done:g}/{total:g}" if total else f"{done:g}"
        bar = ProgressBar(total=total or None, completed=done, width=30, pulse=not total)
        table.add_row(Text(f"  {clean(task)}"), bar, Text(share))
    return table


def _checkpoint(tally: Tally) -> Text:
    if tally.last_save is None:
        return Text("  no checkpoint in this run yet", style="dim")
    at, step = tally.last_save
    said = f"  last checkpoint: step {step}, {words.age(monotonic() - at)} ago ({tally.saved} in this run)"
    text = Text(said, style="dim")
    if tally.failed_saves:
        text.append(f"  {tally.failed_saves} could not be saved", style="red")
    return text


class Door:
    """One stream; where it leads can change."""

    def __init__(self, stream: TextIO) -> None:
        self.real = stream
        self.leads_to: Any = stream  # Any: the stream, or rich's stand-in for it

    def write(self, text: str) -> int:
        written: int = self.leads_to.write(text)
        return written

    def flush(self) -> None:
        if self.leads_to is self.real:  # above a block half a line waits for its other half
            self.real.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Doors:
    """Both of them."""

    def __init__(self) -> None:
        self.out, self.err = Door(sys.stdout), Door(sys.stderr)
        vars(sys).update(stdout=self.out, stderr=self.err)
        os.register_at_fork(after_in_child=self._open_in_child)

    def lead_above(self, console: Console) -> None:
        """Write what goes to the terminal above the block; a file gets what is meant for it."""
        self.err.leads_to = FileProxy(console, self.err.real)
        if self.out.real.isatty():
            self.out.leads_to = FileProxy(console, self.out.real)

    def _open_in_child(self) -> None:
        for door in (self.out, self.err):
            door.leads_to = door.real

    def open(self) -> None:
        """Lead to the real streams again."""
        for door in (self.out, self.err):
            door.leads_to, before = door.real, door.leads_to
            if before is not door.real:
                before.flush()  # an unfinished line


WIDTH = 30


def remote_block(status: Status, rate: float) -> RenderableType:
    """Draw the picture of now."""
    head = Table.grid(padding=(0, 1))
    title = Text.assemble((clean(status.workflow), "bold"), f" {status.session} {status.status}")
    head.add_row(_spinner, title)
    bar = Table.grid(padding=(0, 1))
    bar.add_row("  ", _bar(status), Text(_counts(status, rate)))
    return Group(head, bar)


def _bar(status: Status) -> ProgressBar:
    """Draw the bar: a loop counts as one task, and a branch that is not taken as done."""
    done = status.completed + status.failed + status.skipped
    if status.tasks is None:
        return ProgressBar(total=None, pulse=True, width=WIDTH)
    return ProgressBar(total=max(1, status.tasks), completed=min(done, status.tasks), width=WIDTH)


def _counts(status: Status, rate: float) -> str:
    total = f"/{status.tasks}" if status.tasks is not None else ""
    parts = [
        f"{status.completed}{total} done", f"{status.running} running", f"{status.ready} ready",
        f"{status.delayed} delayed" if status.delayed else "",
        f"{status.failed} failed" if status.failed else "",
        f"{rate:.3g}/s",
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)
