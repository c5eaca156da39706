"""Envelopes: a meta inside another one, with a note of the wrapper that wrote it.

    {"session_id": …, "status": …, …  WORD: {"stage": …, …, "meta": base64}}

The few fields by which stores find a checkpoint are copied to where a store looks for them, so that listings
and indexes work through a wrapper as they do without; they are copies, and whoever opens the envelope
holds them against what is inside. The meta itself comes back to the byte, also a damaged one.
`Enveloping` is the wrapper that writes such metas: its subclasses say what is noted, how a meta is kept and
how a part is. What has been noted of the newest metas seen here is remembered, for the parts that are asked
for next.
"""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound
from graflow_ckpt.core.protocols import CheckpointStore, Drops, Lease, PartWriter, Sink, Source
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.batches import Filters
from graflow_ckpt.stores.names import META, PARTS, Collected, base_of, document_in, facts_in, not_its

FIELDS = (
    "schema_version", "session_id", "workflow", "status", "cause", "epoch", "sequence", "created_at", "stage",
)  # fmt: skip
"""What is copied, if it is text or a whole number."""

_REMEMBERED = 256

# Any: what JSON can hold.
Document = dict[str, Any]
Note = TypeVar("Note")


def copied(raw: bytes) -> Document:
    """The fields of a meta that stores look at; none, if it is damaged."""
    found = facts_in(raw)
    return {name: found[name] for name in FIELDS if type(found.get(name)) in (str, int)}


def written(document: Mapping[str, Any]) -> bytes:
    """The one way to write an envelope: what is authenticated is these bytes."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode("ascii")


def opened(word: str, raw: bytes) -> tuple[Document, Document] | None:
    """The fields outside, and what the wrapper of that word has written. None: it did not write this."""
    found = document_in(raw)
    body = found.pop(word, None) if found is not None else None
    if found is None or not isinstance(body, dict) or not isinstance(body.get("stage"), str):
        return None
    return found, body


def packed(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def unpacked(text: object) -> bytes:
    """Raises ValueError for what was not packed."""
    if not isinstance(text, str):
        raise ValueError("no text")
    return b64decode(text, validate=True)


def stage_of(raw: bytes) -> str:
    """The stage that a meta without an envelope names; "" if it names none."""
    stage = facts_in(raw).get("stage")
    return stage if isinstance(stage, str) else ""


class Enveloping(Wrapper, Generic[Note]):
    """`Note` is what has to be known of a trio to read its parts. Not empty: each trio has one."""

    def __init__(self, inner: CheckpointStore, argument: str = "") -> None:
        super().__init__(inner, argument)
        self._notes: OrderedDict[str, tuple[str, Note]] = OrderedDict()
        self._mutex = threading.Lock()

    # --- what a subclass says ----------------------------------------------------------

    def _new_note(self) -> Note:
        """Of a trio that is about to be written."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """What has to be there to open anything at all; raises, if it is not."""

    def _close_meta(self, raw: bytes, stage: str, note: Note) -> bytes:
        """The envelope."""
        raise NotImplementedError

    def _open_meta(self, path: str, raw: bytes) -> tuple[bytes, str, Note]:
        """The meta, the stage that it belongs to, and the note; CheckpointError, if that cannot be told."""
        raise NotImplementedError

    def _write_part(self, part: str, stage: str, note: Note, writer: PartWriter, sink: Sink) -> None:
        raise NotImplementedError

    def _read_part(self, path: str, part: str, stage: str, note: Note, source: Source) -> Source:
        """CheckpointCorrupt, before anything is read of it, if it was not written with that note."""
        raise NotImplementedError

    # --- the store ---------------------------------------------------------------------

    def put(
        self,
        path: str,
        parts: Sequence[tuple[str, PartWriter]],
        *,
        lease: Lease | None,
        stage: str,
        drops: Drops = tuple,
    ) -> None:
        path = self._inner(path)
        whole = {part for part, _ in parts} >= set(PARTS)
        note = self._new_note() if whole else self._noted(path, stage) or self._new_note()
        kept = [(part, self._writer(part, stage, note, writer)) for part, writer in parts]
        self._forget(path)
        along = partial(self._drops, drops)
        self.inner.put(path, kept, lease=lease, stage=stage, drops=along)

    def meta(self, path: str) -> bytes:
        path = self._inner(path)
        return self._opened(path, self.inner.meta(path))

    def open(self, path: str, part: str, stage: str) -> Source:
        path = self._inner(path)
        with self._mutex:
            known = self._notes.get(base_of(path))
        if known is not None and known[0] == stage:
            try:
                return self._opened_part(path, part, stage, known[1])
            except CheckpointCorrupt:
                pass  # it may have been put anew under the same stage
        found, note = self._looked_up(path)
        if found != stage:
            raise not_its(path, part)
        return self._opened_part(path, part, stage, note)

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """What cannot be opened is listed as what cannot be read: with no bytes. `meta` says why."""
        inner = None if pattern is None else self._inner(pattern)
        for path, raw in self.inner.list(session, inner):
            yield self._outer(path), self._listed(path, raw)

    def newest(self, limit: int, **wanted: Unpack[Filters]) -> Sequence[tuple[str, bytes]]:
        found = self.inner.newest(limit, **wanted)
        return [(self._outer(path), self._listed(path, raw)) for path, raw in found]

    # --- within ------------------------------------------------------------------------

    def _writer(self, part: str, stage: str, note: Note, writer: PartWriter) -> PartWriter:
        def write(sink: Sink) -> None:
            if part != META:
                self._write_part(part, stage, note, writer, sink)
                return
            collected = Collected()
            writer(collected)
            sink.write(self._close_meta(bytes(collected.data), stage, note))

        return write

    def _listed(self, path: str, raw: bytes) -> bytes:
        self._prepare()
        try:
            return self._opened(path, raw)
        except CheckpointError:
            return b""

    def _opened(self, path: str, raw: bytes) -> bytes:
        meta, stage, note = self._open_meta(path, raw)
        with self._mutex:
            self._notes[base_of(path)] = stage, note
            self._notes.move_to_end(base_of(path))
            if len(self._notes) > _REMEMBERED:
                self._notes.popitem(last=False)
        return meta

    def _opened_part(self, path: str, part: str, stage: str, note: Note) -> Source:
        source = self.inner.open(path, part, stage)
        try:
            return self._read_part(path, part, stage, note, source)
        except BaseException:
            source.close()
            raise

    def _looked_up(self, path: str) -> tuple[str, Note]:
        """As it is now, whatever is remembered."""
        _, stage, note = self._open_meta(path, self.inner.meta(path))
        return stage, note

    def _noted(self, path: str, stage: str) -> Note | None:
        """Of the trio that is there, if it is of that stage: its parts stay, and so does what is noted."""
        try:
            found, note = self._looked_up(path)
        except (CheckpointNotFound, CheckpointCorrupt):
            return None
        return note if found == stage else None

    def _forget(self, path: str) -> None:
        with self._mutex:
            self._notes.pop(base_of(path), None)
