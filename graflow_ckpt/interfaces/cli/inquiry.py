"""`graflow-ckpt checkpoints diff` and `bisect`: what has changed, and since when. No pickle is opened."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli.options import (
    common,
    complete_places,
    complete_sessions,
    found_store,
    manner_of,
)

DIFF = """\b
Examples:
  graflow-ckpt checkpoints diff checkpoints/a.pkl checkpoints/b.pkl
  graflow-ckpt checkpoints diff night morning                   the newest of two sessions
  graflow-ckpt checkpoints diff night best.pkl --json | jq '.values[].name'
"""
BISECT = """\b
Examples:
  graflow-ckpt checkpoints bisect night --bad 'loss > 2'
  graflow-ckpt checkpoints bisect night --bad 'len(rows) < 10 or results.load.status == "lost"'
  graflow-ckpt checkpoints bisect night --bad 'metadata.epoch > 3 and accuracy < 0.5' --all
"""


@click.command("diff", epilog=DIFF, short_help="Compare two checkpoints.")
@click.argument("a", shell_complete=complete_places)
@click.argument("b", shell_complete=complete_places)
@found_store
@common
@click.pass_context
def diff(ctx: click.Context, /, a: str, b: str, store: str) -> int:
    """Compare two checkpoints: tasks, code, metadata, and the values of the channel with their sizes.

    Values of plain types are shown in short, rows of numbers as small pictures; of others the size and
    whether they have changed. Names that look like secrets hide theirs. Each side is a path or a session.
    """
    from graflow_ckpt.interfaces.cli.comparing import COLUMNS, compared, document, heads, rows

    manner = manner_of(ctx)
    found = compared(store, a, b)
    if manner.json:
        manner.document(document(found))
        return 0
    for line in heads(found):
        manner.say(line)
    if found:
        manner.table(COLUMNS, rows(found))
    manner.note(f"values that differ: {len(found.values)}, that are the same: {len(found.same)}")
    return 0


@click.command("bisect", epilog=BISECT, short_help="Find the first checkpoint in which EXPR is true.")
@click.argument("session", shell_complete=complete_sessions)
@click.option("--bad", required=True, metavar="EXPR", help="What is so where something is wrong.")
@click.option("--all", "everything", is_flag=True, help="Look at every checkpoint: it may come and go.")
@found_store
@common
@click.pass_context
def bisect(ctx: click.Context, /, session: str, bad: str, everything: bool, store: str) -> int:
    """Find the first checkpoint of a session in which EXPR is true, and what was done since the one before.

    EXPR sees the values of the channel by name, and: steps, status, sequence, metadata, tasks, results,
    values (a dict of all). It may compare, count (len min max abs sum any all), look into dicts and lists
    (a.b, a["b"], a[0]), and compute. The exit status is 1 if no checkpoint is bad.
    """
    from graflow_ckpt.core.conditions import BadCondition, parse
    from graflow_ckpt.interfaces.cli.searching import document, search, tell

    try:
        condition = parse(bad)
    except BadCondition as error:
        raise click.BadParameter(str(error), ctx, param_hint="--bad") from error
    manner = manner_of(ctx)
    found, between = search(store, session, condition, everything=everything, watched=not manner.json)
    if manner.json:
        manner.document(document(session, bad, found, between))
    else:
        tell(manner, session, found, between)
    return 0 if found.first_bad is not None else 1
