"""The head of a session: one small object that says who owns it and what it has.

    sessions/{id}   {write, epoch, claim, owner, seconds, lines, commits, announced, segments}

Promise: whatever must not happen after a session was lost is a change of its head, and a head changes
only from what its writer has seen (`swap`). So a claim and a commit cannot both succeed, whatever any
clock says, and of two claims one does. A change whose reply was lost is looked for before it is made
again. `write` is new in each, because equal bytes have equal tags.

Its price: a commit writes the whole head, some 200 bytes for each checkpoint that the session has kept.
Not here: what a claim needs (objects_lease.py), and where the bytes of a checkpoint are (objects_trio.py).
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

from graflow_ckpt.core.errors import CheckpointCorrupt, ServerGone
from graflow_ckpt.core.protocols import Line, Owner
from graflow_ckpt.stores.objects_bucket import Bucket, Patience, Tag
from graflow_ckpt.stores.objects_names import data_key, head_key

OPEN = -1  # the end of a segment that is not closed


@dataclass(frozen=True, slots=True)
class Record:
    """One checkpoint: where each part begins in its data, and how long it is."""

    tag: str
    epoch: int
    nonce: str
    stage: str
    parts: Mapping[str, tuple[int, int]]
    number: int = 0  # of the commit within its head
    session: str = ""  # that its meta names

    @property
    def mark(self) -> str:
        """What its data is called, alone."""
        return f"{self.epoch}-{self.nonce}"

    @property
    def data(self) -> str:
        """What the keys of its data are under."""
        return data_key(self.tag, self.mark)

    @property
    def size(self) -> int:
        return sum(length for _, length in self.parts.values())


class Announced(NamedTuple):
    """A write to a name that is not the session's own. `former`: the mark of what it will replace."""

    name: str
    former: str


@dataclass(frozen=True, slots=True)
class Head:
    """Epoch 0: nobody has owned the session here yet."""

    epoch: int = 0
    claim: str = ""
    owner: Owner | None = None
    seconds: float = 0.0  # after which a silent owner counts as dead
    lines: tuple[Line, ...] = ()
    commits: Mapping[str, Record] = field(default_factory=dict)
    announced: Mapping[str, Announced] = field(default_factory=dict)  # by the mark of the write
    segments: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (epoch, after) -> end

    def committed(self, base: str, record: Record) -> Head:
        number = max((kept.number for kept in self.commits.values()), default=0) + 1
        return replace(self, commits={**self.commits, base: replace(record, number=number)})

    def without(self, base: str) -> Head:
        return replace(self, commits={name: kept for name, kept in self.commits.items() if name != base})

    def encode(self) -> bytes:
        said = {
            "write": uuid.uuid4().hex,
            "epoch": self.epoch,
            "claim": self.claim,
            "owner": asdict(self.owner) if self.owner else None,
            "seconds": self.seconds,
            "lines": [[line.epoch, line.sequence] for line in self.lines],
            "commits": {name: document_of(record) for name, record in self.commits.items()},
            "announced": dict(self.announced),
            "segments": [[*segment, end] for segment, end in self.segments.items()],
        }
        return json.dumps(said, separators=(",", ":")).encode()


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


def document_of(record: Record) -> list[Any]:
    parts = {part: list(place) for part, place in record.parts.items()}
    return [record.tag, record.epoch, record.nonce, record.stage, parts, record.number, record.session]


def record_of(said: list[Any]) -> Record:
    tag, epoch, nonce, stage, parts, number, session = said
    places = {part: (int(start), int(length)) for part, (start, length) in parts.items()}
    return Record(tag, int(epoch), nonce, stage, places, int(number), session)


def _decode(session: str, raw: bytes) -> Head:
    try:
        said = json.loads(raw)
        owner = said["owner"]
        return Head(
            epoch=int(said["epoch"]),
            claim=said["claim"],
            owner=Owner(**{field.name: owner[field.name] for field in fields(Owner)}) if owner else None,
            seconds=float(said["seconds"]),
            lines=tuple(Line(epoch, sequence) for epoch, sequence in said["lines"]),
            commits={name: record_of(record) for name, record in said["commits"].items()},
            announced={mark: Announced(*write) for mark, write in said["announced"].items()},
            segments={(epoch, after): end for epoch, after, end in said["segments"]},
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointCorrupt(
            f"What says who owns session {session!r} is damaged ({head_key(session)}): {error!r}.",
            hint="Restore that object from a version or a backup of the bucket.",
            session=session,
            path=head_key(session),
        ) from error
