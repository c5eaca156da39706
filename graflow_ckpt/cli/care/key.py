"""`graflow-ckpt key`: the keys that seal checkpoints: made, listed, replaced.

Not here: what is done with them (resealing.py); where they come from (stores/around/keys.py).
"""

from __future__ import annotations

from dataclasses import asdict

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner

COLUMNS = ("key", "use", "seals", "encrypts", "journals")


@options.group("key")
def command() -> None:
    """Make, list and replace the keys that seal checkpoints. One machine alone makes its own."""


@command.command("new")
def new(manner: Manner, /) -> None:
    """Print a new key. It is a secret: a person who has it can write checkpoints that you open.

    Examples:
      export GRAFLOW_CKPT_KEY=$(graflow-ckpt key new)
      (umask 077; graflow-ckpt key new > graflow.key)  set GRAFLOW_CKPT_KEY_FILE
    """
    made = lazy.keys.new_key()
    manner.result({"key": made, "id": made.partition(":")[0]}, out=made)


@command.command("list", short_help="List the keys, and what needs each of them.")
@options.store
def list_(manner: Manner, /, store: str) -> None:
    """List the keys that are here, and how much of a store needs each of them.

    No secret is shown. A key that nothing needs any more may be taken away; one that is not here and is
    needed has to be carried over.

    Examples:
      graflow-ckpt key list
      graflow-ckpt key list --store encrypted+postgresql://host/checkpoints --json
    """
    keyring = lazy.keyring  # before the bar: Ctrl-C while a module is loaded ends the process by the signal
    with manner.bar("looking"):
        rows, unreadable = keyring.listing(store)
    keys = [asdict(row) for row in rows]
    notes = (
        [f"{words.counted(unreadable, 'checkpoint')} cannot be read: keys not known"] if unreadable else []
    )
    cells = [tuple(key.values()) for key in keys]
    manner.listing({"keys": keys, "unreadable": unreadable}, COLUMNS, cells, *notes, right=COLUMNS[2:])


@command.command("rotate", short_help="Put a new key first, and seal a store with it.")
@options.store
def rotate(manner: Manner, /, store: str) -> int:
    """Put a new key before the others in the key file, and seal the checkpoints of a store with it.

    The former keys stay in the file and verify what is not sealed anew: sessions that run, journals,
    other stores. Where several machines share keys, give the new one to all of them first, behind the
    others; then move it to the front.

    Examples:
      graflow-ckpt key rotate
      graflow-ckpt key rotate --store sqlite://
    """
    made, file = lazy.keyring.rotated(store)
    if not manner.json:
        manner.note(f"{made} is the first key of {file} now")
    return _reseal(manner, store, {"id": made, "file": file})


@command.command("reseal", short_help="Seal the checkpoints of a store with the first key.")
@options.store
def reseal(manner: Manner, /, store: str) -> int:
    """Seal the checkpoints of a store with the first key, if they have another one.

    No value is read. In an encrypted store they are encrypted for that key as well. What does not verify
    now, and what belongs to a session that is running, stays as it is; exit status 1 if there is any.

    Examples:
      export GRAFLOW_CKPT_KEY=$(graflow-ckpt key new),$GRAFLOW_CKPT_KEY
      graflow-ckpt key reseal --store s3://bucket/runs
    """
    return _reseal(manner, store, {})


def _reseal(manner: Manner, store: str, document: dict[str, object]) -> int:
    key_id, found = lazy.keyring.resealed(manner, store)
    stays = [{"path": path, "why": why} for path, why in found.stays]
    manner.result(
        {**document, "id": key_id, "resealed": found.done, "stays": stays},
        f"{words.counted(found.done, 'checkpoint')} sealed with key {key_id}",
        *(f"{path} stays: {why}" for path, why in found.stays),
    )
    return 1 if found.stays else 0
