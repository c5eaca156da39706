"""What is kept of one checkpoint: where each of its parts is.

    [tag, epoch, nonce, stage, {part: [data, start, size]}, [[mark, size], …], inline, number, session]

A part is in one of the record's data (objects_chunks.py), or, if it is small, inline: behind the line of
JSON that the record is in, so that one request writes it and one reads it. `data`: which, -1 for inline;
`inline`: how many bytes there are behind the line.

Promise: a meta that is put alone is put beside the other parts of its stage, wherever they are.
Not here: the objects that records are in (objects_head.py, objects_trio.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from graflow_ckpt.stores.objects_chunks import piece_keys
from graflow_ckpt.stores.objects_names import PARTS, data_key

MOST = 1 << 44  # bytes of one checkpoint; a damaged record is not to become a billion keys
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What decoding raises if something else has written a document."""


class Extent(NamedTuple):
    """A part. `data`: the mark of the data that it is in; empty if it is inline."""

    data: str
    start: int
    size: int


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


def document_of(record: Record) -> list[Any]:
    """All but the bytes that are inline."""
    marks = list(record.data)
    parts = {
        part: [marks.index(data) if data else -1, start, size]
        for part, (data, start, size) in record.parts.items()
    }
    said = [record.tag, record.epoch, record.nonce, record.stage]
    return [*said, parts, list(record.data.items()), len(record.inline), record.number, record.session]


def records_of(documents: Iterable[Sequence[Any]], inline: bytes) -> Iterator[Record]:
    """`inline`: of all of them, one after the other. ValueError if it is not what they say."""
    at = 0
    for tag, epoch, nonce, stage, parts, data, length, number, session in documents:
        own, at = inline[at : at + length], at + length
        sizes = {str(mark): _within(0, size, MOST) for mark, size in data}
        marks = list(sizes)
        places: dict[str, Extent] = {}
        for part, (which, start, size) in parts.items():
            mark, room = ("", len(own)) if which < 0 else (marks[which], sizes[marks[which]])
            places[part] = Extent(mark, int(start), _within(start, size, room))
        if PARTS[-1] not in places:
            raise ValueError(f"{nonce} has no meta")
        yield Record(tag, int(epoch), nonce, stage, places, sizes, own, int(number), session)
    if at != len(inline):
        raise ValueError(f"{len(inline)} bytes are there, and {at} belong to a checkpoint")


def _within(start: int, size: int, room: int) -> int:
    """The size, which somebody else may have written."""
    if not 0 <= start <= start + size <= room:
        raise ValueError(f"{size} bytes from {start} are not within {room}")
    return int(size)
