"""`graflow-ckpt sessions`: what there is, in a store and on a fleet, and how far it is."""

from __future__ import annotations

import click
from click.core import ParameterSource

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.options import (
    common,
    complete_remote,
    configured,
    fleet,
    is_server,
    manner_of,
    name_fleet,
    named,
    of_fleet,
    store,
    store_or_fleet,
)
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import GraflowError

EXAMPLES = """\b
Examples:
  graflow-ckpt sessions   of the fleet, and in checkpoints/
  graflow-ckpt sessions --unfinished --workflow etl
  graflow-ckpt sessions --store /srv/checkpoints --json
  graflow-ckpt sessions --url redis://host:6379/0 --limit 20
"""
PURGE = """\b
Examples:
  graflow-ckpt sessions purge night-7 night-8   if they are finished
  graflow-ckpt sessions purge night-9 --yes     also unfinished ones
"""

COLUMNS = (
    "session", "workflow", "status", "steps", "done", "pending", "checkpoints", "age", "owner", "newest",
    "note",
)  # fmt: skip


@click.group(
    "sessions",
    epilog=EXAMPLES,
    short_help="List the sessions of a store and of a fleet; purge them.",
    invoke_without_command=True,
)
@click.option("--workflow", metavar="NAME", help="Only sessions of this workflow.")
@click.option("--unfinished", is_flag=True, help="Only what can go on.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The newest N.")
@store
@fleet
@common
def command(ctx: click.Context, workflow: str | None, unfinished: bool, limit: int | None, store: str) -> int:
    """List sessions, the newest first: those of the fleet that is set up, and those in the store.

    With --url only those of that fleet, with --store only those in that store; of one on a server
    (redis://…) both. DONE and PENDING count tasks; for a store: in the newest good checkpoint. No pickle
    is opened.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    typed = ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE
    if typed and named(ctx):
        raise store_or_fleet()
    if typed and is_server(store):
        name_fleet(ctx, store)
    manner = manner_of(ctx)
    documents: list[Document] = []
    if named(ctx) or (not typed and configured(ctx)):
        documents += _of_fleet(ctx, manner, workflow, unfinished, limit)
    if typed or not named(ctx):
        known = frozenset(row["session"] for row in documents) if typed else frozenset()

        places = (store,) if typed else (store, *lazy.places.others(store))
        for place in places:
            several = bool(documents) or len(places) > 1
            try:
                documents += _of_store(manner, place, workflow, unfinished, limit, known, quiet=several)
            except GraflowError as error:
                if place == store:
                    raise
                manner.note(f"{place} is left out: {error.message}")
    if manner.json:
        manner.document(documents)
    return 0


def _of_fleet(
    ctx: click.Context, manner: Manner, workflow: str | None, unfinished: bool, limit: int | None
) -> list[Document]:
    client = lazy.client.client_of(ctx)
    rows = lazy.client.rows_of(client, workflow=workflow, unfinished=unfinished, limit=limit)
    if not manner.json:
        if rows:
            manner.note(f"at {client.link.address}:")
            lazy.client.table(manner, rows)
        else:
            manner.note(f"There are no such sessions at {client.link.address}.")
    return [lazy.client.document(row, client.link.address) for row in rows]


def _of_store(
    manner: Manner, store: str, workflow: str | None, unfinished: bool, limit: int | None,
    known: frozenset[str], *, quiet: bool,
) -> list[Document]:  # fmt: skip
    """Return those that are not listed already: a server may have a session and checkpoints of it."""
    rows = [
        row
        for row in lazy.overview.overview(store)
        if workflow in (None, row.workflow)
        and (not unfinished or row.status in lazy.overview.UNFINISHED)
        and row.session not in known
    ][:limit]
    if manner.json:
        return [{**row.document(), "at": store} for row in rows]
    if not rows and not quiet:
        such = "such " if workflow or unfinished else ""
        manner.note(f"There are no {such}sessions in {store}; --store names another folder.")
    elif rows:
        if quiet:
            manner.note(f"in {store}:")
        columns = COLUMNS if any(row.note for row in rows) else COLUMNS[:-1]
        table = [
            (r.session, r.workflow, r.status, r.steps, r.done, r.pending, r.checkpoints,
             words.age(words.seconds_since(r.created_at)), r.owner or "-", r.newest, r.note)[: len(columns)]
            for r in rows
        ]  # fmt: skip
        manner.table(columns, table, right=("steps", "done", "pending", "checkpoints", "age"))
    return []


@command.command("purge", epilog=PURGE, short_help="Delete all that a fleet keeps of sessions.")
@click.argument("sessions", nargs=-1, required=True, metavar="ID…", shell_complete=complete_remote)
@click.option("--yes", is_flag=True, help="Also what is not finished: it is cancelled first.")
@of_fleet
@common
def purge(ctx: click.Context, /, sessions: tuple[str, ...], yes: bool) -> int:
    """Take away all that a fleet keeps of sessions: their queues, values, results and errors.

    Finished ones (completed, cancelled) go at once. All others could still go on: they need --yes, and
    none is taken away if one of them would be refused.
    """

    manner = manner_of(ctx)
    documents = lazy.control.purged(lazy.client.client_of(ctx), sessions, yes=yes)
    if manner.json:
        manner.document(documents)
    else:
        for gone in documents:
            manner.note(f"session {gone['session']} ({gone['status']}) is gone")
    return 0
