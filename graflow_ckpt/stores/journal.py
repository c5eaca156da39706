"""Journals in a keyed store: one key for each record.

    journal/{s}/{epoch}-{after}-{claim}/{n}

Promise: a record is there when `append` returns, once, and only while the head is that of its owner. Two
owners never have a segment in common, even under the same epoch: its name has the claim in it. After a
failure nothing more is appended, ever.

Where batches are not atomic a record carries no guard. There the head says which segments there are, record
0 says that one was begun, and a process that takes over closes each by an empty record under its next
number (lease.py). Not here: what is in a record, and which records count (checkpoint/journal.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.stores.driver import Driver, Entry, Put
from graflow_ckpt.stores.head import Head
from graflow_ckpt.stores.lease import Heads, KeyedLease, ServerWait, Step, segment_in
from graflow_ckpt.stores.owners import FencedSegment, used

_PAGE = 200  # records that are read at once


class KeyedSegment(FencedSegment):
    """One in a keyed store: a record each key."""

    def __init__(self, driver: Driver, lease: KeyedLease, name: str) -> None:
        super().__init__(lease, f"journal/{lease.session}/{name}")
        self._driver, self._lease, self._name = driver, lease, name

    def _write(self, frame: bytes) -> bool:
        number = self._count + (not self._driver.atomic)
        lease, key, patience = self._lease, f"{self.key}/{number:010}", ServerWait()
        with lease.mutex:
            lease.begun.add(self._name)
            asked = False  # whether a reply was lost
            while True:
                try:
                    guards = lease.guard if self._driver.atomic else None
                    if self._driver.batch([Put(key, frame)], guards=guards) is not None:
                        return True
                    (found,) = self._driver.get(key)
                    if found is not None and asked and found.data == frame:
                        return True
                    lease.check()  # another process has pruned, or taken over
                    if found is not None:
                        return False
                except ServerGone:
                    asked = True
                    if patience.over():
                        raise


def open_segment(driver: Driver, lease: KeyedLease, after: int) -> KeyedSegment:
    """Open a new segment for the records after `after`."""
    lease.check()
    name = f"{lease.epoch:010}-{after:012}-{lease.claim}"
    if name in lease.begun:
        raise used(lease.session, name)
    if not driver.atomic:
        # that it was begun is seen first by a process that takes over, also from a head that was put back
        driver.batch([Put(f"journal/{lease.session}/{name}/{0:010}", b"-", fresh=False)])

        def begin(head: Head) -> Step | None:
            return None if name in head.segments else Step(head._replace(segments=(*head.segments, name)))

        lease.change(begin)
    return KeyedSegment(driver, lease, name)


def read_segments(heads: Heads, session: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield (epoch, after, bytes) in that order."""
    for epoch, after, _, entries in _listed(heads, session):
        keys = [entry.key for entry in entries if entry.size]
        pages = [heads.driver.get(*keys[at : at + _PAGE]) for at in range(0, len(keys), _PAGE)]
        # one that is gone was dropped meanwhile; if not, the chain of seals says so
        yield epoch, after, b"".join(found.data for page in pages for found in page if found is not None)


def drop_segments(heads: Heads, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    over = [one for one, (_, ended, _, _) in pairwise(_listed(heads, session)) if ended <= before]
    names = {name for _, _, name, _ in over}
    if names and not heads.driver.atomic:

        def forget(head: Head) -> Step | None:
            left = tuple([name for name in head.segments if name not in names])
            return Step(head._replace(segments=left)) if len(left) < len(head.segments) else None

        heads.change(session, forget)
    # an empty record stays: a former owner that wakes up must still find its number taken
    keys = [entry.key for _, _, _, entries in over for entry in entries if entry.size]
    for at in range(0, len(keys), 1000):
        heads.driver.batch([], keys[at : at + 1000])


def _listed(heads: Heads, session: str) -> Iterator[tuple[int, int, str, Sequence[Entry]]]:
    """Yield the epoch, what the segment follows, its name, and the keys of its records."""
    atomic = heads.driver.atomic
    known = None if atomic else set(heads.read(session).head.segments)
    listed = heads.driver.keys(f"journal/{session}/")
    for name, entries in groupby(listed, key=lambda entry: entry.key.split("/")[2]):
        its = segment_in(name)
        if its is not None and (known is None or name in known):
            yield *its, name, [*entries][not atomic :]
