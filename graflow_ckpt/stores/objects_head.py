"""The head of a session: one small object that says who owns it and what it has.

    sessions/{id}   {write, epoch, claim, owner, seconds, commits, announced, segments} \n inline
                    and contents {mark: [[name, size], …]}, bad [number, …], pins {mark: [at, [number, …]]}

Promise: whatever must not happen after a session was lost is a change of its head, and a head changes
only from what its writer has seen (`swap`). So a claim and a commit cannot both succeed, whatever any
clock says, and of two claims one does. A change whose reply was lost is looked for before it is made
again. `write` is new in each, because equal bytes have equal tags.

Its price: a commit writes the whole head, some 200 bytes for each checkpoint that the session has kept,
and the small parts of the last ones, up to INLINE bytes in all (objects_trio.py). Contents are in one table
that checkpoints and saves name by number: up to LISTED bytes, after which nothing more is shared.
Not here: what a claim needs (objects_lease.py), and where the bytes of a checkpoint are (objects_trio.py).
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from graflow_ckpt.core.errors import CheckpointCorrupt, ServerGone
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.objects_bucket import Bucket, Patience, Tag
from graflow_ckpt.stores.objects_names import head_key, segment_name
from graflow_ckpt.stores.objects_record import (
    DAMAGED,
    Held,
    Record,
    document_of,
    held_in,
    numbered,
    numbers_in,
    records_of,
    table_of,
)

ROW = 88  # bytes of a content in the table, about
NUMBER = 4
LISTED = 128 << 10
OPEN = -1  # the end of a segment that is not closed


class Announced(NamedTuple):
    """A write to a name that is not the session's own. `former`: the marks of the data it will replace."""

    name: str
    former: tuple[str, ...]


class Span(NamedTuple):
    """A segment. `claim`: that of who has begun it; its frames are under its own name, whatever its epoch."""

    end: int = OPEN
    claim: str = ""


class Pin(NamedTuple):
    """What a save that is under way has found. `at`: by the bucket's clock, if it has no lease."""

    at: datetime | None
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """Epoch 0: nobody has owned the session here yet."""

    epoch: int = 0
    claim: str = ""
    owner: Owner | None = None
    seconds: float = 0.0  # after which a silent owner counts as dead
    commits: Mapping[str, Record] = field(default_factory=dict)
    announced: Mapping[str, Announced] = field(default_factory=dict)  # by the mark of the write
    segments: Mapping[tuple[int, int], Span] = field(default_factory=dict)  # by epoch and after
    pins: Mapping[str, Pin] = field(default_factory=dict)  # by the mark of the save
    bad: frozenset[Held] = frozenset()  # damaged: no save is to hold them again

    def committed(self, base: str, record: Record) -> Head:
        number = max((kept.number for kept in self.commits.values()), default=0) + 1
        return replace(self, commits={**self.commits, base: replace(record, number=number)})

    def without(self, bases: Collection[str]) -> Head:
        return replace(self, commits={name: kept for name, kept in self.commits.items() if name not in bases})

    def named(self, segment: tuple[int, int]) -> str:
        """What the frames of a segment are under."""
        return segment_name(*segment, self.segments[segment].claim)

    def inline(self, *, beside: str) -> int:
        """Bytes of parts that are in it, without those of one checkpoint."""
        return sum(len(kept.inline) for name, kept in self.commits.items() if name != beside)

    # --- contents --------------------------------------------------------------------------

    def held(self) -> set[Held]:
        """By checkpoints and by saves."""
        found = {held for record in self.commits.values() for held in record.held()}
        return found.union(*(pin.held for pin in self.pins.values()))

    def find(self, names: Collection[str]) -> dict[str, Held]:
        """Of these contents those that a checkpoint holds, and a save may hold, too."""
        found: dict[str, Held] = {}
        for record in self.commits.values():
            own = (record.contents[name] for name in names if name in record.contents)
            found |= {held.name: held for held in own if held not in self.bad}
        return found

    def listed(self) -> int:
        """Bytes that contents take in it, about."""
        rows = sum(1 for held in self.held() if held.name)
        return ROW * rows + NUMBER * sum(len(record.contents) for record in self.commits.values())

    def without_pins(self, *marks: str) -> Head:
        return replace(self, pins={mark: pin for mark, pin in self.pins.items() if mark not in marks})

    # --- bytes -----------------------------------------------------------------------------

    def encode(self) -> bytes:
        numbers = numbered(self.held())
        said: dict[str, Any] = {
            "write": uuid.uuid4().hex,
            "epoch": self.epoch,
            "claim": self.claim,
            "owner": asdict(self.owner) if self.owner else None,
            "seconds": self.seconds,
            "commits": {name: document_of(record, numbers) for name, record in self.commits.items()},
            "announced": dict(self.announced),
            "segments": [[*segment, *span] for segment, span in self.segments.items()],
        }
        if numbers:
            said["contents"] = table_of(numbers)
            said["bad"] = [number for held, number in numbers.items() if held in self.bad]
        if self.pins:
            pins = self.pins.items()
            said["pins"] = {
                mark: [at.isoformat() if at else "", [numbers[each] for each in held]]
                for mark, (at, held) in pins
            }
        line = json.dumps(said, separators=(",", ":")).encode()
        return b"".join([line, b"\n", *(record.inline for record in self.commits.values())])


@dataclass(frozen=True, slots=True)
class Seen:
    """A head as it was read or written. `tag`: None if there was none; `at`: when it was written."""

    head: Head
    tag: Tag | None = None
    at: datetime | None = None


Change = Callable[[Head], Head | None]
"""What a head is to become; None if it is so already. May refuse by raising."""


class Heads:
    """The heads in one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, session: str) -> Seen:
        found = self._bucket.get(head_key(session))
        if found is None:
            return Seen(Head())
        return Seen(_decode(session, found.data), found.tag, found.at)

    def try_write(self, session: str, seen: Seen, head: Head) -> Seen | None:
        """In place of what was seen; None if that has changed."""
        tag = self._bucket.swap(head_key(session), head.encode(), seen.tag)
        return None if tag is None else Seen(head, tag)

    def update(self, session: str, change: Change, seen: Seen | None = None) -> Seen:
        """Carry out a change, once. `seen`: what the head was when last looked at.

        ServerGone: it may have been carried out or not.
        """
        patience = Patience()
        while True:
            try:
                seen = seen or self.read(session)
                head = change(seen.head)
                if head is None:
                    return seen
                written = self.try_write(session, seen, head)
                if written is not None:
                    return written
                time.sleep(random.random() * 0.02)  # others want it, too
            except ServerGone:
                if patience.over():
                    raise
            seen = None

    def sessions(self) -> list[str]:
        """The one whose head was written last first."""
        found = sorted(self._bucket.list("sessions"), key=lambda entry: entry.at, reverse=True)
        return [entry.key.rpartition("/")[2] for entry in found]


def _moment(said: str) -> datetime | None:
    return datetime.fromisoformat(said).astimezone(UTC) if said else None


def _decode(session: str, raw: bytes) -> Head:
    line, _, inline = raw.partition(b"\n")
    where = head_key(session)
    try:
        said = json.loads(line)
        table = held_in(said.get("contents", {}))
        commits = zip(said["commits"], records_of(said["commits"].values(), inline, table), strict=True)
        pins = said.get("pins", {}).items()
        return Head(
            epoch=claims.number(said["epoch"], where),
            claim=said["claim"],
            owner=claims.owner_of(said["owner"], where) if said["owner"] else None,
            seconds=float(said["seconds"]),
            commits=dict(commits),
            announced={mark: Announced(n, tuple(former)) for mark, (n, former) in said["announced"].items()},
            segments={(epoch, after): Span(*span) for epoch, after, *span in said["segments"]},
            pins={mark: Pin(_moment(at), tuple(numbers_in(table, which))) for mark, (at, which) in pins},
            bad=frozenset(numbers_in(table, said.get("bad", ()))),
        )
    except DAMAGED as error:
        raise CheckpointCorrupt(
            f"What says who owns session {session!r} is damaged ({head_key(session)}): {error!r}.",
            hint="Restore that object from a version or a backup of the bucket.",
            session=session,
            path=head_key(session),
        ) from error
