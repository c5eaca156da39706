"""Care of a store: `graflow-ckpt checkpoints backup`, `vacuum`, `stats`, `sync` and `audit`.

No pickle is opened. Not here: how a database is copied while others save (stores/drivers/sqlite/care.py).
"""

from __future__ import annotations

import os

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import BadAddress


@options.command("backup", short_help="Copy a SQLite store into FILE while others save.")
@click.argument("file", shell_complete=options.complete_files)
@click.option("--yes", is_flag=True, help="Do not ask before a file is replaced.")
@options.store
def backup(manner: Manner, /, file: str, yes: bool, store: str) -> None:
    """Copy a SQLite store as it is at one moment into FILE, while others go on saving.

    The copy is looked through, and is a store itself. A FILE that is there stays until the new one is whole.

    Examples:
      graflow-ckpt checkpoints backup /backups/night.db --store sqlite:///runs.db
      graflow-ckpt checkpoints backup night.db --yes   over that of last night
      graflow-ckpt checkpoints verify --all --store sqlite:////backups/night.db
    """
    place = _database(store)
    if os.path.exists(file) and not yes:
        manner.ask(f"Replace {file}?")
    care = lazy.sqlite_care  # before the bar: Ctrl-C while a module is loaded ends the process by the signal
    with manner.bar("copying") as progress:
        size = care.backup(place, file, progress)
    document = {"store": place, "file": os.path.abspath(file), "bytes": size}
    manner.result(document, f"{place}: {words.size(size)} copied", out=file)


@options.command("vacuum", short_help="Give free room of a SQLite store back to the disk.")
@options.store
def vacuum(manner: Manner, /, store: str) -> None:
    """Give the room of what was deleted from a SQLite store back to the disk, while others go on saving.

    Examples:
      graflow-ckpt checkpoints prune --older-than 7d --yes
      graflow-ckpt checkpoints vacuum
    """
    place = _database(store)
    care = lazy.sqlite_care  # as above
    with manner.bar("giving back") as progress:
        done = care.vacuum(place, progress)
    said = f"{place}: {words.size(done.before)} before, {words.size(done.after)} now"
    manner.result({"store": place, "before": done.before, "after": done.after}, said)


def _database(where: str) -> str:
    """Return the SQLite store that is meant, also if its URL says that something is wrapped around it."""
    scheme, _, rest = where.partition("://")
    if scheme.lower().rpartition("+")[2] != "sqlite":
        raise BadAddress(
            f"{where} is no SQLite store.",
            hint="Name one: --store sqlite:///FILE, or GRAFLOW_CKPT_STORE. Others have backups of their own.",
            store=where,
        )
    return f"sqlite://{rest}"


@options.command("stats", short_help="Count checkpoints by workflow, age and status.")
@options.of_workflow
@options.found_store
def stats(manner: Manner, /, workflow: str | None, store: str) -> None:
    """Count checkpoints: by workflow, by age, by status; the oldest, the newest, the largest.

    Examples:
      graflow-ckpt checkpoints stats
      graflow-ckpt checkpoints stats --workflow train --json | jq .ages
    """
    display = lazy.display  # as above
    with manner.bar("looking"):
        found = display.census_of(store, workflow)
    if manner.json:
        manner.document(lazy.display.census_document(found))
    elif not found.total.checkpoints and not found.unreadable:
        manner.note(f"There are no such checkpoints in {store}; --store names another folder.")
    else:
        manner.table(lazy.display.CENSUS, lazy.display.census_rows(found), right=lazy.display.CENSUS[1:])
        for line in lazy.display.census_lines(found):
            manner.say(line)


@options.command("sync")
@options.store
def sync(manner: Manner, /, store: str) -> int:
    """Hand over checkpoints that were saved while their store was away.

    The next run of a session does so by itself; this is for sessions that do not run again. What belongs to
    a session that another process has continued is set aside, and what is being run is left to its owner.
    The exit status is 1 if something is still waiting.

    Examples:
      graflow-ckpt checkpoints sync --store fallback+postgresql://host/database
    """
    found = lazy.examination.fallbacks(lazy.stores.open_store(store))
    if not found:
        raise click.UsageError(f"{store} has no fallback: its address does not begin with fallback+.")
    waited = left = refused = 0
    for fallback in found:
        before = len(list(lazy.fallback.entries(fallback.waits.refused)))
        waited += len(fallback.waits.waiting())
        left += fallback.hand_over_all()
        refused += len(list(lazy.fallback.entries(fallback.waits.refused))) - before
    handed = waited - left - refused
    said = f"{words.counted(handed, 'checkpoint')} handed over, {refused} refused, {left} waiting"
    manner.result({"handed_over": handed, "refused": refused, "waiting": left}, said)
    return 1 if left else 0


COLUMNS = ("what", "name", "session", "size", "why")


@options.command("audit", short_help="Find what belongs to no checkpoint.")
@options.found_store
def audit(manner: Manner, /, store: str) -> int:
    """Find what belongs to no checkpoint, and checkpoints that lack a part.

    Parts without a meta, saves that were never committed, journals of no session, foreign files.

    Names and sizes are compared, not contents (`verify` does that). Nothing is deleted. The exit status is
    1 if something was found.

    Examples:
      graflow-ckpt checkpoints audit
      graflow-ckpt checkpoints audit --store sqlite:///runs.db --json
    """
    place = lazy.stores.open_store(store)
    with manner.counter("looking") as seen:
        found = lazy.inventory.audit(place, seen)
    orphans = [
        {"kind": one.kind, "name": one.name, "size": one.size, "session": one.session,
         "why": one.why or one.advice} for one in found.orphans
    ]  # fmt: skip
    rows = [(one.kind, one.name, one.session, words.size(one.size), one.why or one.advice)
            for one in found.orphans]  # fmt: skip
    said = words.counted(len(rows), "orphan") if rows else "no orphans"
    notes = [f"{words.counted(found.checkpoints, 'checkpoint')}, {said} ({words.size(found.size)})"]
    if not found.whole:
        notes.append(f"what lies in {place.url} beside checkpoints was not looked at: it shows nothing else")
    document = {
        "store": place.url, "checkpoints": found.checkpoints, "size": found.size, "orphans": orphans,
        "whole": found.whole,
    }  # fmt: skip
    manner.listing(document, COLUMNS, rows, *notes, right=("size",))
    return 1 if rows else 0
