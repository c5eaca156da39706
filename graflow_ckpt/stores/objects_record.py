"""What is kept of one checkpoint: where each of its parts is.

    [tag, epoch, nonce, stage, {part: [data, start, size]}, [[mark, size], …], inline, number, session]
    … , [[number, …], alone]]       if it holds contents

A part is in one of the record's data (objects_chunks.py), or, if it is small, inline: behind the line of
JSON that the record is in, so that one request writes it and one reads it. `data`: which, -1 for inline;
`inline`: how many bytes there are behind the line.
A content is data, too, under the mark of the save that wrote it and its own name. `number`: which of the
table of its head; `alone`: a mark whose contents are this checkpoint's only, and in no table.

Promise: a meta that is put alone is put beside the other parts of its stage, wherever they are.
Not here: the objects that records are in (objects_head.py, objects_trio.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from graflow_ckpt.stores.names import is_content
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
        if PARTS[-1] not in places:
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
