"""The history of a session: its cuts, newest first, and the journal after them.

Only the current line counts: what an owner has gone back behind on purpose is superseded. A rewind writes a
checkpoint of the state that it goes back to, the first of a new epoch. Its meta, and that of each later one,
lists `rewinds`: pairs of epoch and sequence. What an earlier epoch has written with a higher sequence is
superseded: never continued from, and no fallback.

Promise: only a meta whose seal holds supersedes anything.
Not here: when a session is rewound (engine, command line), what is deleted (pruning.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from graflow_ckpt.checkpoint import journal
from graflow_ckpt.checkpoint.archive import Found, find
from graflow_ckpt.checkpoint.model import COUNTS, Lines, document_of, lines_in, named
from graflow_ckpt.checkpoint.seals import Keyring, sealed_in
from graflow_ckpt.core import errors
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.protocols import Line, Readable
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.files.store import LocalStore


def newest(
    store: Readable, keyring: Keyring, session: str
) -> Iterator[tuple[str, Found | errors.CheckpointError]]:
    """Yield a session's checkpoints of the current line of history, newest first, each verified or with
    the reason why not. SchemaUnsupported at one that a later version has sealed: what is below it is older
    than what the session has done."""
    metas = dict(store.list(session))
    cuts = sorted(((*order_of(raw, session), path) for path, raw in metas.items()), reverse=True)
    back = gone_back(store, keyring, session, cuts, metas.__getitem__)
    for epoch, sequence, path in cuts:
        if is_superseded(back, epoch, sequence):
            continue
        try:
            found = find(store, keyring, path, metas[path])
        except errors.SchemaUnsupported as error:
            if sealed_in(metas[path], keyring, session) is not None:
                raise  # what is newer than this version is not gone back behind
            reason = f"its seal does not hold. It says: {error.message}"
            forged = errors.UnsafeCheckpoint(  # else any writer's file would stop a session
                f"Checkpoint {path} is not of a later version: {reason}", hint=errors.NOT_OPENED, path=path
            )
            yield path, forged
        except errors.CheckpointError as error:
            yield path, error
        else:
            other = found.meta["session_id"]
            yield path, found if other == session else _of_another(path, other, session)


def _of_another(path: str, other: str, session: str) -> errors.UnsafeCheckpoint:
    """Return the error for a sealed one of another session: else it would be taken for nothing at all."""
    return errors.UnsafeCheckpoint(
        f"Checkpoint {path} is one of session {other}: it was put in the place of another.",
        hint=f"Session {session} does not go on from it. Take it away, or give it a name of its own.",
        path=path,
        session=session,
        other=other,
    )


Bad = list[tuple[str, errors.CheckpointError]]
"""Paths of checkpoints, and why each is not good."""


def good(store: Readable, keyring: Keyring, session: str, bad: Bad | None = None) -> Iterator[Found]:
    """Yield those that verify, newest first; `bad` gets the others."""
    for path, found in newest(store, keyring, session):
        if isinstance(found, Found):
            yield found
        elif bad is not None:
            bad.append((path, found))


def newest_good(store: Readable, keyring: Keyring, session: str) -> Found | None:
    """Return the newest one that verifies; None if the session has none at all, NoGoodCheckpoint if all are
    bad."""
    bad: Bad = []
    found = next(good(store, keyring, session, bad), None)
    if found is None and bad:
        raise none_good(session, bad)
    return found


def order_of(raw: bytes, session: str | None = None) -> tuple[int, int]:
    """Return epoch and sequence as an unverified meta claims them: good for sorting only. What is damaged, or
    of another session than its name says, is looked at first, so that it is mentioned."""
    meta = document_of(raw)
    with suppress(TypeError, KeyError, ValueError, OverflowError):
        if meta is not None and session in (None, meta["session_id"]):
            epoch, sequence = int(meta["epoch"]), int(meta["sequence"])
            if epoch in COUNTS and sequence in COUNTS:
                return epoch, sequence
    return sys.maxsize, 0


def highest_sequence(store: Readable, session: str) -> int:
    """Return the highest that any meta of the session claims, over all lines: a sequence never goes back."""
    return max((order_of(raw)[1] for _, raw in store.list(session)), default=0)


def none_good(session: str, skipped: Bad) -> errors.NoGoodCheckpoint:
    reasons = "; ".join(f"{path}: {error.message}" for path, error in skipped[:3])
    return errors.NoGoodCheckpoint(
        f"Session {session} has {len(skipped)} checkpoints and none of them verifies: {reasons}",
        hint=skipped[0][1].hint
        if all(isinstance(error, (errors.UnknownKey, errors.UnsafeCheckpoint)) for _, error in skipped)
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
    at_damage: Callable[[errors.JournalDamaged], object] | None = None,
) -> int:
    """Apply the journal's records after the cut; return how many. `closed`: open no pickle.

    `at_damage`: the records before a damaged one count, and this is called with the damage.
    """
    applied = 0
    try:
        for _, record in records(store, keyring, state.sequence, found, session, closed=closed):
            apply(state, record.ops, record.now)
            applied += 1
    except errors.JournalDamaged as error:
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
    """Yield what the journal has after the cut, whose state is that of transition `after`: each record, and
    its payload. One that is missing is `JournalDamaged`."""
    keyring = keyring.around(store)
    base_epoch = int(found.meta["epoch"]) if found else 0
    python = str(found.meta.get("python", "")) if found else ""
    sequence = int(found.meta["sequence"]) if found else 0
    opened = [line.epoch for line in former_lines(store, session) if line.sequence == sequence]
    floor = max([base_epoch, *(epoch for epoch in opened if epoch > base_epoch)])
    segments = [s for s in store.segments(session) if s[0] >= floor]
    lacks = False
    for number, (epoch, start, raw) in enumerate(segments):
        void = min((s[1] for s in segments[number + 1 :] if s[0] > epoch), default=sys.maxsize)
        for payload in journal.read(keyring, session, epoch, start, raw, store.encoding):
            record = journal.unpack(payload, closed=closed, python=python if epoch == base_epoch else "")
            if record.sequence <= after or record.sequence > void:
                continue
            if record.sequence != after + 1 and lacks:
                return  # what closed the gap cannot be read: the session is before it
            if record.sequence != after + 1:
                raise journal.damaged(session, epoch, 0, f"record {after + 1} is missing")
            yield payload, record
            after, lacks = record.sequence, record.ops[0][0] == "gap"


def newest_path(store: Readable, keyring: Keyring, session: str, beside: str = "") -> str | None:
    """Return the path of a session's newest good checkpoint other than `beside`."""
    with suppress(errors.SchemaUnsupported):
        return next((found.path for found in good(store, keyring, session) if found.path != beside), None)
    return None


def beside_damaged(store: Readable, keyring: Keyring, path: str) -> str:
    """Return what to say of a damaged checkpoint: the newest good one of its session."""
    own, meta = named(path), None
    with suppress(errors.CheckpointError):
        meta = document_of(store.meta(path))
    session = str((meta or {}).get("session_id") or (own["session"] if own is not None else ""))
    other = newest_path(store, keyring, session, path) if session else None
    if other is not None:
        return f"The newest good checkpoint of session {session} is {other}."
    return "No other good checkpoint of its session is there."


# --- rewinds ----------------------------------------------------------------------------


def gone_back(
    store: Readable,
    keyring: Keyring,
    session: str,
    cuts: Iterable[tuple[int, int, str]],
    meta: Callable[[str], bytes] | None = None,
) -> Lines:
    """Return what a session has gone back behind, by the newest of its cuts whose seal holds.

    `cuts`: epoch, sequence and path of each, the newest first. `meta` gives the metas, if they were read.
    """
    former = former_lines(store, session)
    for epoch, sequence, path in cuts:
        if is_superseded(former, epoch, sequence):
            continue
        with suppress(
            errors.CheckpointError, ValueError, TypeError
        ):  # it is gone, or says nothing that makes sense
            found = sealed_in((meta or store.meta)(path), keyring, session)
            if found is not None:
                return (*former, *lines_in(found))
    return former


def former_lines(store: Readable, session: str) -> Lines:
    """Return what earlier commits wrote beside the checkpoints of a folder, instead of into their metas."""
    while isinstance(store, Wrapper):
        store = store.inner
    return store.former_lines(session) if isinstance(store, LocalStore) else ()


def is_superseded(lines: Iterable[Line], epoch: int, sequence: int) -> bool:
    """Return True if a cut of that epoch and number is superseded by a rewind."""
    return any(line.epoch > epoch and sequence > line.sequence for line in lines)


def with_line(lines: Lines, line: Line, cuts: Iterable[tuple[int, int]]) -> Lines:
    """Return the lines with one more, without those that supersede nothing that is there."""
    there = list(cuts)
    return tuple(
        one for one in (*lines, line) if any(is_superseded((one,), epoch, number) for epoch, number in there)
    )
