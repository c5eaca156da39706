"""`graflow-ckpt checkpoints`: list, show, verify, take, diff, bisect. No pickle is opened, no value is shown.

prune, delete, clear    removal.py        copy, export, import, fork               transfer.py
                                          backup, vacuum, stats, sync, audit       upkeep.py
"""

from __future__ import annotations

from dataclasses import asdict

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.care.removal import clear, delete, prune
from graflow_ckpt.cli.care.transfer import copy, export, fork, import_
from graflow_ckpt.cli.care.upkeep import audit, backup, stats, sync, vacuum
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.conditions import BadCondition, parse

COLUMNS = ("path", "session", "workflow", "step", "status", "cause", "age", "size")


@options.group("checkpoints")
def command() -> None:
    """List, show, compare and verify checkpoints, take one of a fleet's session, copy them to another
    store, and delete what is not needed."""


for _command in (prune, delete, clear, stats, fork, copy, export, import_, audit, sync, backup, vacuum):
    command.add_command(_command)


@command.command("list")
@click.argument("session", required=False, shell_complete=options.complete_sessions)
@click.option("--session", "its", metavar="SESSION", shell_complete=options.complete_sessions,
              help="Only of this session, as without the option.")  # fmt: skip
@options.of_workflow
@click.option("--status", metavar="STATUS",
              help="Only of sessions that were running, completed, failed, … then.")  # fmt: skip
@options.newest
@options.found_store
def list_(
    manner: Manner,
    /,
    session: str | None,
    its: str | None,
    limit: int | None,
    store: str,
    **wanted: str | None,
) -> int:
    """List checkpoints, the newest first.

    As their metadata describe them; whether that is true, `verify` finds out. The exit status is 1 if there
    are none of the session that is named.

    Examples:
      graflow-ckpt checkpoints list night --limit 5
      graflow-ckpt checkpoints list --workflow etl --status failed --json
      graflow-ckpt checkpoints list --store sqlite:///runs.db --limit 50
    """
    if session and its:
        raise click.UsageError("Name one session.")
    rows = lazy.display.listing(store, limit, session=session or its, **wanted)
    none = f"There are no such checkpoints in {store}; --store names another folder, or a server."
    if any(wanted.values()):
        none += " What there is: graflow-ckpt checkpoints stats."
    cells, documents = [row.cells() for row in rows], [row.document() for row in rows]
    manner.listing(documents, COLUMNS, cells, right=("step", "age", "size"), none=none)
    return 1 if not rows and (session or its) else 0


@command.command("show", short_help="Show what a checkpoint says of itself.")
@click.argument("what", metavar="PATH|SESSION", shell_complete=options.complete_places)
@options.found_store
def show(manner: Manner, /, what: str, store: str) -> int:
    """Show what a checkpoint says of itself: metadata, control facts, sizes.

    Values are never shown, and what looks like a secret in the user's metadata is not either. The
    exit status is 1 if the checkpoint does not verify.

    Examples:
      graflow-ckpt checkpoints show night              the newest of a session
      graflow-ckpt checkpoints show checkpoints/best.pkl
      graflow-ckpt checkpoints show checkpoints/best.pkl --json | jq .state.status
    """
    document = lazy.display.describe(what, store)
    manner.result(document, lines=lazy.display.lines(document))
    return 0 if document["verdict"] == "good" else 1


@command.command("verify", short_help="Check seals and digests of checkpoints.")
@options.places
@click.option("--all", "everything", is_flag=True, help="All checkpoints of the store.")
@click.option("--sample", type=options.COUNT, metavar="N", help="Any N of them, others each time.")
@options.found_store
def verify(manner: Manner, /, what: tuple[str, ...], everything: bool, sample: int | None, store: str) -> int:
    """Check seals and digests of all three files of checkpoints; exit status 1 if any is bad.

    With --sample what is not named is taken from the whole store.

    Examples:
      graflow-ckpt checkpoints verify night          all checkpoints of a session
      graflow-ckpt checkpoints verify backups/*.pkl
      graflow-ckpt checkpoints verify --all
      graflow-ckpt checkpoints verify --sample 100   in a nightly job
    """
    if bool(what) == everything and (what or sample is None):
        raise click.UsageError("Name sessions or checkpoints, or give --all.")
    paths = lazy.display.paths_of(store, what)
    found = list(lazy.display.verdicts(manner, lazy.display.any_of(paths, sample)))
    bad = sum(verdict.verdict == "bad" for verdict in found)
    rows = [(v.path, v.verdict, words.size(v.size) if v.size is not None else "", v.why) for v in found]
    of = f" of {len(paths)}" if len(found) < len(paths) else ""
    manner.listing(
        [asdict(verdict) for verdict in found],
        ("path", "verdict", "size", "why"),
        rows,
        f"{words.counted(len(found), 'checkpoint')}{of}, {bad} bad",
        right=("size",),
        none=f"There are no checkpoints in {store}; --store names another folder.",
    )
    return 1 if bad else 0


@command.command("take")
@options.remote_session
@click.option(
    "--portable", is_flag=True, help="With queue and values: to rewind, to fork, to keep elsewhere."
)
@click.option("--path", metavar="PATH", help="Where to write it, instead of the session's own store.")
@options.of_fleet
def take(manner: Manner, /, session: str, portable: bool, path: str | None) -> None:
    """Take a checkpoint of a fleet's session, now, from here. Its workers need not stop.

    Examples:
      graflow-ckpt checkpoints take night              in the store of the session
      graflow-ckpt checkpoints take night --portable --path /backups/night.pkl
    """
    handle = lazy.client.session_at(lazy.client.client_of(manner, key=True), session)
    made = handle.checkpoint(portable=portable, path=path)
    manner.result(
        {"path": made.path, "session": session, "steps": made.steps, "portable": portable},
        f"session {session} at step {made.steps}, {'portable' if portable else 'by reference'}",
        out=made.path,
    )


@command.command("diff", short_help="Compare two checkpoints.")
@click.argument("a", shell_complete=options.complete_places)
@click.argument("b", shell_complete=options.complete_places)
@options.found_store
def diff(manner: Manner, /, a: str, b: str, store: str) -> None:
    """Compare two checkpoints: tasks, code, metadata, and the values of the channel with their sizes.

    Values of plain types are shown in short, rows of numbers as small pictures; of others the size and
    whether they have changed. Names that look like secrets hide theirs. Each side is a path or a session.

    Examples:
      graflow-ckpt checkpoints diff checkpoints/a.pkl checkpoints/b.pkl
      graflow-ckpt checkpoints diff night morning   the newest of two sessions
      graflow-ckpt checkpoints diff night best.pkl --json | jq '.values[].name'
    """
    found = lazy.comparison.compared(store, a, b)
    if not manner.json:
        manner.result(None, lines=lazy.comparison.heads(found))
    said = f"values that differ: {len(found.values)}, that are the same: {len(found.same)}"
    rows = lazy.comparison.rows(found)
    manner.listing(lazy.comparison.document(found), lazy.comparison.COLUMNS, rows, said)


@command.command("bisect", short_help="Find the first checkpoint in which EXPR is true.")
@click.argument("session", shell_complete=options.complete_sessions)
@click.option("--bad", required=True, metavar="EXPR", help="What is so where something is wrong.")
@click.option("--all", "everything", is_flag=True, help="Look at every checkpoint: it may come and go.")
@options.found_store
def bisect(manner: Manner, /, session: str, bad: str, everything: bool, store: str) -> int:
    """Find the first checkpoint of a session in which EXPR is true, and what was done since the one before.

    EXPR sees the values of the channel by name, and: steps, status, sequence, metadata, tasks, results,
    values (a dict of all). It may compare, count (len min max abs sum any all), look into dicts and lists
    (a.b, a["b"], a[0]), and compute. The exit status is 1 if no checkpoint is bad.

    Examples:
      graflow-ckpt checkpoints bisect night --bad 'loss > 2'
      graflow-ckpt checkpoints bisect night \\
          --bad 'len(rows) < 10 or results.load.status == "lost"'
      graflow-ckpt checkpoints bisect night --all \\
          --bad 'metadata.epoch > 3 and accuracy < 0.5'
    """

    try:
        condition = parse(bad)
    except BadCondition as error:
        raise click.BadParameter(str(error), param_hint="--bad") from error
    found, between = lazy.comparison.search(manner, store, session, condition, everything=everything)
    if manner.json:
        manner.document(lazy.comparison.bisected_document(session, bad, found, between))
    else:
        lazy.comparison.tell(manner, session, found, between)
    return 0 if found.first_bad is not None else 1
