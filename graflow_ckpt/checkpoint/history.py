"""The history of a session: its cuts, newest first, and the journal after them.

Only the current line counts: what an owner has gone back behind on purpose is superseded.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from graflow_ckpt.checkpoint import journal
from graflow_ckpt.checkpoint.archive import Found, find
from graflow_ckpt.checkpoint.inventory import COUNTS
from graflow_ckpt.checkpoint.model import NOT_JSON
from graflow_ckpt.checkpoint.rewinds import former_lines, is_sealed, is_superseded, sealed_lines
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import (
    CheckpointError,
    JournalDamaged,
    NoGoodCheckpoint,
    SchemaUnsupported,
    UnknownKey,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.protocols import Readable
from graflow_ckpt.core.state import SessionState

_NO_META = (*NOT_JSON, TypeError, KeyError)


def newest(store: Readable, keyring: Keyring, session: str) -> Iterator[tuple[str, Found | CheckpointError]]:
    """A session's checkpoints of the current line of history, newest first, each verified or with
    the reason why not. SchemaUnsupported at one that a later version has sealed: what is below it is older
    than what the session has done."""
    former, lines = former_lines(store, session), None
    metas = [(*order_of(raw, session), path, raw) for path, raw in store.list(session)]
    for epoch, sequence, path, raw in sorted(metas, key=lambda m: (m[0], m[1], m[2]), reverse=True):
        if is_superseded((*former, *(lines or ())), epoch, sequence):
            continue
        if lines is None:  # the newest whose seal holds says what has been gone back behind
            lines = sealed_lines(raw, keyring, session)
        try:
            found = find(store, keyring, path, raw)
        except SchemaUnsupported as error:
            if is_sealed(raw, keyring, session):
                raise  # what is newer than this version is not gone back behind
            yield path, _unsealed(path, error)
        except CheckpointError as error:
            yield path, error
        else:
            if found.meta["session_id"] == session:
                yield path, found
            else:
                yield path, _of_another(path, found, session)


def _of_another(path: str, found: Found, session: str) -> UnsafeCheckpoint:
    """Well sealed, and put where this session has its own: said, or it would be taken for nothing at all."""
    other = found.meta["session_id"]
    return UnsafeCheckpoint(
        f"Checkpoint {path} is one of session {other}: somebody has put it in the place of another.",
        hint=f"Session {session} does not go on from it. Take it away, or give it a name of its own.",
        path=path,
        session=session,
        other=other,
    )


def _unsealed(path: str, error: SchemaUnsupported) -> UnsafeCheckpoint:
    """Only a seal proves that a later version wrote it; else one file of anybody would stop a session."""
    return UnsafeCheckpoint(
        f"Checkpoint {path} is not of a later version: its seal does not hold. It says: {error.message}",
        hint="Use another checkpoint of the session; this one is not opened.",
        path=path,
    )


def order_of(raw: bytes, session: str | None = None) -> tuple[int, int]:
    """Epoch and sequence as an unverified meta claims them: good for sorting only. What is damaged, or of
    another session than it stands under, is looked at first, so that it is mentioned."""
    try:
        meta = json.loads(raw)
        if session in (None, meta["session_id"]):
            epoch, sequence = int(meta["epoch"]), int(meta["sequence"])
            if epoch in COUNTS and sequence in COUNTS:
                return epoch, sequence
    except (*_NO_META, OverflowError):
        pass
    return sys.maxsize, 0


def none_good(session: str, skipped: list[tuple[str, CheckpointError]]) -> NoGoodCheckpoint:
    reasons = "; ".join(f"{path}: {error.message}" for path, error in skipped[:3])
    return NoGoodCheckpoint(
        f"Session {session} has {len(skipped)} checkpoints and none of them verifies: {reasons}",
        hint=skipped[0][1].hint
        if all(isinstance(error, (UnknownKey, UnsafeCheckpoint)) for _, error in skipped)
        else "Nothing was started. Find out more: graflow-ckpt checkpoints verify.",
        session=session,
        skipped=skipped,
    )


def replay(
    store: Readable,
    keyring: Keyring,
    state: SessionState,
    found: Found | None,
    session: str,
    *,
    closed: bool = False,
    at_damage: Callable[[JournalDamaged], object] | None = None,
) -> int:
    """Apply the journal's records after the cut; how many there were. `closed`: opens no pickle.

    `at_damage`: the records before a damaged one count, and this is called with the damage.
    """
    applied = 0
    try:
        for _, record in records(store, keyring, state.sequence, found, session, closed=closed):
            apply(state, record.ops, record.now)
            applied += 1
    except JournalDamaged as error:
        if at_damage is None:
            raise
        at_damage(error)
    return applied


def records(
    store: Readable,
    keyring: Keyring,
    after: int,
    found: Found | None,
    session: str,
    *,
    closed: bool = False,
) -> Iterator[tuple[bytes, journal.Record]]:
    """What the journal has after the cut, whose state is that of transition `after`: each record, and its
    payload. One that is missing is `JournalDamaged`."""
    base_epoch = int(found.meta["epoch"]) if found else 0
    python = str(found.meta.get("python", "")) if found else ""
    sequence = int(found.meta["sequence"]) if found else 0
    opened = [line.epoch for line in former_lines(store, session) if line.sequence == sequence]
    floor = max([base_epoch, *(epoch for epoch in opened if epoch > base_epoch)])
    segments = [s for s in store.segments(session) if s[0] >= floor]
    lacks = False
    for number, (epoch, start, raw) in enumerate(segments):
        void = min((s[1] for s in segments[number + 1 :] if s[0] > epoch), default=sys.maxsize)
        for payload in journal.read(keyring, session, epoch, start, raw):
            record = journal.unpack(payload, closed=closed, python=python if epoch == base_epoch else "")
            if record.sequence <= after or record.sequence > void:
                continue
            if record.sequence != after + 1 and lacks:
                return  # what closed the gap cannot be read: the session stands before it
            if record.sequence != after + 1:
                raise journal.damaged(session, epoch, 0, f"record {after + 1} is missing")
            yield payload, record
            after, lacks = record.sequence, record.ops[0][0] == "gap"


def cause_of(raw: bytes) -> str:
    """Why an unverified meta says it was made."""
    try:
        return str(json.loads(raw)["cause"])
    except _NO_META:
        return ""


def newest_path(store: Readable, keyring: Keyring, session: str, beside: str = "") -> str | None:
    """The path of a session's newest good checkpoint other than `beside`."""
    with suppress(SchemaUnsupported):
        for path, found in newest(store, keyring, session):
            if isinstance(found, Found) and path != beside:
                return path
    return None


def newest_good(store: Readable, keyring: Keyring, path: str) -> str:
    """What to say of a damaged checkpoint: the newest good one of its session."""
    try:
        session = str(json.loads(store.meta(path))["session_id"])
    except _NO_META:
        match = re.match(r"session_([A-Za-z0-9_-]+)_step_\d+_\d+-\d+", os.path.basename(path))
        session = match[1] if match else ""
    other = newest_path(store, keyring, session, path) if session else None
    if other is not None:
        return f"The newest good checkpoint of session {session} is {other}."
    return "No other good checkpoint of its session is there."
