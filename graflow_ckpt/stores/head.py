"""The head of a session: its owner and its checkpoints. It changes only from what was seen.

    {write, last, epoch, claim, owner, seconds, n, checkpoints: {name: record}, freed, pins, bad} \\n inline

    pages       {mark: names in it that are gone}: records that were moved there
    a record    [mark, number, stage, {part: [start, size]}, size, meta, contents, inline]
    meta        its size, or, where it was put alone, [mark, size]
    inline      how many bytes are in the head; -1: its stream is behind its meta
    contents    [[name, mark, size], …]

Promise: a claim, a commit, a deletion and a pin are each one change of the head, so that of two which cannot
both be one is refused, without any clock. `write` is new in each: equal bytes would have equal tags in a
bucket. `last`: that of the owner's last change. An owner that does not find it there knows
that the place has lost what was confirmed (a failover, a backup), and stops.

A record never changes; its text is kept, so a commit encodes one. Of those in pages it looks only at what it
replaces, so it costs the same however many checkpoints there are.

A content stays as long as a record holds it, or the pin of a save. While another process owns the session,
what a deletion releases is `freed`: its owner may just have found it, and removes it, or holds it again, with
its next commit. Not here: when a head may be changed (keyed.py, lease.py).
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from graflow_ckpt.core.errors import CheckpointCorrupt, SchemaUnsupported
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.stores import owners
from graflow_ckpt.stores.names import is_content, session_of

_MOST = 1 << 44  # bytes of one checkpoint; a damaged record is not to become a billion keys
_MARK = re.compile(r"(\d{1,18})-[0-9a-f]{1,60}\Z", re.ASCII)
_PLAIN = re.compile(r"[\w.~-]*\Z", re.ASCII)
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


# --- names of keys -------------------------------------------------------------------------


def scope_of(base: str) -> str:
    """Return the scope whose head lists a checkpoint of that name: its session, or its own."""
    return session_of(base) or f"@{encoded(base)}"


def encoded(name: str) -> str:
    """Return a name as a key has it. Not with `%`, which clients encode once more."""
    if _PLAIN.match(name):
        return name
    return quote(name, safe="", errors="surrogatepass").replace("%", "=")


def decoded(text: str) -> str:
    return unquote(text.replace("=", "%"), errors="surrogatepass")


def nonce() -> str:
    """Return what was never written before."""
    return os.urandom(9).hex()


def new_mark(epoch: int) -> str:
    """Return the mark under which a save writes. It rises: what is written together is kept together."""
    return f"{epoch}-{time.time_ns() // 1000:014x}{os.urandom(8).hex()}"


def epoch_in(mark: str) -> int:
    """Return the epoch of the save; raise ValueError for what is no mark."""
    if (found := _MARK.match(mark)) is None:
        raise ValueError(f"{mark!r} is no mark of a save")
    return int(found[1])


def is_mark(text: str) -> bool:
    return _MARK.match(text) is not None


def head_key(scope: str) -> str:
    return f"head/{scope}"


def lease_key(session: str, claim: str) -> str:
    return f"lease/{session}/{claim}"


def meta_key(scope: str, mark: str, base: str) -> str:
    """Return a meta's key. A scope that is a name is not repeated: keys must not be longer than allowed."""
    return f"data/{scope}/{mark}/m.{'' if scope.startswith('@') else encoded(base)}"


def page_key(scope: str, mark: str) -> str:
    return f"data/{scope}/{mark}/page"


def base_in(key: str) -> str:
    """Return the name of the checkpoint whose meta has that key."""
    mark, _, name = key.rpartition("/m.")
    return decoded(name or mark.rpartition("/")[0].partition("/@")[2])


def chunk_keys(scope: str, stream: str, size: int, chunk: int) -> list[str]:
    """List keys. `stream`: a mark, or a mark and a content; `chunk`: bytes under each, but for the last."""
    return [f"data/{scope}/{stream}/{number:06}" for number in range(-(-size // chunk))]


_dumped = json.JSONEncoder(separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii


# --- records -------------------------------------------------------------------------------


class Held(NamedTuple):
    """A content, with the mark of the save that wrote it."""

    name: str
    mark: str
    size: int

    @property
    def stream(self) -> str:
        return f"{self.mark}/{self.name}"


class _Record(NamedTuple):
    base: str
    mark: str
    number: int
    stage: str
    parts: Mapping[str, tuple[int, int]] = {}
    size: int = 0
    meta: tuple[str, int] = ("", 0)
    contents: tuple[Held, ...] = ()
    inline: bytes = b""
    behind: bool = False


class HeadRecord(_Record):
    """One checkpoint, and its name. `meta`: the mark that it is under, and its size.

    `size`: of the stream; `inline`: what of it is in the head: the meta, or the stream and then the meta;
    `behind`: the stream is under the meta's key, behind the meta.
    """

    def keys(self, scope: str, chunk: int) -> list[str]:
        """Return all keys that are its own, but for contents."""
        keys = [] if self.inline else [meta_key(scope, self.meta[0], self.base)]
        apart = self.stream is None and not self.behind
        return keys + (chunk_keys(scope, self.mark, self.size, chunk) if apart else [])

    @property
    def stream(self) -> bytes | None:
        """The stream, if it is in the head."""
        return (
            self.inline[: self.size] if self.inline and len(self.inline) == self.size + self.meta[1] else None
        )

    def divided(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Return the meta in what is under its key, and the stream behind it. Another length is damage."""
        if not self.behind:
            return data, None
        size = self.meta[1]
        return (data[:size], data[size:]) if len(data) == size + self.size else (b"", None)

    @cached_property
    def held(self) -> Mapping[str, Held]:
        """Its contents by name."""
        return {held.name: held for held in self.contents}

    @cached_property
    def text(self) -> str:
        """The record as it is in the head: all but the bytes that are inline."""
        meta = str(self.meta[1]) if self.meta[0] == self.mark else _dumped(self.meta)
        parts = ",".join([f"{_quoted(part)}:[{start},{size}]" for part, (start, size) in self.parts.items()])
        inline = -1 if self.behind else len(self.inline)
        return (  # by hand, but for texts: an encoder that is begun anew takes longer than all of the rest
            f'{_quoted(self.base)}:["{self.mark}",{self.number},{_quoted(self.stage)},{{{parts}}},{self.size},'
            f"{meta},{_dumped(self.contents) if self.contents else '[]'},{inline}]"
        )


_text, _inline = attrgetter("text"), attrgetter("inline")


class Page(dict[str, HeadRecord]):
    """Records by name that a head has no room for. It never changes: the head says which of them are gone."""

    @cached_property
    def contents(self) -> frozenset[str]:
        """The names of what they hold."""
        return frozenset([held.name for record in self.values() for held in record.contents])


class Pin(NamedTuple):
    """The contents that a save under way has found. `at`: by the place's clock, if it has no lease."""

    at: float
    held: tuple[Held, ...]


class Head(NamedTuple):
    """Epoch 0: no process has owned the session here yet."""

    epoch: int = 0
    claim: str = ""
    owner: Owner | None = None
    seconds: float = 0.0  # after which a silent owner counts as dead
    last: str = ""
    number: int = 0  # of the last commit
    records: Mapping[str, HeadRecord] = {}  # by name, the last committed at the end; `get` finds the others
    pages: Mapping[str, Page] = {}  # by mark: the older ones, which are not written here
    gone: Mapping[str, frozenset[str]] = {}  # by mark: names in a page that are no more, or are here again
    freed: frozenset[Held] = frozenset()
    pins: Mapping[str, Pin] = {}  # by the mark of the save
    bad: frozenset[Held] = frozenset()  # damaged: no save is to hold them again
    segments: tuple[str, ...] = ()  # that the owner has begun; only where batches are not atomic
    announced: tuple[str, ...] = ()  # names that the owner is writing to; likewise

    def get(self, base: str) -> HeadRecord | None:
        found = self.records.get(base)
        if found is None and (mark := self._page_of(base)) is not None:
            return self.pages[mark][base]
        return found

    def all(self) -> Iterator[HeadRecord]:
        """Yield all records, the last committed at the end."""
        for mark, page in self.pages.items():
            gone = self.gone.get(mark, ())
            yield from [record for name, record in page.items() if name not in gone]
        yield from self.records.values()

    def _page_of(self, base: str) -> str | None:
        for mark, page in self.pages.items():
            if base in page and base not in self.gone.get(mark, ()):
                return mark
        return None

    def holding(self, record: HeadRecord, without: Iterable[str] = ()) -> Head:
        """Return a head with this record in the place of any other of that name, and of these."""
        records, gone = self._without((record.base, *without))
        records[record.base] = record
        return self._replace(number=max(self.number, record.number), records=records, gone=gone)

    def without(self, bases: Iterable[str]) -> Head:
        records, gone = self._without(bases)
        return self._replace(records=records, gone=gone)

    def _without(self, bases: Iterable[str]) -> tuple[dict[str, HeadRecord], Mapping[str, frozenset[str]]]:
        records, gone = dict(self.records), self.gone
        for base in bases:
            if records.pop(base, None) is None and (mark := self._page_of(base)) is not None:
                gone = {**gone, mark: gone.get(mark, frozenset()) | {base}}
        return records, gone

    def without_pin(self, mark: str) -> Head:
        return self._replace(pins={other: pin for other, pin in self.pins.items() if other != mark})

    def held(self) -> set[Held]:
        """Return what is held by checkpoints and by saves."""
        found = {held for record in self.all() for held in record.contents}
        return found.union(*(pin.held for pin in self.pins.values()))

    def loose(self, went: Iterable[Held]) -> set[Held]:
        """Return those of these contents that no checkpoint and no save holds."""
        if not (left := set(went).difference(*[pin.held for pin in self.pins.values()])):
            return left
        names = {held.name for held in left}
        for record in self._holders(names):
            left = {held for held in left if record.held.get(held.name) != held}
            names.intersection_update([held.name for held in left])
        return left

    def find(self, names: Iterable[str]) -> dict[str, Held]:
        """Return those of these contents that a save may hold, too."""
        found: dict[str, Held] = {}
        left = set(names)
        for kept in (self.freed, *[pin.held for pin in self.pins.values()]):
            found |= {held.name: held for held in kept if held.name in left and held not in self.bad}
        left -= found.keys()
        for record in self._holders(left):
            its = [record.held[name] for name in left & record.held.keys()]
            found |= {held.name: held for held in its if held not in self.bad}
            left -= found.keys()
        return found

    def _holders(self, names: set[str]) -> Iterator[HeadRecord]:
        """Yield the records that may hold contents of these names, until the caller has emptied the set. The
        newest comes first, which holds most of what the next one does."""
        for record in reversed([*self.records.values()]):
            if not names:
                return
            yield record
        for mark, page in self.pages.items():
            if not names.isdisjoint(page.contents):
                gone = self.gone.get(mark, ())
                yield from [record for name, record in page.items() if name not in gone]

    # --- bytes -------------------------------------------------------------------------

    def encode(self) -> bytes:
        rare, own = "", self.records.values()
        if self.pages:
            gone = {mark: _dumped(sorted(names)) for mark, names in self.gone.items()}
            pages = ",".join([f'"{mark}":{gone.get(mark, "[]")}' for mark in self.pages])
            rare = f',"pages":{{{pages}}}'
        if self.freed or self.bad or self.pins or self.segments or self.announced:
            said: dict[str, Any] = {"freed": sorted(self.freed), "bad": sorted(self.bad), "pins": self.pins}
            said |= {"segments": self.segments, "announced": self.announced}
            rare += "".join([f',"{name}":{_dumped(found)}' for name, found in said.items() if found])
        line = (
            f'{{"write":"{nonce()}","last":"{self.last}","epoch":{self.epoch},"claim":"{self.claim}",'
            f'"seconds":{self.seconds!r},"n":{self.number},"owner":{_owner(self.owner)}{rare},'
            f'"checkpoints":{{{",".join(map(_text, own))}}}}}\n'
        )
        return b"".join([line.encode(), *map(_inline, own)])

    def is_full(self, encoded: bytes) -> bool:
        """Return whether it may have more than it should."""
        return len(self.records) >= MOST or bool(self.gone) or encoded.index(b"\n") > ROOM

    def turned(self, epoch: int) -> tuple[Head, tuple[str, bytes] | None, list[str]]:
        """Move the oldest records into a page, if there are many here. Return the head, the mark and bytes of
        that page, and the marks of pages that have nothing any more."""
        over = [mark for mark, names in self.gone.items() if len(names) == len(self.pages[mark])]
        moved: list[HeadRecord] = []
        large = len("".join(map(_text, self.records.values()))) > ROOM
        if large or len(self.records) >= MOST:
            moved = [*self.records.values()][: -1 if large else -STAYING]
        if not moved and not over:
            return self, None, over
        pages = {mark: page for mark, page in self.pages.items() if mark not in over}
        small = [mark for mark, page in pages.items() if len(page) < MOST * PAGES // 2]
        if moved and len(small) >= PAGES:  # the last ones: so the order stays
            over += small
            turned = self._replace(records={}, pages={mark: pages.pop(mark) for mark in small})
            moved = [*turned.all(), *moved]
        head = self._replace(pages=pages, gone={mark: self.gone[mark] for mark in self.gone if mark in pages})
        if not moved:
            return head, None, over
        mark = new_mark(epoch)
        line = f"{{{','.join(map(_text, moved))}}}\n"
        page = b"".join([line.encode(), *map(_inline, moved)])
        pages[mark] = Page({record.base: record for record in moved})
        records = {base: record for base, record in self.records.items() if base not in pages[mark]}
        return head._replace(records=records), (mark, page), over


FORMAT = 1
"""Of a head that names none. A later one, which this version would misread, names another."""

MOST, ROOM, STAYING = 24, 8 << 10, 4
"""Records that a head may have, and bytes of them. With more, all but the newest go into a page, which never
changes: so what a save writes is about as much as its own record."""

PAGES = 16
"""Small pages that a head may have. With one more, all of them become one."""


@lru_cache(64)
def _owner(owner: Owner | None) -> str:
    return _dumped(asdict(owner) if owner is not None else None)


def decode(scope: str, raw: bytes, pages_of: Callable[[Collection[str]], dict[str, Page]]) -> Head:
    """Return what `encode` has written; raise CheckpointCorrupt for the rest. `pages_of`: by mark."""
    line, _, inline = raw.partition(b"\n")
    where = head_key(scope)
    try:
        said = json.loads(line)
        if said.get("format", FORMAT) != FORMAT:
            raise _later(scope, said["format"])
        gone = {mark: frozenset(map(str, names)) for mark, names in said.get("pages", {}).items()}
        pages = pages_of(gone) if gone else {}
        return Head(
            epoch=owners.number(said["epoch"], where),
            claim=str(said["claim"]),
            owner=owners.owner_of(said["owner"], where) if said["owner"] else None,
            seconds=_seconds(said["seconds"]),
            last=str(said["last"]),
            number=owners.number(said["n"], where),
            records=dict(_records(said["checkpoints"], inline)),
            pages=pages,
            gone={mark: names & pages[mark].keys() for mark, names in gone.items() if names},
            freed=frozenset(_held(said.get("freed", ()))),
            pins=dict(_pins(said.get("pins", {}))),
            bad=frozenset(_held(said.get("bad", ()))),
            segments=tuple(map(str, said.get("segments", ()))),
            announced=tuple(map(str, said.get("announced", ()))),
        )
    except SchemaUnsupported:
        raise
    except _DAMAGED as error:
        raise CheckpointCorrupt(
            f"What says who owns session {scope!r} is damaged ({where}): {error!r}.",
            hint="Restore that key from a backup of the store.",
            session=scope,
            path=where,
        ) from error


def _later(scope: str, found: object) -> SchemaUnsupported:
    return SchemaUnsupported(
        f"Session {scope!r} was written by a later version: its head has format {found!r}, here {FORMAT}.",
        hint="Install that version of graflow-ckpt, or a later one.",
        session=scope,
        path=head_key(scope),
    )


def decode_page(scope: str, mark: str, raw: bytes) -> Page:
    """Return the records that a head has moved to a page."""
    line, _, inline = raw.partition(b"\n")
    try:
        return Page(_records(json.loads(line), inline))
    except _DAMAGED as error:
        raise CheckpointCorrupt(
            f"A page of checkpoints of session {scope!r} is damaged ({page_key(scope, mark)}): {error!r}.",
            hint="Restore that key from a backup of the store.",
            session=scope,
            path=page_key(scope, mark),
        ) from error


def _records(said: Mapping[str, list[Any]], inline: bytes) -> Iterator[tuple[str, HeadRecord]]:
    at = 0
    for base, (mark, number, stage, parts, size, meta, contents, count) in said.items():
        epoch_in(mark)
        if isinstance(meta, int):
            meta, length = mark, meta
        else:
            meta, length = meta
            epoch_in(meta)
        placed = {str(part): (int(start), _within(start, its, size)) for part, (start, its) in parts.items()}
        behind, count = count == -1, max(count, 0)
        own, at = inline[at : at + count], at + count
        if count not in (0, length, size + length):
            raise ValueError(f"{count} bytes of {base} are inline, and it has {size} and {length}")
        held = tuple(_held(contents))
        whole = _within(0, size, _MOST)
        its_meta = meta, _within(0, length, _MOST)
        yield base, HeadRecord(base, mark, int(number), stage, placed, whole, its_meta, held, own, behind)
    if at != len(inline):
        raise ValueError(f"{len(inline)} bytes are there, and {at} belong to a checkpoint")


def _pins(said: Mapping[str, tuple[float, list[Any]]]) -> Iterator[tuple[str, Pin]]:
    for mark, (at, held) in said.items():
        epoch_in(mark)
        yield mark, Pin(_seconds(at), tuple(_held(held)))


def _held(said: Iterable[Any]) -> Iterator[Held]:
    for name, mark, size in said:
        if not is_content(name):
            raise ValueError(f"{name!r} is no name of a content")
        epoch_in(mark)
        yield Held(name, mark, _within(0, size, _MOST))


def _seconds(said: Any) -> float:
    """Return the seconds of a lease, or of a clock; JSON may have what is neither."""
    if not 0 <= float(said) < math.inf:
        raise ValueError(f"{said} is no number of seconds")
    return float(said)


def _within(start: int, size: int, room: int) -> int:
    """Return the size, if it is within the room: another program may have written it."""
    if not 0 <= start <= start + size <= room:
        raise ValueError(f"{size} bytes from {start} are not within {room}")
    return int(size)
