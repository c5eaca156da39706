"""What is kept of checkpoints: records, and the two kinds of objects that they are in.

    sessions/{id}    {write, epoch, claim, owner, seconds, commits, announced, segments} \\n inline
                     and contents {mark: [[name, size], …]}, bad [number, …], pins {mark: [at, [number, …]]}
    names/{name}     {write, name, record} \\n inline: one whose name is not one that its session has given it

    a record         [tag, epoch, nonce, stage, {part: [data, start, size]}, [[mark, size], …], inline,
                     number, session … , [[number, …], alone]]       the last if it holds contents

The head of a session says who owns it and what it has.
Promise: whatever must not happen after a session was lost is a change of its head, and a head changes
only from what its writer has seen (`swap`). So a claim and a commit cannot both succeed, whatever any
clock says, and of two claims one does. A change whose reply was lost is looked for before it is made
again. `write` is new in each, because equal bytes have equal tags.

Its price: a commit writes the whole head, some 200 bytes for each checkpoint that the session has kept,
and the small parts of the last ones, up to INLINE bytes in all (objects_trio.py). Contents are in one table
that checkpoints and saves name by number: up to LISTED bytes, after which nothing more is shared.

The object of a name changes only from what its writer has seen, too. It stays when its checkpoint is
deleted and says that nothing is there, because without it a late writer could not be told.

A part is in one of the record's data (objects_chunks.py), or, if it is small, inline: behind the line of
JSON that the record is in, so that one request writes it and one reads it. `data`: which, -1 for inline;
`inline`: how many bytes there are behind the line.
A content is data, too, under the mark of the save that wrote it and its own name. `number`: which of the
table of its head; `alone`: a mark whose contents are this checkpoint's only, and in no table.
Promise: a meta that is put alone is put beside the other parts of its stage, wherever they are.
Not here: what a claim needs (objects_lease.py), and when a name has to change (objects_put.py,
objects_orphans.py).
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from graflow_ckpt.core.errors import CheckpointCorrupt, ServerGone
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.names import META, is_content
from graflow_ckpt.stores.objects_bucket import Bucket, Patience, Tag
from graflow_ckpt.stores.objects_chunks import piece_keys
from graflow_ckpt.stores.objects_names import Target, data_key, decoded, head_key, segment_name

MOST = 1 << 44  # bytes of one checkpoint; a damaged record is not to become a billion keys
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What decoding raises if something else has written a document."""


class Extent(NamedTuple):
    """A part. `data`: the mark of the data that it is in; empty if it is inline."""

    data: str
    start: int
    size: int


class Held(NamedTuple):
    """A content. `name`: empty for all that are under a mark."""

    mark: str
    name: str
    size: int

    @property
    def data(self) -> str:
        """As marks of data are written."""
        return f"{self.mark}/{self.name}" if self.name else self.mark


@dataclass(frozen=True, slots=True)
class Record:
    """One checkpoint. `data`: the size of each by its mark; `number`: of the commit within its head."""

    tag: str
    epoch: int
    nonce: str
    stage: str
    parts: Mapping[str, Extent] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)
    inline: bytes = field(default=b"", repr=False)
    number: int = 0
    session: str = ""  # that its meta names
    contents: Mapping[str, Held] = field(default_factory=dict)  # by name
    alone: str = ""

    @property
    def mark(self) -> str:
        """What the data that is written with it is called, alone."""
        return f"{self.epoch}-{self.nonce}"

    def key(self, data: str) -> str:
        """What the keys of that data are under."""
        return data_key(self.tag, data)

    def data_keys(self, unless: Record | None = None) -> list[str]:
        """Of all its data, except what another record has, too."""
        others = unless.data if unless is not None else {}
        found = (piece_keys(self.key(mark), size) for mark, size in self.data.items() if mark not in others)
        return [key for keys in found for key in keys]

    def held(self) -> Iterator[Held]:
        yield from self.contents.values()
        if self.alone:
            yield Held(self.alone, "", 0)

    def adopting(self, former: Record | None) -> Record:
        """With those parts of the one that it replaces which belong to the same stage and are not its own."""
        if former is None or former.stage != self.stage:
            return self
        parts, data, inline = dict(self.parts), dict(self.data), bytearray(self.inline)
        for part, extent in former.parts.items():
            if part in self.parts:
                continue
            if extent.data:
                parts[part], data[extent.data] = extent, former.data[extent.data]
            else:
                parts[part] = Extent("", len(inline), extent.size)
                inline += former.inline[extent.start : extent.start + extent.size]
        return replace(self, parts=parts, data=data, inline=bytes(inline))


def numbered(held: Iterable[Held]) -> dict[Held, int]:
    """The numbers of contents in a table."""
    return {each: number for number, each in enumerate(sorted(each for each in held if each.name))}


def table_of(numbers: Iterable[Held]) -> dict[str, list[Any]]:
    """For each mark the names and sizes under it, in the order of their numbers."""
    table: dict[str, list[Any]] = {}
    for mark, name, size in numbers:
        table.setdefault(mark, []).append([name, size])
    return table


def held_in(table: Mapping[str, Iterable[Sequence[Any]]]) -> list[Held]:
    """By their numbers."""
    found = [Held(mark, name, _within(0, size, MOST)) for mark, rows in table.items() for name, size in rows]
    if wrong := next((each.name for each in found if not is_content(each.name)), None):
        raise ValueError(f"{wrong!r} is no name of a content")
    return found


def document_of(record: Record, numbers: Mapping[Held, int]) -> list[Any]:
    """All but the bytes that are inline."""
    marks = list(record.data)
    parts = {
        part: [marks.index(data) if data else -1, start, size]
        for part, (data, start, size) in record.parts.items()
    }
    said = [record.tag, record.epoch, record.nonce, record.stage]
    said += [parts, list(record.data.items()), len(record.inline), record.number, record.session]
    holds = [[numbers[held] for held in record.contents.values()], record.alone]
    return [*said, holds] if any(holds) else said


def records_of(
    documents: Iterable[Sequence[Any]], inline: bytes, table: Sequence[Held] = ()
) -> Iterator[Record]:
    """`inline`: of all of them, one after the other. ValueError if it is not what they say."""
    at = 0
    for tag, epoch, nonce, stage, parts, data, length, number, session, *holds in documents:
        own, at = inline[at : at + length], at + length
        sizes = {str(mark): _within(0, size, MOST) for mark, size in data}
        marks = list(sizes)
        places: dict[str, Extent] = {}
        for part, (which, start, size) in parts.items():
            mark, room = ("", len(own)) if which < 0 else (marks[which], sizes[marks[which]])
            places[part] = Extent(mark, int(start), _within(start, size, room))
        if META not in places:
            raise ValueError(f"{nonce} has no meta")
        numbers, alone = holds[0] if holds else ((), "")
        contents = {held.name: held for held in numbers_in(table, numbers)}
        yield Record(
            tag, int(epoch), nonce, stage, places, sizes, own, int(number), session, contents, str(alone)
        )
    if at != len(inline):
        raise ValueError(f"{len(inline)} bytes are there, and {at} belong to a checkpoint")


def numbers_in(table: Sequence[Held], numbers: Iterable[int]) -> list[Held]:
    """Those of a table that have these numbers."""
    found = []
    for number in numbers:
        _within(number, 1, len(table))
        found.append(table[number])
    return found


def _within(start: int, size: int, room: int) -> int:
    """The size, which somebody else may have written."""
    if not 0 <= start <= start + size <= room:
        raise ValueError(f"{size} bytes from {start} are not within {room}")
    return int(size)


# --- the head of a session -----------------------------------------------------------------


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


# --- the object of a name ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NameSeen:
    """What a name points at. `tag`: None if it never did."""

    record: Record | None = None
    tag: Tag | None = None


class Names:
    """Those of one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self, target: Target) -> NameSeen:
        found = self._bucket.get(target.key)
        return NameSeen() if found is None else NameSeen(named(target.key, found.data)[1], found.tag)

    def swap(self, target: Target, record: Record | None, seen: NameSeen) -> bool:
        """In place of what was seen; False if that has changed."""
        said = {"write": uuid.uuid4().hex, "name": target.base, "record": record and document_of(record, {})}
        line = json.dumps(said, separators=(",", ":")).encode()
        data = b"\n".join([line, record.inline if record else b""])
        return self._bucket.swap(target.key, data, seen.tag) is not None

    def touch(self, target: Target) -> Record | None:
        """Change the object of a name and not what it says: who has seen it before can no longer write."""
        while True:
            seen = self.read(target)
            if self.swap(target, seen.record, seen):
                return seen.record

    def clear(self, target: Target) -> Record | None:
        """Let a name point at nothing; what it pointed at."""
        patience = Patience()
        gone: Record | None = None
        while True:
            try:
                seen = self.read(target)
                if seen.record is None or (gone is not None and seen.record.nonce != gone.nonce):
                    return gone  # also if the reply was lost
                gone = seen.record
                if self.swap(target, None, seen):
                    return gone
                gone = None  # somebody else was faster
            except ServerGone:
                if patience.over():
                    raise


def named(key: str, raw: bytes) -> tuple[str, Record | None]:
    """The name, and what it points at."""
    line, _, inline = raw.partition(b"\n")
    try:
        said = json.loads(line)
        found = list(records_of([said["record"]] if said["record"] else [], inline))
        return str(said["name"]), found[0] if found else None
    except DAMAGED as error:
        base = decoded(key.rpartition("/")[2])
        raise CheckpointCorrupt(
            f"What says where the checkpoint {base!r} is, is damaged ({key}): {error!r}.",
            hint="Remove that object, or restore it from a version or a backup of the bucket.",
            path=base,
        ) from error
