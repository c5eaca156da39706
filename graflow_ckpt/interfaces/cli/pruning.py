"""`graflow-ckpt checkpoints prune`: takes away what is too old or too much. No pickle is opened."""

from __future__ import annotations

from typing import Any, get_args

import click

from graflow_ckpt.checkpoint.retention import Per
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.keeping import parse_best, parse_bytes, retention_of
from graflow_ckpt.interfaces.cli.options import common, complete_sessions, found_store, manner_of

PRUNE = """\b
Examples:
  graflow-ckpt checkpoints prune --dry-run                       what the default would take away
  graflow-ckpt checkpoints prune --older-than 7d
  graflow-ckpt checkpoints prune --keep 3 --best loss:2 --workflow train --yes
  graflow-ckpt checkpoints prune --budget 20GB --yes --json
  graflow-ckpt prune --older-than 7d --yes                       the same, for short
"""


@click.command("prune", epilog=PRUNE, short_help="Delete checkpoints that are too old or too many.")
@click.option("--older-than", metavar="7d", callback=words.parse_period, help="What is older goes.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="All but the last N go; see --per.")
@click.option("--budget", metavar="10GB", callback=parse_bytes, help="The oldest go until the rest fits.")
@click.option(
    "--best",
    multiple=True,
    metavar="METRIC[:N][:max]",
    callback=parse_best,
    help="Stay besides: the N with the lowest (max: highest) number in their metadata.",
)
@click.option(
    "--keep-every", type=click.IntRange(min=1), metavar="N", help="Stay besides: every Nth of a session."
)
@click.option(
    "--per",
    type=click.Choice(get_args(Per)),
    default="session",
    show_default=True,
    help="What --keep and --best count together.",
)
@click.option(
    "--keep-successful/--no-keep-successful",
    default=True,
    show_default=True,
    help="Stays besides: the end of the last run of each workflow that has completed.",
)
@click.option("--session", metavar="ID", help="Only of this session.", shell_complete=complete_sessions)
@click.option("--workflow", metavar="NAME", help="Only of this workflow.")
@click.option("--dry-run", is_flag=True, help="Only say what would go, and how many bytes.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@found_store
@common
@click.pass_context
def prune(
    ctx: click.Context,
    /,
    session: str | None,
    workflow: str | None,
    dry_run: bool,
    yes: bool,
    store: str,
    per: Per,
    **rules: Any,  # the options that retention_of takes
) -> int:
    """Delete checkpoints that are too old or too many, also those that a task has asked for.

    Without a rule: all but the last 10 of each session, and what is older than 7 days. Whatever the rules
    say, these stay: the newest good one of a session that can go on, paused ones, those that another
    session was forked from, and those of a session that somebody runs now.
    """
    from graflow_ckpt.interfaces.cli.clearance import Clearance

    retention = retention_of(per=per, **rules)
    manner = manner_of(ctx)
    clearance = Clearance.by_retention(store, retention, session=session, workflow=workflow)
    if dry_run:
        return clearance.show(manner)
    return clearance.go(manner, yes=yes)
