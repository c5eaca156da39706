"""The tables of a SQLite store, and how a database gets them.

    checkpoints   one row for each: what a reader believes. Its id is the order of commits
    gone          the highest id of those that were the newest when they went: no id is used twice
    chunks        the parts of a checkpoint, one after the other, in pieces of CHUNK bytes
    loose         chunks that belong to no checkpoint: being written, or to be taken away
    leases        who owns a session, under which epoch, until when; and how far it was taken back
    segments      journal segments; frames: what is in them
    contents      what several checkpoints have in common; good: 1 if it is whole and saves may hold it
    holds         which checkpoint (its id), or save (that of its loose row, negative), holds which content

The id of a chunk is the id of its body times 2**20, plus its number: the chunks of one checkpoint lie
side by side, and need no index. A body has the id of the checkpoint that it was written for, or, if it was
written before the commit, FIRST_LOOSE plus that of its loose row; a content has FIRST_CONTENT plus its own.
In the same way a frame has that of its segment times 2**32.

Whoever reads a body while its checkpoint goes must not find another one's under its id. AUTOINCREMENT would
see to that, and write one page more with every save; the newest checkpoint rarely goes.

Promise: a database is made or brought to this version whole or not at all, however many processes try at
once; one of a later version, or of another program, is not touched.
"""

from __future__ import annotations

import sqlite3

from graflow_ckpt.core.errors import CheckpointError, SchemaUnsupported

CHUNK = 1 << 20
FIRST_LOOSE = 1 << 42
FIRST_CONTENT = 3 << 41

_APPLICATION = 0x47434B50  # "GCKP"
_STEPS = (
    """
    CREATE TABLE checkpoints (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        session TEXT NOT NULL,
        workflow TEXT NOT NULL,
        status TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        stage TEXT NOT NULL,
        body INTEGER,
        size INTEGER NOT NULL,
        parts TEXT NOT NULL,
        meta BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX checkpoints_name ON checkpoints (name);
    CREATE INDEX checkpoints_session ON checkpoints (session);
    CREATE INDEX checkpoints_facts ON checkpoints (workflow, status);
    CREATE TABLE gone (id INTEGER PRIMARY KEY) STRICT;
    CREATE TABLE chunks (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
    CREATE TABLE loose (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        writer TEXT,
        began INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE leases (
        session TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        owner TEXT,
        ends INTEGER NOT NULL,
        ends_by_date INTEGER NOT NULL,
        lines TEXT NOT NULL
    ) STRICT;
    CREATE TABLE segments (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        after INTEGER NOT NULL,
        UNIQUE (session, epoch, after)
    ) STRICT;
    CREATE TABLE frames (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
    """,
    """
    CREATE TABLE contents (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        size INTEGER NOT NULL,
        good INTEGER NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX contents_name ON contents (name) WHERE good = 1;
    CREATE INDEX contents_left ON contents (id) WHERE good = 0;
    CREATE TABLE holds (
        holder INTEGER NOT NULL,
        content INTEGER NOT NULL,
        PRIMARY KEY (holder, content)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX holds_content ON holds (content);
    """,
)
VERSION = len(_STEPS)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether nothing has been made in it yet. Refuses what is not ours to use."""
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
