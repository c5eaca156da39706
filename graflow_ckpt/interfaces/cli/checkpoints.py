"""`graflow-ckpt checkpoints`: list, show, verify, take. No pickle is opened, no value is shown.

prune, delete, clear    pruning.py clearing.py        stats           statistics.py
copy, export, import    travelling.py                 diff, bisect    inquiry.py
audit                   inspecting.py                 fork            forking.py
backup, vacuum          care.py                       sync            syncing.py
"""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.care import backup, vacuum
from graflow_ckpt.interfaces.cli.clearing import clear, delete
from graflow_ckpt.interfaces.cli.configuration import fleet
from graflow_ckpt.interfaces.cli.forking import fork
from graflow_ckpt.interfaces.cli.inquiry import bisect, diff
from graflow_ckpt.interfaces.cli.inspecting import audit
from graflow_ckpt.interfaces.cli.options import (
    common,
    complete_places,
    complete_remote,
    complete_sessions,
    found_store,
    manner_of,
)
from graflow_ckpt.interfaces.cli.pruning import prune
from graflow_ckpt.interfaces.cli.statistics import stats
from graflow_ckpt.interfaces.cli.syncing import sync
from graflow_ckpt.interfaces.cli.travelling import copy, export, import_

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
  graflow-ckpt checkpoints show checkpoints/best.pkl --json | jq .state.completed_tasks
"""
VERIFY = """\b
Examples:
  graflow-ckpt checkpoints verify night            all checkpoints of a session
  graflow-ckpt checkpoints verify backups/*.pkl
  graflow-ckpt checkpoints verify --all
  graflow-ckpt checkpoints verify --sample 100     in a nightly job
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


for _command in (prune, delete, clear, stats, diff, bisect, fork, copy, export, import_, audit, sync):
    command.add_command(_command)
for _command in (backup, vacuum):
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
@click.pass_context
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
    from graflow_ckpt.interfaces.cli.listing import listing

    if session and its:
        raise click.UsageError("Name one session.")
    manner = manner_of(ctx)
    rows = listing(store, limit, session=session or its, workflow=workflow, status=status)
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
@click.pass_context
def show(ctx: click.Context, /, what: str, store: str) -> int:
    """Show what a checkpoint says of itself: metadata, control facts, sizes.

    Values are never shown, and what looks like a secret in the user's metadata is not either. The
    exit status is 1 if the checkpoint does not verify.
    """
    from graflow_ckpt.interfaces.cli.showing import describe, lines

    manner = manner_of(ctx)
    document = describe(what, store)
    if manner.json:
        manner.document(document)
    else:
        for line in lines(document):
            manner.say(line)
    return 0 if document["verdict"] == "good" else 1


@command.command("verify", epilog=VERIFY, short_help="Check seals and digests of checkpoints.")
@click.argument("what", nargs=-1, metavar="[SESSION|PATH]…", shell_complete=complete_places)
@click.option("--all", "everything", is_flag=True, help="All checkpoints of the store.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Any N of them, others each time.")
@found_store
@common
@click.pass_context
def verify(
    ctx: click.Context, /, what: tuple[str, ...], everything: bool, sample: int | None, store: str
) -> int:
    """Check seals and digests of all three files of checkpoints; exit status 1 if any is bad.

    With --sample what is not named is taken from the whole store.
    """
    from graflow_ckpt.interfaces.cli.verifying import any_of, paths_of, verdicts

    if bool(what) == everything and (what or sample is None):
        raise click.UsageError("Name sessions or checkpoints, or give --all.")
    manner = manner_of(ctx)
    paths = paths_of(store, what)
    found = list(verdicts(any_of(paths, sample), show=not manner.json))
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
@fleet
@common
@click.pass_context
def take(ctx: click.Context, /, session: str, portable: bool, path: str | None) -> int:
    """Take a checkpoint of a fleet's session, now, from here. Its workers need not stop."""
    from graflow_ckpt.interfaces.cli.connecting import client_of, session_at

    manner = manner_of(ctx)
    metadata = session_at(client_of(ctx, key=True), session).checkpoint(portable=portable, path=path)
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
