"""Names: what a folder's file names alone tell, or a database on this machine, for the completion of a shell.

No checkpoint is opened, so that a tab costs one listing of a folder, or one query. Servers are not asked:
somebody would wait for them. What is offered is checked by the command that gets it.
"""

from __future__ import annotations

import os
import re

from graflow_ckpt.stores.sqlite_names import is_sqlite

_OWN = re.compile(r"session_([A-Za-z0-9_-]{1,64})_step_(\d+)_(\d+)-(\d+)\.meta\.json\Z")
_META = ".meta.json"
_MANY = 500  # checkpoints that are looked at for ids


def session_names(folder: str) -> dict[str, str]:
    """Sessions that have checkpoints in a folder, and how far the newest is."""
    if is_sqlite(folder):
        return _in_database(folder)
    newest: dict[str, tuple[int, str]] = {}
    for name in _listing(folder):
        match = _OWN.match(name)
        if match is not None:
            entry = int(match[4]), f"step {match[2]}"
            newest[match[1]] = max(newest.get(match[1], entry), entry)
    return {session: text for session, (_, text) in sorted(newest.items())}


def _in_database(store: str) -> dict[str, str]:
    from graflow_ckpt.checkpoint.inventory import cut_of
    from graflow_ckpt.core.errors import GraflowError
    from graflow_ckpt.stores import open_store

    found: dict[str, str] = {}
    try:
        for path, raw in open_store(store).newest(_MANY):
            cut = cut_of(path, raw)
            if cut is not None:
                found.setdefault(cut.session, cut.status)
    except GraflowError:
        return {}
    return dict(sorted(found.items()))


def checkpoint_paths(folder: str) -> list[str]:
    """The checkpoints in a folder."""
    found = [name.removesuffix(_META) + ".pkl" for name in _listing(folder) if name.endswith(_META)]
    return [os.path.join(folder, name) for name in sorted(found)]


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder.removeprefix("file://") or ".")
    except OSError:
        return []
