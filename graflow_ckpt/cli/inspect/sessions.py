"""`graflow-ckpt sessions`: what there is, in a store and on a fleet, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import GraflowError

OF_FLEET = (
    "session", "workflow", "status", "steps", "done", "ready", "running", "delayed", "failed", "tokens",
    "age", "reason",
)  # fmt: skip
OF_STORE = (
    "session", "workflow", "status", "steps", "done", "pending", "checkpoints", "age", "owner", "newest",
    "note",
)  # fmt: skip
NUMBERS = frozenset({
    "steps", "done", "ready", "running", "delayed", "failed", "tokens", "pending", "checkpoints", "age",
})  # fmt: skip


@click.group("sessions", cls=options.CommandGroup, invoke_without_command=True)
@click.option("--workflow", metavar="NAME", help="Only sessions of this workflow.")
@click.option("--unfinished", is_flag=True, help="Only what can go on.")
@options.newest
@options.store
@options.fleet
def command(manner: Manner, /, store: str, **wanted: Any) -> None:
    """List sessions, the newest first: those of the fleet that is set up, and those in the store.

    With --url only those of that fleet, with --store only those in that store; of one on a server
    (redis://…) both. DONE and PENDING count tasks; for a store: in the newest good checkpoint. No pickle
    is opened.

    Examples:
      graflow-ckpt sessions   of the fleet, and in checkpoints/
      graflow-ckpt sessions --unfinished --workflow etl
      graflow-ckpt sessions --store /srv/checkpoints --json
      graflow-ckpt sessions --url redis://host:6379/0 --limit 20
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    typed = options.typed("store")
    if typed and options.named(manner):
        raise options.store_or_fleet()
    if typed and options.is_server(store):
        manner.flags["redis_url"] = store
    documents: list[Document] = []
    if options.named(manner) or (not typed and options.configured(manner)):
        documents += _of_fleet(manner, **wanted)
    if typed or not options.named(manner):
        known = frozenset(row["session"] for row in documents) if typed else frozenset()
        places = (store,) if typed else (store, *lazy.places.others(store))
        several = bool(documents) or len(places) > 1
        for place in places:
            try:
                documents += _of_store(manner, place, known, several=several, **wanted)
            except GraflowError as error:
                if place == store:
                    raise
                manner.note(f"{place} is left out: {error.message}")
    if manner.json:
        manner.document(documents)


def _of_fleet(manner: Manner, **wanted: Any) -> list[Document]:
    client = lazy.client.client_of(manner)
    rows, at = lazy.client.rows_of(client, **wanted), client.link.address
    if not manner.json:
        manner.note(f"at {at}:" if rows else f"There are no such sessions at {at}.")
        _table(manner, OF_FLEET, [
            (r.session, r.workflow, r.status, r.steps, r.completed, r.ready, r.running, r.delayed, r.failed,
             r.tokens, words.age(words.seconds_ago(r.created)), lazy.client.shortened(r.reason)) for r in rows
        ])  # fmt: skip
    return [lazy.client.document(row, at) for row in rows]


def _of_store(
    manner: Manner, store: str, known: frozenset[str], *, several: bool,
    workflow: str | None, unfinished: bool, limit: int | None,
) -> list[Document]:  # fmt: skip
    """Return those that are not listed already: a server may have a session and checkpoints of it."""
    rows = [
        row
        for row in lazy.locate.overview(store)
        if workflow in (None, row.workflow)
        and (not unfinished or row.status in lazy.locate.UNFINISHED)
        and row.session not in known
    ][:limit]
    if not manner.json:
        if rows and several:
            manner.note(f"in {store}:")
        elif not rows and not several:
            such = "such " if workflow or unfinished else ""
            manner.note(f"There are no {such}sessions in {store}; --store names another folder.")
        _table(manner, OF_STORE, [
            (r.session, r.workflow, r.status, r.steps, r.done, r.pending, r.checkpoints,
             words.age(words.seconds_since(r.created_at)), r.owner or "-", r.newest, r.note) for r in rows
        ])  # fmt: skip
    return [{**row.document(), "at": store} for row in rows]


def _table(manner: Manner, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Print rows, if there are any; the last column only if one of them has something in it."""
    shown = len(columns) if any(row[-1] for row in rows) else -1
    if rows:
        manner.table(columns[:shown], [row[:shown] for row in rows], right=NUMBERS)


@command.command("purge", short_help="Delete all that a fleet keeps of sessions.")
@click.argument("sessions", nargs=-1, required=True, metavar="ID…", shell_complete=options.complete_remote)
@click.option("--yes", is_flag=True, help="Also what is not finished: it is cancelled first.")
@options.of_fleet
def purge(manner: Manner, /, sessions: tuple[str, ...], yes: bool) -> None:
    """Take away all that a fleet keeps of sessions: their queues, values, results and errors.

    Finished ones (completed, cancelled) go at once. All others could still go on: they need --yes, and
    none is taken away if one of them would be refused.

    Examples:
      graflow-ckpt sessions purge night-7 night-8   if they are finished
      graflow-ckpt sessions purge night-9 --yes     also unfinished ones
    """
    gone = lazy.control.purged(lazy.client.client_of(manner), sessions, yes=yes)
    manner.result(gone, *(f"session {one['session']} ({one['status']}) is gone" for one in gone))
