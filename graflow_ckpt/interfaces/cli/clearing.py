"""`graflow-ckpt checkpoints delete` and `clear`: takes away what is named. No pickle is opened."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli.options import common, complete_places, found_store, manner_of

DELETE = """\b
Examples:
  graflow-ckpt checkpoints delete checkpoints/best.pkl
  graflow-ckpt checkpoints delete night-7 night-8 --yes          all checkpoints of two sessions
"""
CLEAR = """\b
Examples:
  graflow-ckpt checkpoints clear etl --dry-run
  graflow-ckpt checkpoints clear etl --finished --yes
"""


@click.command("delete", epilog=DELETE)
@click.argument("what", nargs=-1, required=True, metavar="SESSION|PATH…", shell_complete=complete_places)
@click.option("--force", is_flag=True, help="Also paused ones, and those that a session was forked from.")
@click.option("--dry-run", is_flag=True, help="Only say what would go, and how many bytes.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@found_store
@common
@click.pass_context
def delete(
    ctx: click.Context, /, what: tuple[str, ...], force: bool, dry_run: bool, yes: bool, store: str
) -> int:
    """Delete single checkpoints, or all of a session with its journal.

    All that is named goes, or nothing: paused ones and those that another session was forked from
    need --force; of a session that somebody runs now nothing is deleted.
    """
    from graflow_ckpt.interfaces.cli.clearance import Clearance

    manner = manner_of(ctx)
    clearance = Clearance.by_name(store, what, force=force)
    return clearance.show(manner) if dry_run else clearance.go(manner, yes=yes)


@click.command("clear", epilog=CLEAR, short_help="Delete all checkpoints of a workflow.")
@click.argument("workflow")
@click.option("--finished", is_flag=True, help="Only sessions that are completed or cancelled.")
@click.option("--force", is_flag=True, help="Also paused ones, and those that a session was forked from.")
@click.option("--dry-run", is_flag=True, help="Only say what would go, and how many bytes.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@found_store
@common
@click.pass_context
def clear(
    ctx: click.Context, /, workflow: str, finished: bool, force: bool, dry_run: bool, yes: bool, store: str
) -> int:
    """Delete all checkpoints of a workflow, and the journals of its sessions.

    What stays is told: paused ones and those that a session of another workflow was forked from, unless
    --force; and those of a session that somebody runs now.
    """
    from graflow_ckpt.interfaces.cli.clearance import Clearance

    manner = manner_of(ctx)
    clearance = Clearance.by_workflow(store, workflow, finished=finished, force=force)
    return clearance.show(manner) if dry_run else clearance.go(manner, yes=yes)
