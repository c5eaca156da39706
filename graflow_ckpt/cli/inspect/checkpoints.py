"""`graflow-ckpt checkpoints`: list, show, verify, take, diff, bisect. No pickle is opened, no value is shown.

prune, delete, clear    removal.py        copy, export, import, fork               transfer.py
                                          backup, vacuum, stats, sync, audit       upkeep.py
"""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.care.removal import clear, delete, prune
from graflow_ckpt.cli.care.transfer import copy, export, fork, import_
from graflow_ckpt.cli.care.upkeep import audit, backup, stats, sync, vacuum
from graflow_ckpt.cli.options import (
    common,
    complete_places,
    complete_remote,
    complete_sessions,
    found_store,
    manner_of,
    of_fleet,
)
from graflow_ckpt.core.conditions import BadCondition, parse

LIST = """\b
Examples:
  graflow-ckpt checkpoints list night --limit 5
  graflow-ckpt checkpoints list --workflow etl --status failed --json
  graflow-ckpt checkpoints list --store sqlite:///runs.db --limit 50
"""
SHOW = """\b
Examples:
  graflow-ckpt checkpoints show night              the newest of a session
  graflow-ckpt checkpoints show checkpoints/best.pkl
  graflow-ckpt checkpoints show checkpoints/best.pkl --json | jq .state.status
"""
VERIFY = """\b
Examples:
  graflow-ckpt checkpoints verify night          all checkpoints of a session
  graflow-ckpt checkpoints verify backups/*.pkl
  graflow-ckpt checkpoints verify --all
  graflow-ckpt checkpoints verify --sample 100   in a nightly job
"""
TAKE = """\b
Examples:
  graflow-ckpt checkpoints take night              in the store of the session
  graflow-ckpt checkpoints take night --portable --path /backups/night.pkl
"""
COLUMNS = ("path", "session", "workflow", "step", "status", "cause", "age", "size")


@click.group(
    "checkpoints", short_help="List, compare, copy and delete checkpoints; take one of a fleet's session."
)
def command() -> None:
    """List, show, compare and verify checkpoints, take one of a fleet's session, copy them to another
    store, and delete what is not needed."""


for _command in (prune, delete, clear, stats, fork, copy, export, import_, audit, sync, backup, vacuum):
    command.add_command(_command)


@command.command("list", epilog=LIST)
@click.argument("session", required=False, shell_complete=complete_sessions)
@click.option(
    "--session",
    "its",
    metavar="SESSION",
    help="Only of this session, as without the option.",
    shell_complete=complete_sessions,
)
@click.option("--workflow", metavar="NAME", help="Only of this workflow.")
@click.option(
    "--status", metavar="STATUS", help="Only of sessions that were running, completed, failed, … then."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The newest N.")
@found_store
@common
def list_(
    ctx: click.Context,
    /,
    session: str | None,
    its: str | None,
    workflow: str | None,
    status: str | None,
    limit: int | None,
    store: str,
) -> int:
    """List checkpoints, the newest first.

    As their metadata describe them; whether that is true, `verify` finds out. The exit status is 1 if there
    are none of the session that is named.
    """

    if session and its:
        raise click.UsageError("Name one session.")
    manner = manner_of(ctx)
    rows = lazy.display.listing(store, limit, session=session or its, workflow=workflow, status=status)
    if manner.json:
        manner.document([row.document() for row in rows])
    elif not rows:
        more = " What there is: graflow-ckpt checkpoints stats." if workflow or status else ""
        where = f"There are no such checkpoints in {store}; --store names another folder, or a server."
        manner.note(where + more)
    else:
        table = [
            (m.path, m.session_id, m.workflow, m.steps, m.status, m.cause,
             words.age(words.seconds_since(m.created_at)), words.size(row.size))
            for row in rows
            for m in (row.metadata,)
        ]  # fmt: skip
        manner.table(COLUMNS, table, right=("step", "age", "size"))
    return 1 if not rows and (session or its) else 0


@command.command("show", epilog=SHOW, short_help="Show what a checkpoint says of itself.")
@click.argument("what", metavar="PATH|SESSION", shell_complete=complete_places)
@found_store
@common
def show(ctx: click.Context, /, what: str, store: str) -> int:
    """Show what a checkpoint says of itself: metadata, control facts, sizes.

    Values are never shown, and what looks like a secret in the user's metadata is not either. The
    exit status is 1 if the checkpoint does not verify.
    """

    manner = manner_of(ctx)
    document = lazy.display.describe(what, store)
    if manner.json:
        manner.document(document)
    else:
        for line in lazy.display.lines(document):
            manner.say(line)
    return 0 if document["verdict"] == "good" else 1


@command.command("verify", epilog=VERIFY, short_help="Check seals and digests of checkpoints.")
@click.argument("what", nargs=-1, metavar="[SESSION|PATH]…", shell_complete=complete_places)
@click.option("--all", "everything", is_flag=True, help="All checkpoints of the store.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Any N of them, others each time.")
@found_store
@common
def verify(
    ctx: click.Context, /, what: tuple[str, ...], everything: bool, sample: int | None, store: str
) -> int:
    """Check seals and digests of all three files of checkpoints; exit status 1 if any is bad.

    With --sample what is not named is taken from the whole store.
    """

    if bool(what) == everything and (what or sample is None):
        raise click.UsageError("Name sessions or checkpoints, or give --all.")
    manner = manner_of(ctx)
    paths = lazy.display.paths_of(store, what)
    found = list(lazy.display.verdicts(lazy.display.any_of(paths, sample), show=not manner.json))
    bad = sum(verdict.what == "bad" for verdict in found)
    if manner.json:
        manner.document([verdict.document() for verdict in found])
    else:
        if not found:
            manner.note(f"There are no checkpoints in {store}; --store names another folder.")
            return 0
        rows = [(v.path, v.what, words.size(v.size) if v.size is not None else "", v.why) for v in found]
        manner.table(("path", "verdict", "size", "why"), rows, right=("size",))
        of = f" of {len(paths)}" if len(found) < len(paths) else ""
        manner.note(f"{words.counted(len(found), 'checkpoint')}{of}, {bad} bad")
    return 1 if bad else 0


@command.command("take", epilog=TAKE)
@click.argument("session", shell_complete=complete_remote)
@click.option(
    "--portable", is_flag=True, help="With queue and values: to rewind, to fork, to keep elsewhere."
)
@click.option("--path", metavar="PATH", help="Where to write it, instead of the session's own store.")
@of_fleet
@common
def take(ctx: click.Context, /, session: str, portable: bool, path: str | None) -> int:
    """Take a checkpoint of a fleet's session, now, from here. Its workers need not stop."""
    manner = manner_of(ctx)
    metadata = lazy.client.session_at(lazy.client.client_of(ctx, key=True), session).checkpoint(
        portable=portable, path=path
    )
    if manner.json:
        manner.document(
            {"path": metadata.path, "session": session, "steps": metadata.steps, "portable": portable}
        )
    else:
        manner.note(
            f"session {session} at step {metadata.steps}, {'portable' if portable else 'by reference'}"
        )
        click.echo(metadata.path)
    return 0


DIFF = """\b
Examples:
  graflow-ckpt checkpoints diff checkpoints/a.pkl checkpoints/b.pkl
  graflow-ckpt checkpoints diff night morning   the newest of two sessions
  graflow-ckpt checkpoints diff night best.pkl --json | jq '.values[].name'
"""
BISECT = """\b
Examples:
  graflow-ckpt checkpoints bisect night --bad 'loss > 2'
  graflow-ckpt checkpoints bisect night \\
      --bad 'len(rows) < 10 or results.load.status == "lost"'
  graflow-ckpt checkpoints bisect night --all \\
      --bad 'metadata.epoch > 3 and accuracy < 0.5'
"""


@command.command("diff", epilog=DIFF, short_help="Compare two checkpoints.")
@click.argument("a", shell_complete=complete_places)
@click.argument("b", shell_complete=complete_places)
@found_store
@common
def diff(ctx: click.Context, /, a: str, b: str, store: str) -> int:
    """Compare two checkpoints: tasks, code, metadata, and the values of the channel with their sizes.

    Values of plain types are shown in short, rows of numbers as small pictures; of others the size and
    whether they have changed. Names that look like secrets hide theirs. Each side is a path or a session.
    """

    manner = manner_of(ctx)
    found = lazy.comparison.compared(store, a, b)
    if manner.json:
        manner.document(lazy.comparison.document(found))
        return 0
    for line in lazy.comparison.heads(found):
        manner.say(line)
    if found:
        manner.table(lazy.comparison.COLUMNS, lazy.comparison.rows(found))
    manner.note(f"values that differ: {len(found.values)}, that are the same: {len(found.same)}")
    return 0


@command.command("bisect", epilog=BISECT, short_help="Find the first checkpoint in which EXPR is true.")
@click.argument("session", shell_complete=complete_sessions)
@click.option("--bad", required=True, metavar="EXPR", help="What is so where something is wrong.")
@click.option("--all", "everything", is_flag=True, help="Look at every checkpoint: it may come and go.")
@found_store
@common
def bisect(ctx: click.Context, /, session: str, bad: str, everything: bool, store: str) -> int:
    """Find the first checkpoint of a session in which EXPR is true, and what was done since the one before.

    EXPR sees the values of the channel by name, and: steps, status, sequence, metadata, tasks, results,
    values (a dict of all). It may compare, count (len min max abs sum any all), look into dicts and lists
    (a.b, a["b"], a[0]), and compute. The exit status is 1 if no checkpoint is bad.
    """

    try:
        condition = parse(bad)
    except BadCondition as error:
        raise click.BadParameter(str(error), ctx, param_hint="--bad") from error
    manner = manner_of(ctx)
    found, between = lazy.comparison.search(
        store, session, condition, everything=everything, watched=not manner.json
    )
    if manner.json:
        manner.document(lazy.comparison.bisected_document(session, bad, found, between))
    else:
        lazy.comparison.tell(manner, session, found, between)
    return 0 if found.first_bad is not None else 1
