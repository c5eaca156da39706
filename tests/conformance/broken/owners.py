"""Stores that are wrong about owners, or about the journal. Each has one thing wrong; the rest is sound."""

from __future__ import annotations

import time
from collections.abc import Iterator

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.head import Head, head_key
from graflow_ckpt.stores.journal import KeyedSegment
from graflow_ckpt.stores.lease import KeyedLease, Step
from graflow_ckpt.stores.names import session_of
from tests import things
from tests.conformance.broken.trios import Parts

# --- fences ----------------------------------------------------------------------------


class FencesByTheClock(MemoryStore):
    """Whoever has got the session less than 15 seconds ago may write, whoever has it now."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if lease is not None:
            since = self._since.setdefault(id(lease), time.time())
            if time.time() > since + 15:
                raise Fenced(f"The lease of {lease.session!r} has run out.", hint="Acquire it again.")
        super().put(path, parts, lease=None, stage=stage)

    _since: dict[int, float] = {}  # noqa: RUF012


class FencesAtTheStart(MemoryStore):
    """Looks at the epoch before it writes, and not when it commits."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if lease is not None:
            lease.check()
        super().put(path, parts, lease=None, stage=stage)


class FencesOwnNamesOnly(MemoryStore):
    """A checkpoint that was given a name is not fenced."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        own = session_of(self._name(path)) is not None
        super().put(path, parts, lease=lease if own else None, stage=stage)


class FencesAfterTheFact(MemoryStore):
    """Says that the session was lost, when the checkpoint is already there."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=None, stage=stage)
        if lease is not None:
            lease.check()


class FencesByTheEpochAlone(MemoryStore):
    """Whoever has the number of the owner may write, also if a restored backup has given it out once more."""

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        class Numbered(KeyedLease):
            def _is_ours(self, head: Head) -> bool:
                self.claim = head.claim
                self._lasts.add(head.last)
                return super()._is_ours(head)

        lease = super().acquire(session, take_over=take_over)
        lease.__class__ = Numbered
        return lease


class TakesAnyLease(MemoryStore):
    """A lease is whatever has the methods of one."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if lease is not None:
            lease.check()
        super().put(path, parts, lease=lease if isinstance(lease, KeyedLease) else None, stage=stage)


# --- leases ----------------------------------------------------------------------------


class ForgetsEpochs(MemoryStore):
    """The epoch of a session goes when it is released, and the next owner begins at 1."""

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        head = things.head(self, session)
        if head.owner is None:
            things.write(self, head_key(session), head._replace(epoch=0).encode())
        return super().acquire(session, take_over=take_over)


class ReusesEpochs(MemoryStore):
    """A take-over keeps the epoch: both owners have the same."""

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        seen = self.heads.read(session)
        if take_over and seen.head.owner is not None:
            return KeyedLease(self.heads, self.folder, session, seen, seen.head.owner)
        return super().acquire(session, take_over=take_over)


class ReleasesByName(MemoryStore):
    """Whoever lets a session go frees it, also somebody who has lost it."""

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        class Careless(KeyedLease):
            def _let_go(self) -> None:
                self._heads.change(self.session, lambda head: Step(head._replace(owner=None)))

        lease = super().acquire(session, take_over=take_over)
        lease.__class__ = Careless
        return lease


class LooksThenTakes(MemoryStore):
    """Between the look at the owner and the claim there is time for another."""

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        free = self.owner(session) is None
        time.sleep(0.01)
        return super().acquire(session, take_over=take_over or free)


class ExpiresByThisClock(MemoryStore):
    """An owner counts as dead 15 seconds after it came, by the clock of whoever asks."""

    _since: dict[str, float] = {}  # noqa: RUF012

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        expired = time.time() > self._since.get(session, 0) + 15
        lease = super().acquire(session, take_over=take_over or expired)
        self._since[session] = time.time()
        return lease


class NeverRenews(MemoryStore):
    """A lease lasts for 100 milliseconds, and nobody renews it."""

    _since: dict[str, float] = {}  # noqa: RUF012

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        expired = time.monotonic() > self._since.get(session, 0) + 0.1
        lease = super().acquire(session, take_over=take_over or expired)
        self._since[session] = time.monotonic()
        return lease


class OwnsAllOrNothing(MemoryStore):
    """One lock for all sessions."""

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        others = {key.partition("/")[2] for key in things.keys(self, "head/")} - {session}
        owners = [things.head(self, other).owner for other in others]
        if held := [owner for owner in owners if owner is not None]:
            raise SessionBusy("Somebody is writing.", hint="Wait.", owner=held[0])
        return super().acquire(session, take_over=take_over)


class NamesNobody(MemoryStore):
    """A session is busy, and nobody is told with whom."""

    def acquire(self, session: str, *, take_over: bool = False) -> KeyedLease:
        try:
            return super().acquire(session, take_over=take_over)
        except SessionBusy as busy:
            raise SessionBusy(busy.message, hint=busy.hint, session=session, owner=None) from None


# --- journals --------------------------------------------------------------------------


class _Segments(MemoryStore):
    """Sound, but that its segments are of another class."""

    kind: type[KeyedSegment] = KeyedSegment

    def journal(self, lease: Lease, after: int) -> KeyedSegment:
        segment = super().journal(lease, after)
        segment.__class__ = self.kind
        return segment


class _Unfenced(KeyedSegment):
    def append(self, frame: bytes, /) -> None:
        if not self._open:
            raise JournalFailed("Closed.", hint="Begin another segment.")
        self._driver.batch([Put(f"{self.key}/{self._count:010}", frame)])
        self._count += 1


class AppendsUnfenced(_Segments):
    """Who has begun a segment may append to it for ever."""

    kind = _Unfenced


class _Buffered(KeyedSegment):
    waiting = b""

    def append(self, frame: bytes, /) -> None:
        self.waiting += frame

    def close(self) -> None:
        waiting, self.waiting = self.waiting, b""
        if waiting:
            super().append(waiting)
        super().close()


class BuffersFrames(_Segments):
    """Frames are written when the segment is closed."""

    kind = _Buffered


class _OfOneKey(KeyedSegment):
    def append(self, frame: bytes, /) -> None:
        self._lease.check()
        key = f"{self.key}/{0:010}"
        (found,) = self._driver.get(key)
        longer = (found.data if found is not None else b"") + frame
        time.sleep(0.0005)
        self._driver.batch([Put(key, longer, fresh=False)])


class LosesFramesOfThreads(_Segments):
    """Reads the segment, adds a frame, writes it back."""

    kind = _OfOneKey


class _Open(KeyedSegment):
    def close(self) -> None:
        pass


class GoesOnAfterClose(_Segments):
    """A closed segment takes what it is given."""

    kind = _Open


class BeginsAnew(MemoryStore):
    """A segment that is begun again is empty."""

    def journal(self, lease: Lease, after: int) -> KeyedSegment:
        own = self._own(lease)
        own.begun.clear()
        things.drop(self, things.keys(self, f"journal/{lease.session}/{lease.epoch:010}-{after:012}-"))
        return super().journal(lease, after)


class DropsTooMuch(MemoryStore):
    """Drops by where a segment begins: records after the cut are lost."""

    def drop_segments(self, session: str, before: int) -> None:
        keys = things.keys(self, f"journal/{session}/")
        things.drop(self, [key for key in keys if int(key.split("/")[2].split("-")[1]) < before])


class DropsOfOthers(MemoryStore):
    """Finds the segments of a session by LIKE."""

    def drop_segments(self, session: str, before: int) -> None:
        for other in {key.split("/")[1] for key in things.keys(self, "journal/")}:
            like = zip(session, other, strict=False)
            if len(session) == len(other) and all(a in ("_", b) for a, b in like):
                super().drop_segments(other, before)


class SortsSegmentsAsText(MemoryStore):
    """The segment after 100 comes before the one after 9."""

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return iter(sorted(super().segments(session), key=lambda found: (found[0], str(found[1]))))


class CutsFramesAtZeros(MemoryStore):
    """Keeps frames as text that ends with a zero."""

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        for epoch, after, raw in super().segments(session):
            yield epoch, after, raw.partition(b"\0")[0]
