"""The tail of a session: what its journal has after the newest cut, as payloads that no pickle of was opened.

Reading it verifies every record; writing it frames the records anew, under the owner that writes them.
Not here: what is in a frame (journal.py), which segments count (history.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graflow_ckpt.checkpoint import history, journal
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.inventory import Inventory, inventory
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.errors import CheckpointError, JournalDamaged
from graflow_ckpt.core.protocols import CheckpointStore, Lease, Readable

BATCH: Final = 256 << 10
"""Bytes of records that are appended at once."""

Tail = tuple[int, list[bytes]]
"""The transition of a cut, and the payloads of the journal after it."""

_NOTHING: Final[Tail] = (0, [])
_TURNS: Final = 5  # a session that is being run may cut between two looks at it


def at_one_moment(
    place: Readable, keys: Keyring | None, session: str, known: Inventory | None, *, running: bool
) -> tuple[Tail | CheckpointError, Inventory]:
    """The journal of a session, or what is wrong with it, and its cuts of then or later: a cut takes the
    place of the records before it, and without it those after it are of no use.

    `known`: what somebody has seen before, and what counts if it cannot have changed since.
    """
    before = known if known is not None else inventory(place, session)
    while True:
        journal = _tail_or_error(place, keys, session)
        if known is not None and not running and journal == _NOTHING:
            return journal, known
        after = inventory(place, session)
        if _gone_back(before) == _gone_back(after):
            return journal, after
        before, running = after, True  # it was taken back between the two


def _gone_back(known: Inventory) -> object:
    return max(((cut.epoch, cut.sequence, cut.rewinds) for cut in known.cuts), default=(0, 0, ()))[2]


def _tail_or_error(place: Readable, keys: Keyring | None, session: str) -> Tail | CheckpointError:
    if keys is None:  # records are sealed one after the other: none can be checked without
        return _NOTHING
    try:
        return tail(place, keys, session)
    except CheckpointError as why:
        return why


def tail(place: Readable, keys: Keyring, session: str) -> Tail:
    """Read and verified.

    It begins at the cut before the newest one if the journal goes back so far: should the newest be damaged
    one day, the other one is gone on from.
    """
    if not any(place.segments(session)):
        return 0, []
    for turn in range(_TURNS):
        good = two_newest(place, keys, session)
        try:
            after, payloads = _after(place, keys, session, good[0] if good else None)
        except JournalDamaged:
            if turn == _TURNS - 1:
                raise
            continue  # cut anew meanwhile, and what was before it dropped
        if len(good) < 2 or not payloads:
            return after, payloads
        try:
            earlier, longer = _after(place, keys, session, good[1])
        except JournalDamaged:
            return after, payloads
        ahead = after - earlier
        return (earlier, longer) if ahead >= 0 and longer[ahead:] == payloads else (after, payloads)
    raise AssertionError("not reached")


def two_newest(place: Readable, keys: Keyring, session: str) -> list[Found]:
    good: list[Found] = []
    for _, found in history.newest(place, keys, session):
        if isinstance(found, Found):
            good.append(found)
        if len(good) == 2:
            break
    return good


def _after(place: Readable, keys: Keyring, session: str, found: Found | None) -> tuple[int, list[bytes]]:
    after = int(found.facts["transition"]) if found is not None else 0
    kept = history.records(place, keys, after, found, session, closed=True)
    return after, [payload for payload, _ in kept]


def write_segment(
    store: CheckpointStore, ring: Keyring, lease: Lease, after: int, payloads: Sequence[bytes]
) -> None:
    """A new segment of a session's journal with these records; it voids what older owners have beyond."""
    segment = store.journal(lease, after)
    try:
        writer = journal.Writer(ring, lease.session, lease.epoch, after)
        batch = [writer.head]
        for payload in payloads:
            batch.append(writer.frame(payload))
            if sum(map(len, batch)) > BATCH:
                segment.append(b"".join(batch))
                batch = []
        if batch:
            segment.append(b"".join(batch))
    finally:
        segment.close()
