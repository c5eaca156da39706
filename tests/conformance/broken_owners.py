"""Stores that are wrong about owners, or about the journal. Each has one thing wrong; the rest is sound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.memory import Holding, MemoryLease, MemorySegment, MemoryStore
from graflow_ckpt.stores.names import session_of
from tests.conformance.broken_trios import Parts

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
        own = session_of(self._base(path)) is not None
        super().put(path, parts, lease=lease if own else None, stage=stage)


class FencesAfterTheFact(MemoryStore):
    """Says that the session was lost, when the checkpoint is already there."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        super().put(path, parts, lease=None, stage=stage)
        if lease is not None:
            lease.check()


class FencesByTheEpochAlone(MemoryStore):
    """Whoever has the number of the owner may write, also if a restored backup has given it out once more."""

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        class Numbered(MemoryLease):
            def hold(self) -> None:
                self.claim = self.room.holdings.get(self.session, Holding()).claim
                super().hold()

        lease = super().acquire(session, take_over=take_over)
        return Numbered(self._room, session, lease.epoch, lease.taken_from, lease.claim)


class TakesAnyLease(MemoryStore):
    """A lease is whatever has the methods of one."""

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str) -> None:
        if lease is not None:
            lease.check()
        super().put(path, parts, lease=lease if isinstance(lease, MemoryLease) else None, stage=stage)


# --- leases ----------------------------------------------------------------------------


class ForgetsEpochs(MemoryStore):
    """The row of a session goes when it is released, and the next owner begins at 1."""

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        held = self._holding(session)
        if held.owner is None:
            self._room.holdings[session] = Holding()
        return super().acquire(session, take_over=take_over)


class ReusesEpochs(MemoryStore):
    """A take-over keeps the epoch: both owners have the same."""

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        held = self._holding(session)
        if take_over and held.owner is not None:
            return MemoryLease(self._room, session, held.epoch, held.owner, held.claim)
        return super().acquire(session, take_over=take_over)


class ReleasesByName(MemoryStore):
    """Whoever lets a session go frees it, also somebody who has lost it."""

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        class Careless(MemoryLease):
            def release(self) -> None:
                held = self.room.holdings[self.session]
                self.room.holdings[self.session] = replace(held, owner=None)
                self._released = True

        lease = super().acquire(session, take_over=take_over)
        return Careless(self._room, session, lease.epoch, lease.taken_from, lease.claim)


class LooksThenTakes(MemoryStore):
    """Between the look at the owner and the claim there is time for another."""

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        free = self._holding(session).owner is None
        time.sleep(0.01)
        return super().acquire(session, take_over=take_over or free)


class ExpiresByThisClock(MemoryStore):
    """An owner counts as dead 15 seconds after it came, by the clock of whoever asks."""

    _since: dict[str, float] = {}  # noqa: RUF012

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        expired = time.time() > self._since.get(session, 0) + 15
        lease = super().acquire(session, take_over=take_over or expired)
        self._since[session] = time.time()
        return lease


class NeverRenews(MemoryStore):
    """A lease lasts for 100 milliseconds, and nobody renews it."""

    _since: dict[str, float] = {}  # noqa: RUF012

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        expired = time.monotonic() > self._since.get(session, 0) + 0.1
        lease = super().acquire(session, take_over=take_over or expired)
        self._since[session] = time.monotonic()
        return lease


class OwnsAllOrNothing(MemoryStore):
    """One lock for all sessions."""

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        held = [other for other, held in self._room.holdings.items() if held.owner and other != session]
        if held:
            raise SessionBusy("Somebody is writing.", hint="Wait.", owner=self._holding(held[0]).owner)
        return super().acquire(session, take_over=take_over)


class NamesNobody(MemoryStore):
    """A session is busy, and nobody is told with whom."""

    def acquire(self, session: str, *, take_over: bool = False) -> MemoryLease:
        try:
            return super().acquire(session, take_over=take_over)
        except SessionBusy as busy:
            raise SessionBusy(busy.message, hint=busy.hint, session=session, owner=None) from None


# --- journals --------------------------------------------------------------------------


class AppendsUnfenced(MemoryStore):
    """Who has begun a segment may append to it for ever."""

    def journal(self, lease: Lease, after: int) -> MemorySegment:
        class Unfenced(MemorySegment):
            def append(self, frame: bytes, /) -> None:
                if not self._open:
                    raise JournalFailed("Closed.", hint="Begin another segment.")
                self._frames += frame

        return Unfenced(self._own(lease), after)


class BuffersFrames(MemoryStore):
    """Frames are written when the segment is closed."""

    def journal(self, lease: Lease, after: int) -> MemorySegment:
        class Buffered(MemorySegment):
            waiting = b""

            def append(self, frame: bytes, /) -> None:
                self.waiting += frame

            def close(self) -> None:
                waiting, self.waiting = self.waiting, b""
                if waiting:
                    super().append(waiting)
                super().close()

        return Buffered(self._own(lease), after)


class LosesFramesOfThreads(MemoryStore):
    """Reads the segment, adds a frame, writes it back."""

    def journal(self, lease: Lease, after: int) -> MemorySegment:
        class Careless(MemorySegment):
            def append(self, frame: bytes, /) -> None:
                self._lease.check()
                longer = bytes(self._frames) + frame
                time.sleep(0.0005)
                self._frames[:] = longer

        return Careless(self._own(lease), after)


class GoesOnAfterClose(MemoryStore):
    """A closed segment takes what it is given."""

    def journal(self, lease: Lease, after: int) -> MemorySegment:
        class Open(MemorySegment):
            def close(self) -> None:
                pass

        return Open(self._own(lease), after)


class BeginsAnew(MemoryStore):
    """A segment that is begun again is empty."""

    def journal(self, lease: Lease, after: int) -> MemorySegment:
        self._room.segments.get(lease.session, {}).pop((lease.epoch, after), None)
        return MemorySegment(self._own(lease), after)


class DropsTooMuch(MemoryStore):
    """Drops by where a segment begins: records after the cut are lost."""

    def drop_segments(self, session: str, before: int) -> None:
        kept = self._room.segments.get(session, {})
        for epoch, after in [key for key in kept if key[1] < before]:
            del kept[epoch, after]


class DropsOfOthers(MemoryStore):
    """Finds the segments of a session by LIKE."""

    def drop_segments(self, session: str, before: int) -> None:
        for other in list(self._room.segments):
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
