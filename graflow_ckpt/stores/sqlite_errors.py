"""What SQLite's errors mean to a person: what happened to which file, and what to do.

Not here: when something is tried again (sqlite_file.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, SaveOutcomeUnknown

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ADVICE = {
    sqlite3.SQLITE_READONLY: "It, or its folder, is read-only for this user: change that, or use another.",
    sqlite3.SQLITE_FULL: "The disk is full: free some space or use another one, then run again.",
    sqlite3.SQLITE_CANTOPEN: "Is the folder there, and may this user write in it? WAL needs to.",
    sqlite3.SQLITE_IOERR: "The device reported an error: look at the kernel's log; do not trust this disk.",
    sqlite3.SQLITE_PERM: "This user may not open it: change its permissions or use another file.",
    sqlite3.SQLITE_AUTH: "This user may not open it: change its permissions or use another file.",
    sqlite3.SQLITE_NOMEM: "The process has no memory left.",
    sqlite3.SQLITE_TOOBIG: "Something in it is larger than SQLite takes.",
}


def code_of(error: sqlite3.Error) -> int:
    """The primary code; 0 where the error is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code_of(error) in _BUSY


def is_unconfirmed(error: sqlite3.Error) -> bool:
    """Whether a commit that failed so may come back after a power cut: it was written, not synced."""
    return getattr(error, "sqlite_errorcode", 0) in (
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
    )


def refusal(error: sqlite3.Error, doing: str, file: str) -> CheckpointError:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if is_unconfirmed(error):
        return SaveOutcomeUnknown(
            f"What was last written into {file} was not confirmed by the disk ({name}).",
            hint="After a power cut it is there or it is not. Look at the disk before you go on.",
            path=file,
        )
    if is_busy(error):
        return CheckpointError(
            f"Cannot {doing} {file}: another process has kept it locked all the time ({name}).",
            hint="Does a shell, a backup or a stopped process hold a transaction? End it, then run again.",
            path=file,
        )
    if code_of(error) in _DAMAGED:
        return CheckpointCorrupt(
            f"Cannot {doing} {file}: it is damaged, or no SQLite database ({name}: {error}).",
            hint="Put a backup in its place, or save what can be read: sqlite3 FILE .recover.",
            path=file,
        )
    return CheckpointError(
        f"Cannot {doing} {file}: {error} ({name}).",
        hint=_ADVICE.get(code_of(error), "Nothing was changed there."),
        path=file,
    )


@contextmanager
def refusing(doing: str, file: str) -> Iterator[None]:
    """Turn what SQLite says inside the block into a CheckpointError."""
    try:
        yield
    except sqlite3.Error as error:
        raise refusal(error, doing, file) from error
    except OverflowError as error:
        raise CheckpointError(
            f"Cannot {doing} {file}: a number is out of the range of its column ({error}).",
            hint="Numbers of checkpoints lie within 64 bits: the metadata were made up or damaged.",
            path=file,
        ) from error
