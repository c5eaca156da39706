"""The live block: one line of counts, one of the last checkpoint, a bar per task that tells its progress."""

from __future__ import annotations

from time import monotonic

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.manner import clean
from graflow_ckpt.interfaces.cli.tally import Tally

BARS = 8  # tasks that are shown with a bar of their own
_spinner = Spinner("dots", style="cyan")


def block(tally: Tally) -> RenderableType:
    """The picture of now."""
    head = Table.grid(padding=(0, 1))
    head.add_row(_spinner, Text.assemble((tally.workflow, "bold"), f" {tally.session}"), Text(tally.counts))
    rows: list[RenderableType] = [head]
    bars = dict(tally.bars)
    if bars:
        rows.append(_bars(bars))
    names = [name for name in list(tally.running) if name not in bars]
    if names:
        rows.append(Text(f"  running: {clean(_listed(names))}", style="dim"))
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
    if tally.saved_at is None:
        return Text("  no checkpoint in this run yet", style="dim")
    when = words.age(monotonic() - tally.saved_at)
    said = f"  last checkpoint: step {tally.saved_step}, {when} ago ({tally.saved} in this run)"
    text = Text(said, style="dim")
    if tally.failed_saves:
        text.append(f"  {tally.failed_saves} could not be saved", style="red")
    return text


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - BARS} more" if len(names) > BARS else ""
    return ", ".join(names[:BARS]) + more
