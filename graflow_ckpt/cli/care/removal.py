"""`graflow-ckpt checkpoints prune`, `delete` and `clear`. No pickle is opened.

From what is typed for `prune` to a retention:

    --older-than, --keep, --budget        kept if all of those that are given keep it
    --best, --keep-every                  and what one of these keeps
    the last successful run of a workflow is kept unless --no-keep-successful
    none of them: the default of workflows
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from typing import Any, get_args

import click

from graflow_ckpt.checkpoint import retention as rules
from graflow_ckpt.checkpoint.retention import Per, Retention
from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner

_BEST = re.compile(r"(?P<metric>.+?)(?::(?P<n>[1-9]\d*))?(?::(?P<mode>min|max))?\Z")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?B?)\Z")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


def parse_best(
    ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> tuple[tuple[str, int, str], ...]:
    """Parse `loss`, `loss:3`, `accuracy:3:max`."""
    found = []
    for item in given:
        match = _BEST.match(item)
        if match is None:
            raise click.BadParameter(f"{item!r} is not METRIC, METRIC:N or METRIC:N:max.")
        found.append((match["metric"], int(match["n"] or 1), match["mode"] or "min"))
    return tuple(found)


def parse_bytes(ctx: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """Parse `500MB`, `10 GB`, `1.5G`: powers of 1000, as sizes are shown."""
    if given is None:
        return None
    match = _BYTES.match(given.strip())
    size = round(float(match[1]) * 1000.0 ** _POWERS[match[2].rstrip("B")]) if match else 0
    if size < 1:
        raise click.BadParameter(f"{given!r} is no size: 500MB, 10GB.")
    return size


def retention_of(
    *, older_than: float | None, keep: int | None, budget: int | None, best: Sequence[tuple[str, int, str]],
    keep_every: int | None, per: Per, keep_successful: bool,
) -> Retention:  # fmt: skip
    """Combine the options to one retention."""
    limits: list[Retention] = []
    if older_than is not None:
        limits.append(rules.KeepFor(seconds=older_than))
    if keep is not None:
        limits.append(rules.KeepLast(keep, per=per))
    if budget is not None:
        limits.append(rules.KeepWithin(kb=budget / 1000))
    besides: list[Retention] = [rules.BestOf(metric, n, "max" if mode == "max" else "min", per=per)
                                for metric, n, mode in best]  # fmt: skip
    if keep_every is not None:
        besides.append(rules.KeepEvery(keep_every))
    if not limits and not besides:
        limits = [rules.KeepLast(10, per=per), rules.KeepFor(days=7)]
        if keep_successful and per == "session":
            return rules.DEFAULT
    if keep_successful:
        besides.append(rules.LastSuccessful())
    return reduce(or_, [*([reduce(and_, limits)] if limits else []), *besides])


_force = click.option(
    "--force", is_flag=True, help="Also paused ones, and those that a session was forked from."
)


_deleting = options.each(
    click.option("--dry-run", is_flag=True, help="Only say what would go, and how many bytes."),
    options.unasked, options.found_store,
)  # fmt: skip
"""The options that commands which delete have in common."""


@options.command("prune", short_help="Delete checkpoints that are too old or too many.")
@click.option("--older-than", metavar="7d", callback=words.parse_age, help="What is older goes.")
@click.option("--keep", type=options.COUNT, metavar="N", help="All but the last N go; see --per.")
@click.option("--budget", metavar="10GB", callback=parse_bytes, help="The oldest go until the rest fits.")
@click.option("--best", multiple=True, metavar="METRIC[:N][:max]", callback=parse_best,
              help="Stay besides: the N with the lowest (max: highest) number in their metadata.",
)  # fmt: skip
@click.option("--keep-every", type=options.COUNT, metavar="N", help="Stay besides: every Nth of a session.")
@click.option("--per", type=click.Choice(get_args(Per)), default="session", show_default=True,
              help="What --keep and --best count together.")  # fmt: skip
@click.option("--keep-successful/--no-keep-successful", default=True, show_default=True,
              help="Stays besides: the end of the last run of each workflow that has completed.")  # fmt: skip
@click.option(
    "--session", metavar="ID", help="Only of this session.", shell_complete=options.complete_sessions
)
@options.of_workflow
@_deleting
def prune(
    manner: Manner, /, session: str | None, workflow: str | None, dry_run: bool, yes: bool, store: str,
    **said: Any,  # the options that retention_of takes
) -> int:  # fmt: skip
    """Delete checkpoints that are too old or too many, also those that a task has asked for.

    Without a rule: all but the last 10 of each session, and what is older than 7 days. Whatever the rules
    say, these stay: the newest good one of a session that can go on, paused ones, those that another
    session was forked from, and those of a session that runs now.

    Examples:
      graflow-ckpt checkpoints prune --dry-run   what the default would take away
      graflow-ckpt checkpoints prune --older-than 7d
      graflow-ckpt checkpoints prune --keep 3 --best loss:2 --workflow train --yes
      graflow-ckpt checkpoints prune --budget 20GB --yes --json
      graflow-ckpt prune --older-than 7d --yes   the same, for short
    """
    metrics = [metric for metric, _, _ in said["best"]]
    clearance = lazy.clearance.by_retention(store, retention_of(**said), session, workflow, metrics)
    return clearance.carried_out(manner, dry_run=dry_run, yes=yes)


command = prune  # what is typed and scheduled most often, also without its group


@options.command("delete")
@click.argument(
    "what", nargs=-1, required=True, metavar="SESSION|PATH…", shell_complete=options.complete_places
)
@_force
@_deleting
def delete(
    manner: Manner, /, what: tuple[str, ...], force: bool, dry_run: bool, yes: bool, store: str
) -> int:
    """Delete single checkpoints, or all of a session with its journal.

    All that is named goes, or nothing: paused ones and those that another session was forked from
    need --force; of a session that runs now nothing is deleted.

    Examples:
      graflow-ckpt checkpoints delete checkpoints/best.pkl
      graflow-ckpt checkpoints delete night-7 night-8 --yes   all of two sessions
    """
    clearance = lazy.clearance.by_name(store, what, force=force)
    return clearance.carried_out(manner, dry_run=dry_run, yes=yes)


@options.command("clear", short_help="Delete all checkpoints of a workflow.")
@click.argument("workflow")
@click.option("--finished", is_flag=True, help="Only sessions that are completed or cancelled.")
@_force
@_deleting
def clear(
    manner: Manner, /, workflow: str, finished: bool, force: bool, dry_run: bool, yes: bool, store: str
) -> int:
    """Delete all checkpoints of a workflow, and the journals of its sessions.

    What stays is told: paused ones and those that a session of another workflow was forked from, unless
    --force; and those of a session that runs now.

    Examples:
      graflow-ckpt checkpoints clear etl --dry-run
      graflow-ckpt checkpoints clear etl --finished --yes
    """
    clearance = lazy.clearance.by_workflow(store, workflow, finished=finished, force=force)
    return clearance.carried_out(manner, dry_run=dry_run, yes=yes)
