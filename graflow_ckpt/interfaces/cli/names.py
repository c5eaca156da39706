"""Names: what a folder's file names alone tell, for the completion of a shell.

Nothing is opened, so that a tab costs one listing of a folder. What it offers is checked by the
command that gets it.
"""

from __future__ import annotations

import os
import re

_OWN = re.compile(r"session_([A-Za-z0-9_-]{1,64})_step_(\d+)_(\d+)-(\d+)\.meta\.json\Z")
_META = ".meta.json"


def session_names(folder: str) -> dict[str, str]:
    """Sessions that have checkpoints in a folder, and how far the newest is."""
    newest: dict[str, tuple[int, str]] = {}
    for name in _listing(folder):
        match = _OWN.match(name)
        if match is not None:
            entry = int(match[4]), f"step {match[2]}"
            newest[match[1]] = max(newest.get(match[1], entry), entry)
    return {session: text for session, (_, text) in sorted(newest.items())}


def checkpoint_paths(folder: str) -> list[str]:
    """The checkpoints in a folder."""
    found = [name.removesuffix(_META) + ".pkl" for name in _listing(folder) if name.endswith(_META)]
    return [os.path.join(folder, name) for name in sorted(found)]


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder.removeprefix("file://") or ".")
    except OSError:
        return []
