"""What checkpoints of a folder have in common, as names of files: INDEX for all, and a folder for each.

Taking names away needs no lock: where a file has only its name in INDEX, that goes, too; if somebody links it
in that moment, he has it. Not here: who makes the names (local_contents.py).
"""

from __future__ import annotations

import os
from contextlib import suppress

from graflow_ckpt.stores.disk import Disk

INDEX = ".contents"
SUFFIX = ".contents"


def take_away(disk: Disk, folder: str) -> None:
    """What one stage held, and what nobody else holds."""
    index = f"{os.path.dirname(folder)}/{INDEX}"
    with suppress(FileNotFoundError):
        for name in disk.names(folder):
            with suppress(FileNotFoundError):
                disk.unlink(f"{folder}/{name}")
            forget(disk, f"{index}/{name}")
        disk.remove_folder(folder)


def forget(disk: Disk, entry: str) -> bool:
    """Take a name in INDEX away if it is the last one of its file; whether it was."""
    with suppress(FileNotFoundError):
        if disk.links(entry) == 1:
            disk.unlink(entry)
            return True
    return False
