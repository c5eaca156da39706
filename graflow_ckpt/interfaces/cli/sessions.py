"""`graflow-ckpt sessions`: what there is in a store, and how far it is."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.options import common, manner_of, store

EXAMPLES = """\b
Examples:
  graflow-ckpt sessions
  graflow-ckpt sessions --unfinished --workflow etl
  graflow-ckpt sessions --store /srv/checkpoints --json
"""

COLUMNS = (
    "session", "workflow", "status", "steps", "done", "pending", "checkpoints", "age", "owner", "newest",
    "note",
)  # fmt: skip


@click.command("sessions", epilog=EXAMPLES, short_help="List the sessions of a store.")
@click.option("--workflow", metavar="NAME", help="Only sessions of this workflow.")
@click.option("--unfinished", is_flag=True, help="Only what can go on.")
@store
@common
@click.pass_context
def command(ctx: click.Context, workflow: str | None, unfinished: bool, store: str) -> int:
    """List the sessions of a store, the newest first.

    DONE and PENDING count tasks in the newest good checkpoint. No pickle is opened.
    """
    from graflow_ckpt.interfaces.cli.overview import UNFINISHED, overview

    manner = manner_of(ctx)
    rows = [
        row
        for row in overview(store)
        if workflow in (None, row.workflow) and (not unfinished or row.status in UNFINISHED)
    ]
    if manner.json:
        manner.document([row.document() for row in rows])
    elif not rows:
        manner.note(f"There are no sessions in {store}; --store names another folder.")
    else:
        columns = COLUMNS if any(row.note for row in rows) else COLUMNS[:-1]
        table = [
            (r.session, r.workflow, r.status, r.steps, r.done, r.pending, r.checkpoints,
             words.age(words.seconds_since(r.created_at)), r.owner or "-", r.newest, r.note)[: len(columns)]
            for r in rows
        ]  # fmt: skip
        manner.table(columns, table, right=("steps", "done", "pending", "checkpoints", "age"))
    return 0
