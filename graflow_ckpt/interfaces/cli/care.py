"""`graflow-ckpt checkpoints backup` and `vacuum`: looking after the database of a SQLite store.

Not here: how it is done while others save (stores/sqlite_care.py).
"""

from __future__ import annotations

import os

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.bars import bar
from graflow_ckpt.interfaces.cli.options import common, complete_files, manner_of, store

BACKUP = """\b
Examples:
  graflow-ckpt checkpoints backup /backups/night.db --store sqlite:///runs.db
  graflow-ckpt checkpoints backup /backups/night.db --yes --json      over that of last night
  graflow-ckpt checkpoints verify --all --store sqlite:////backups/night.db
"""
VACUUM = """\b
Examples:
  graflow-ckpt checkpoints prune --older-than 7d --yes && graflow-ckpt checkpoints vacuum
"""


@click.command("backup", epilog=BACKUP, short_help="Copy a SQLite store into FILE while others save.")
@click.argument("file", shell_complete=complete_files)
@click.option("--yes", is_flag=True, help="Do not ask before a file is replaced.")
@store
@common
@click.pass_context
def backup(ctx: click.Context, /, file: str, yes: bool, store: str) -> int:
    """Copy a SQLite store as it is at one moment into FILE, while others go on saving.

    The copy is looked through, and is a store itself. A FILE that is there stays until the new one is whole.
    """
    from graflow_ckpt.stores import sqlite_care

    manner, place = manner_of(ctx), _database(store)
    if os.path.exists(file) and not yes:
        manner.ask(f"Replace {file}?")
    with bar("copying", show=not manner.json) as progress:
        size = sqlite_care.backup(place, file, progress)
    if manner.json:
        manner.document({"store": place, "file": os.path.abspath(file), "bytes": size})
    else:
        manner.note(f"{place}: {words.size(size)} copied")
        click.echo(file)
    return 0


@click.command("vacuum", epilog=VACUUM, short_help="Give free room of a SQLite store back to the disk.")
@store
@common
@click.pass_context
def vacuum(ctx: click.Context, /, store: str) -> int:
    """Give the room of what was deleted from a SQLite store back to the disk, while others go on saving."""
    from graflow_ckpt.stores import sqlite_care

    manner, place = manner_of(ctx), _database(store)
    with bar("giving back", show=not manner.json) as progress:
        done = sqlite_care.vacuum(place, progress)
    if manner.json:
        manner.document({"store": place, "before": done.before, "after": done.after})
    else:
        manner.note(f"{place}: {words.size(done.before)} before, {words.size(done.after)} now")
    return 0


def _database(where: str) -> str:
    """The SQLite store that is meant, also if its URL says that something is wrapped around it."""
    from graflow_ckpt.core.errors import BadAddress

    scheme, _, rest = where.partition("://")
    if scheme.lower().rpartition("+")[2] != "sqlite":
        raise BadAddress(
            f"{where} is no SQLite store.",
            hint="Name one: --store sqlite:///FILE, or GRAFLOW_CKPT_STORE. Others have backups of their own.",
            store=where,
        )
    return f"sqlite://{rest}"
