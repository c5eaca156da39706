"""Rewinds: which checkpoints a session has gone back behind.

A rewind writes a checkpoint of the state that it goes back to, the first of a new epoch. Its meta, and that
of each later one, lists `rewinds`: pairs of epoch and sequence. What an earlier epoch has written with a
higher sequence is superseded: never continued from, and no fallback.

Promise: only a meta whose seal holds supersedes anything.
Not here: who goes back (engine, command line), what is deleted (pruning.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from graflow_ckpt.checkpoint.model import NOT_JSON, Document
from graflow_ckpt.checkpoint.seal import Keyring, verify
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Line, Readable
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.wrapping import Wrapper

Lines = tuple[Line, ...]


def lines_in(meta: Document) -> Lines:
    """Return what a sealed meta lists."""
    return tuple(Line(int(epoch), int(sequence)) for epoch, sequence in meta.get("rewinds") or ())


def sealed_lines(raw: bytes, keyring: Keyring, session: str) -> Lines | None:
    """Return what a meta lists; None if its seal does not hold, or it is of another session."""
    try:
        return lines_in(json.loads(raw)) if is_sealed(raw, keyring, session) else None
    except (ValueError, TypeError):
        return None


def is_sealed(raw: bytes, keyring: Keyring, session: str) -> bool:
    """Return True if the seal of a meta holds, and it is of that session."""
    try:
        meta = json.loads(raw)
        verify(meta, keyring)
        return bool(meta["session_id"] == session)
    except (*NOT_JSON, AttributeError, KeyError, TypeError, CheckpointError):
        return False


def former_lines(store: Readable, session: str) -> Lines:
    """Return what earlier commits wrote beside the checkpoints of a folder, instead of into their metas."""
    while isinstance(store, Wrapper):
        store = store.inner
    return store.former_lines(session) if isinstance(store, LocalStore) else ()


def is_superseded(lines: Iterable[Line], epoch: int, sequence: int) -> bool:
    """Return True if a cut of that epoch and number lies behind what was gone back to."""
    return any(line.epoch > epoch and sequence > line.sequence for line in lines)


def with_line(lines: Lines, line: Line, cuts: Iterable[tuple[int, int]]) -> Lines:
    """Return the lines with one more, without those that supersede nothing that is there."""
    there = list(cuts)
    return tuple(
        one for one in (*lines, line) if any(is_superseded((one,), epoch, number) for epoch, number in there)
    )
