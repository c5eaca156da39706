"""The tables of a SQLite store, and how a database gets them.

    things   key, tag, at, size, and the bytes: here, or, if they are large, in `large` by number
             of a meta also number (the order of commits), session, workflow and status

Promise: a database is made whole or not at all, however many processes try at once; one of a later version,
or of another program, is not touched.
"""

from __future__ import annotations

import sqlite3

from graflow_ckpt.core.errors import CheckpointError, SchemaUnsupported

_APPLICATION = 0x47434B50  # "GCKP"
_STEPS = (
    """
    CREATE TABLE things (
        key TEXT PRIMARY KEY,
        tag TEXT NOT NULL,
        at REAL NOT NULL,
        size INTEGER NOT NULL,
        data BLOB,
        large INTEGER,
        number INTEGER,
        session TEXT,
        workflow TEXT,
        status TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE large (id INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
    CREATE INDEX things_number ON things (number) WHERE number IS NOT NULL;
    CREATE INDEX things_session ON things (session, number) WHERE number IS NOT NULL;
    CREATE INDEX things_workflow ON things (workflow, number) WHERE number IS NOT NULL;
    CREATE INDEX things_status ON things (status, number) WHERE number IS NOT NULL;
    """,
)
VERSION = len(_STEPS)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether nothing has been made in it yet. Refuse what is not ours to use."""
    # first, since the tables and the two numbers come with one commit, which can be made just now
    empty = connection.execute("SELECT NOT EXISTS (SELECT 1 FROM sqlite_master)").fetchone()[0]
    application, version = _number(connection, "application_id"), _number(connection, "user_version")
    if empty and application in (0, _APPLICATION):
        return True
    if application != _APPLICATION:
        raise CheckpointError(
            "It is the database of another program.", hint="Give another file: sqlite:///checkpoints.db."
        )
    if version > VERSION:
        raise SchemaUnsupported(
            f"It was written by a later version of this package (schema {version}, here {VERSION}).",
            hint="Install that version, or a later one.",
        )
    return False


def is_current(connection: sqlite3.Connection) -> bool:
    return not is_empty(connection) and _number(connection, "user_version") == VERSION


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring it to this version. Within a transaction that the caller has begun and commits."""
    done = 0 if is_empty(connection) else _number(connection, "user_version")
    for step in _STEPS[done:]:
        for statement in step.split(";"):
            if statement.strip():
                connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
