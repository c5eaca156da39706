"""`graflow-ckpt checkpoints stats`: how many, how old, how large. No pickle is opened."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli.bars import bar
from graflow_ckpt.interfaces.cli.options import common, found_store, manner_of

STATS = """\b
Examples:
  graflow-ckpt checkpoints stats
  graflow-ckpt checkpoints stats --workflow train --json | jq .ages
"""


@click.command("stats", epilog=STATS, short_help="Count checkpoints by workflow, age and status.")
@click.option("--workflow", metavar="NAME", help="Only of this workflow.")
@found_store
@common
@click.pass_context
def stats(ctx: click.Context, /, workflow: str | None, store: str) -> int:
    """Count checkpoints: by workflow, by age, by status; the oldest, the newest, the largest."""
    from graflow_ckpt.interfaces.cli.counting import COLUMNS, document, lines, rows, taken

    manner = manner_of(ctx)
    with bar("looking", show=not manner.json):
        found = taken(store, workflow)
    if manner.json:
        manner.document(document(found))
    elif not found.total.checkpoints and not found.unreadable:
        manner.note(f"There are no such checkpoints in {store}; --store names another folder.")
    else:
        manner.table(COLUMNS, rows(found), right=COLUMNS[1:])
        for line in lines(found):
            manner.say(line)
    return 0
