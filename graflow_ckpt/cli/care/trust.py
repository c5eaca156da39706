"""`graflow-ckpt trust`: a checkpoint from elsewhere, looked at and sealed with the key of this machine.

Its files must be the ones that its metadata describe, whatever key has sealed them. What a seal
cannot say is whether the writer means well: to open it is to run code. Hence the question.
"""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, options
from graflow_ckpt.cli.terminal import Manner


@options.command("trust")
@click.argument("path", shell_complete=options.complete_places)
@options.unasked
def command(manner: Manner, /, path: str, yes: bool) -> None:
    """Look at a checkpoint that this machine did not write, and seal it with its key.

    To resume from a checkpoint runs the code in it. Do this only if you know who wrote it.

    Examples:
      graflow-ckpt trust backups/night.pkl             shows it and asks
      graflow-ckpt trust backups/night.pkl --yes       for scripts
    """
    document = lazy.display.describe(path)
    if document["verdict"] == "good":
        manner.note(f"{document['path']} is sealed with a key that is known here; nothing to do")
        if manner.json:
            manner.document({"path": document["path"], "sealed": False, "key_id": document["meta"]["key_id"]})
        return
    lazy.keyring.check_parts(document["path"])
    for line in () if manner.json else lazy.display.lines(document):
        manner.note(line)
    if not yes:
        manner.ask("Resuming from it runs the code in it. Seal it with the key of this machine?")
    key = lazy.keyring.trusted(document["path"])
    manner.note(f"{document['path']} is now sealed with key {key}")
    if manner.json:
        manner.document({"path": document["path"], "sealed": True, "key_id": key})
