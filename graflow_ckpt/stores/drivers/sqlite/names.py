"""Names in a SQLite store: from a path to the database and to what it names there.

    sqlite:///work/runs.db            a database, relative to the working directory
    sqlite:////srv/runs.db            a database, absolute: what a store calls itself, and stores
    sqlite://                         the user's own: checkpoints.db in the data folder (XDG_DATA_HOME)
    sqlite:///work/runs.db/NAME       a checkpoint
    sqlite://NAME                     a checkpoint in the store at hand, else in the user's own
    sqlite:///work/runs.db/session_{id}_step_{n}_{time}-{sequence}.pkl
                                      a session's own

Nothing is opened here, and no name is a pattern.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores.names import base_of

_SCHEME = "sqlite"


def is_sqlite(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() == _SCHEME


def file_of(store: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the database that a URL means, as an absolute path."""
    rest = store.partition("://")[2]
    if rest in ("", "/"):
        return own_file(environment)
    if not rest.startswith("/"):
        raise CheckpointError(
            f"{store} is no database: after two slashes comes the name of a checkpoint.",
            hint=f"With three it is a file here, with four an absolute one: {_SCHEME}:///{rest}.",
            store=store,
        )
    file = rest[1:]
    if file.startswith(":memory:"):
        raise CheckpointError(
            f"{store} would be gone with its first connection.", hint="Use memory: instead.", store=store
        )
    if "?" in file or "\0" in file or file.endswith("/"):
        raise CheckpointError(
            f"{store} is not the file of a database: it takes no options, and is no folder.",
            hint=f"Give a file: {_SCHEME}:///checkpoints.db.",
            store=store,
        )
    return os.path.abspath(file)


def own_file(environment: Mapping[str, str] = os.environ) -> str:
    """Return the database that is used where none is named."""
    folder = environment.get("XDG_DATA_HOME", "")
    if not os.path.isabs(folder):  # not set, or to be ignored, says the XDG specification
        folder = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".local", "share")
    return os.path.join(folder, "graflow_ckpt", "checkpoints.db")


def folder_of(file: str) -> str:
    """Return a database as what its paths start with."""
    return f"{_SCHEME}:///{file}"


def split(path: str) -> tuple[str, str]:
    """Return the store of a path, "" where that is left open, and the name in it."""
    rest = path.partition("://")[2]
    database, slash, name = rest.rpartition("/")
    if not slash:
        return "", base_of(rest)
    if database in ("", "/"):
        return path, ""  # sqlite:///runs.db is a database, and no name follows
    return f"{_SCHEME}://{database}", base_of(name)
