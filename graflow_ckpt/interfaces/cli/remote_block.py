"""The live block of a session that runs elsewhere: a bar as far as it can be known, and counts."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from graflow_ckpt.fleet.status import Status
from graflow_ckpt.interfaces.cli.manner import clean

WIDTH = 30
_spinner = Spinner("dots", style="cyan")


def block(status: Status, rate: float) -> RenderableType:
    """The picture of now."""
    head = Table.grid(padding=(0, 1))
    title = Text.assemble((clean(status.workflow), "bold"), f" {status.session} {status.status}")
    head.add_row(_spinner, title)
    bar = Table.grid(padding=(0, 1))
    bar.add_row("  ", _bar(status), Text(_counts(status, rate)))
    return Group(head, bar)


def _bar(status: Status) -> ProgressBar:
    """A loop counts as one task, and a branch that is not taken as done."""
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
