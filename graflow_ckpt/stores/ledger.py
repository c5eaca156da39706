"""The contents of a session's lock file: epoch, claim, owner and lines, in two slots written in turns.

Promise: after a crash in the middle of `write` the former record is read, or the new one; never
neither. Holds as long as the former one was synced, which `write` sees to and a claim makes sure of.
The picture of the bytes is in ownership.py. Not here: who may write, and when.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass, replace

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Line, Owner
from graflow_ckpt.stores.claims import lines_of, nonsense, number, owner_of, parsed
from graflow_ckpt.stores.disk import Disk
from graflow_ckpt.stores.flock import Flock

SLOT = 8192
_WHERE = "a lock file"


@dataclass(frozen=True, slots=True)
class Record:
    """What the lock file says. Epoch 0: it says nothing."""

    turn: int = 0
    epoch: int = 0
    owner: Owner | None = None
    lines: tuple[Line, ...] = ()
    claim: str = ""  # which claim of this epoch; empty in files of versions that wrote none

    def claimed(self, epoch: int, owner: Owner, claim: str) -> Record:
        return replace(self, turn=self.turn + 1, epoch=epoch, owner=owner, claim=claim)

    def without_owner(self) -> Record:
        return replace(self, turn=self.turn + 1, owner=None)

    def with_line(self, line: Line) -> Record:
        return replace(self, turn=self.turn + 1, lines=(*self.lines, line))

    def encode(self) -> bytes:
        said = {
            "turn": self.turn,
            "epoch": self.epoch,
            "claim": self.claim,
            "owner": asdict(self.owner) if self.owner else None,
            "lines": [[line.epoch, line.sequence] for line in self.lines],
        }
        body = json.dumps(said, separators=(",", ":")).encode()
        return b"%08x %s\n" % (zlib.crc32(body), body)


class Slots:
    """An open lock file."""

    __slots__ = ("_written", "disk", "lock")

    def __init__(self, disk: Disk, lock: Flock) -> None:
        self.disk = disk
        self._written = b""
        self.lock = lock

    def read(self) -> Record:
        return read_record(self._bytes())

    def unchanged(self) -> bool:
        """Whether the file is what was last written here, and still in its place. Costs one read."""
        return self._bytes() == self._written and not self.removed()

    def removed(self) -> bool:
        return os.fstat(self.lock.fd).st_nlink == 0

    def write(self, record: Record) -> Record:
        """Durable when it returns. The record with fewer lines, if not all of them had room."""
        data = record.encode()
        if len(data) > SLOT:
            record = replace(record, lines=still_needed(record.lines))
            data = record.encode()
        if len(data) > SLOT:
            raise CheckpointError(
                f"No room for one more rewind in {self.lock.path} ({len(record.lines)} are in it).",
                hint="Go on under a new session id (fork).",
                path=self.lock.path,
            )
        at, offset = 0, record.turn % 2 * SLOT
        while at < len(data):
            at += self.disk.write_at(self.lock.fd, data[at:], offset + at)
        self.disk.sync_data(self.lock.fd)  # else the next write could tear the only slot that is safe
        self._written = self._bytes()
        return record

    def _bytes(self) -> bytes:
        return os.pread(self.lock.fd, 2 * SLOT, 0)


def read_record(raw: bytes) -> Record:
    """The valid slot of the higher turn; an empty record if there is none."""
    found = [record for at in (0, SLOT) if (record := _decode(raw[at : at + SLOT]))]
    return max(found, key=lambda record: record.turn, default=Record())


def still_needed(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Without those that a later line says as well: it goes back as far or further."""
    kept: list[Line] = []
    for line in reversed(lines):
        if not kept or line.sequence < kept[-1].sequence:
            kept.append(line)
    return tuple(reversed(kept))


def _decode(slot: bytes) -> Record | None:
    line, end, _ = slot.partition(b"\n")
    crc, _, body = line.partition(b" ")
    if not end or crc != b"%08x" % zlib.crc32(body):
        return None
    found = parsed(body, _WHERE)  # the checksum fits, which anybody can see to
    try:
        turn, epoch, owner, lines = (found[name] for name in ("turn", "epoch", "owner", "lines"))
        claim = found.get("claim", "")
    except (TypeError, LookupError, AttributeError) as error:
        raise nonsense(_WHERE) from error
    if type(claim) is not str:
        raise nonsense(_WHERE)
    return Record(
        turn=number(turn, _WHERE),
        epoch=number(epoch, _WHERE),
        owner=owner_of(owner, _WHERE) if owner else None,
        lines=lines_of(lines, _WHERE),
        claim=claim,
    )
