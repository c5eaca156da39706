"""`graflow-ckpt key`: the keys that seal checkpoints: made, listed, replaced.

Not here: what is done with them (resealing.py); where they come from (stores/around/keys.py).
"""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.options import common, manner_of, store
from graflow_ckpt.cli.terminal import bar

NEW = """\b
Examples:
  export GRAFLOW_CKPT_KEY=$(graflow-ckpt key new)
  (umask 077; graflow-ckpt key new > graflow.key)  set GRAFLOW_CKPT_KEY_FILE
"""
LIST = """\b
Examples:
  graflow-ckpt key list
  graflow-ckpt key list --store encrypted+postgresql://host/checkpoints --json
"""
ROTATE = """\b
Examples:
  graflow-ckpt key rotate
  graflow-ckpt key rotate --store sqlite://
"""
RESEAL = """\b
Examples:
  export GRAFLOW_CKPT_KEY=$(graflow-ckpt key new),$GRAFLOW_CKPT_KEY
  graflow-ckpt key reseal --store s3://bucket/runs
"""
COLUMNS = ("key", "use", "seals", "encrypts", "journals")


@click.group("key", short_help="Make, list and replace the keys that seal checkpoints.")
def command() -> None:
    """Make, list and replace the keys that seal checkpoints. One machine alone makes its own."""


@command.command("new", epilog=NEW)
@common
def new(ctx: click.Context, /) -> int:
    """Print a new key. It is a secret: a person who has it can write checkpoints that you open."""
    manner = manner_of(ctx)
    made = lazy.keys.new_key()
    if manner.json:
        manner.document({"key": made, "id": made.partition(":")[0]})
    else:
        click.echo(made)
    return 0


@command.command("list", epilog=LIST, short_help="List the keys, and what needs each of them.")
@store
@common
def list_(ctx: click.Context, /, store: str) -> int:
    """List the keys that are here, and how much of a store needs each of them.

    No secret is shown. A key that nothing needs any more may be taken away; one that is not here and is
    needed has to be carried over.
    """

    manner = manner_of(ctx)
    with bar("looking", show=not manner.json):
        rows, unreadable = lazy.keyring.listing(store)
    if manner.json:
        manner.document({"keys": [row.document() for row in rows], "unreadable": unreadable})
        return 0
    table = [(row.id, row.use, row.seals, row.encrypts, row.journals) for row in rows]
    manner.table(COLUMNS, table, right=("seals", "encrypts", "journals"))
    if unreadable:
        manner.note(f"{words.counted(unreadable, 'checkpoint')} cannot be read: keys not known")
    return 0


@command.command("rotate", epilog=ROTATE, short_help="Put a new key first, and seal a store with it.")
@store
@common
def rotate(ctx: click.Context, /, store: str) -> int:
    """Put a new key before the others in the key file, and seal the checkpoints of a store with it.

    The former keys stay in the file and verify what is not sealed anew: sessions that run, journals,
    other stores. Where several machines share keys, give the new one to all of them first, behind the
    others; then move it to the front.
    """

    manner = manner_of(ctx)
    made, file = lazy.keyring.rotated(store)
    if not manner.json:
        manner.note(f"{made} is the first key of {file} now")
    return _reseal(ctx, store, {"id": made, "file": file})


@command.command("reseal", epilog=RESEAL, short_help="Seal the checkpoints of a store with the first key.")
@store
@common
def reseal(ctx: click.Context, /, store: str) -> int:
    """Seal the checkpoints of a store with the first key, if they have another one.

    No value is read. In an encrypted store they are encrypted for that key as well. What does not verify
    now, and what belongs to a session that is running, stays as it is; exit status 1 if there is any.
    """
    return _reseal(ctx, store, {})


def _reseal(ctx: click.Context, store: str, document: dict[str, object]) -> int:
    manner = manner_of(ctx)
    key_id, found = lazy.keyring.resealed(store, show=not manner.json)
    if manner.json:
        stays = [{"path": path, "why": why} for path, why in found.stays]
        manner.document({**document, "id": key_id, "resealed": found.done, "stays": stays})
    else:
        manner.note(f"{words.counted(found.done, 'checkpoint')} sealed with key {key_id}")
        for path, why in found.stays:
            manner.note(f"{path} stays: {why}")
    return 1 if found.stays else 0
