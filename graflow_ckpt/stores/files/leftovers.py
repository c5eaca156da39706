"""Strays: what is in a store and belongs to no checkpoint. Seen from below the protocol, and not touched.

    part       of a checkpoint whose meta is not there
    staged     written by a save that was never committed; its session's next owner deletes it
    journal    of a session that has no checkpoint and no owner
    foreign    nothing that this package writes

What is wrapped around another store is not looked into: there `strays` is None.
Not here: checkpoints that are there and lack something (checkpoint/care/inventory.py).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.files.trio import STAGED, stage_of
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import left_behind
from graflow_ckpt.stores.names import META, PARTS, session_in, session_of

_JOURNAL: Final = re.compile(r"\.(?P<session>[A-Za-z0-9_-]{1,64})\.\d+\.\d+\.journal\Z")
_NOBODY: Final = 1 << 62  # an epoch above that of any save: no save is at work, also if a head was lost


@dataclass(frozen=True, slots=True)
class Stray:
    """One of them, by its name within the store."""

    kind: str
    name: str
    size: int
    session: str = ""


def strays(store: CheckpointStore) -> Iterator[Stray] | None:
    """Return all strays of a store; None if it cannot be looked into."""
    if isinstance(store, LocalStore):
        return _in_folder(store)
    return _in_keyed(store) if isinstance(store, KeyedStore) else None


# --- a folder ------------------------------------------------------------------------------


def _in_folder(store: LocalStore) -> Iterator[Stray]:
    folder = store.url.removeprefix("file://")
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"Cannot look into {folder}: {error.strerror}.", path=folder) from error
    there = frozenset(names)
    sessions = {_session(store, name) for name in names if name.endswith(f".{META}")}
    for name in names:
        stray = _stray(store, folder, name, there, sessions)
        if stray is not None:
            yield stray


def _stray(
    store: LocalStore, folder: str, name: str, there: frozenset[str], sessions: set[str]
) -> Stray | None:
    if match := STAGED.match(name):
        session = session_of(match["base"]) or ""
        if _is_current(folder, match["base"], match["stage"]) or _is_run(store, session):
            return None
        return Stray("staged", name, _size(folder, name), session)
    if match := _JOURNAL.match(name):
        session = match["session"]
        if session in sessions or _is_run(store, session):
            return None
        return Stray("journal", name, _size(folder, name), session)
    for part in PARTS:
        if name.endswith(f".{part}"):
            base = name.removesuffix(f".{part}")
            if f"{base}.{META}" in there:
                return None
            return Stray("part", name, _size(folder, name), session_of(base) or "")
    if name.startswith("."):
        return None  # locks, and what parts of this package keep beside the checkpoints
    return Stray("foreign", name, _size(folder, name))


def _session(store: LocalStore, name: str) -> str:
    own = session_of(name.removesuffix(f".{META}"))
    if own is not None:
        return own
    with suppress(CheckpointError):
        return str(session_in(store.meta(name)) or "")
    return ""


def _is_current(folder: str, base: str, stage: str) -> bool:
    """Return whether a meta means that file: it was committed, and has not got its last name yet."""
    with suppress(OSError), open(f"{folder}/{base}.{META}", "rb") as file:
        return stage_of(file.read()) == stage
    return False


def _is_run(store: CheckpointStore, session: str) -> bool:
    return bool(session) and store.owner(session) is not None


def _size(folder: str, name: str) -> int:
    with suppress(OSError):
        return os.lstat(f"{folder}/{name}").st_size
    return 0


# --- a keyed store -------------------------------------------------------------------------


def _in_keyed(store: KeyedStore) -> Iterator[Stray]:
    """Yield strays of sessions without an owner: their next owner would delete them."""
    for scope in sorted({entry.key.split("/")[1] for entry in store.driver.keys("data/")}):
        if not scope.startswith("@") and store.owner(scope) is not None:
            continue
        head = store.heads.read(scope).head
        sizes: Counter[str] = Counter()
        for entry in left_behind(store.driver, scope, head._replace(epoch=_NOBODY)):
            sizes[entry.key.split("/")[2]] += entry.size
        session = "" if scope.startswith("@") else scope
        yield from (
            Stray("staged", f"data/{scope}/{mark}", size, session) for mark, size in sorted(sizes.items())
        )
    having = {str(session_in(raw)) for _, raw in store.list()}
    frames: Counter[str] = Counter()
    for entry in store.driver.keys("journal/"):
        frames[entry.key.split("/")[1]] += entry.size
    for session, size in sorted(frames.items()):
        if size and session not in having and not _is_run(store, session):
            yield Stray("journal", f"journal/{session}", size, session)
