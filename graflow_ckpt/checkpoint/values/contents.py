"""Contents: what a checkpoint has in common with others. Large payloads of its pickle, each stored once.

    stored pickle   …opcodes…|          |…opcodes…|                         what is left of it: inline
    contents                  0a3f…: 4 MB          77c1…: 64 KB
    meta            "contents": [{"at": 212, "size": 4194304, "name": "0a3f…", "chunks": […]}, …]

`at` is where in what is left a content belongs; put together again, it is the plain pickle that it would
have been. A name is the digest of the bytes, or of the digests of their chunks if there are several. The
sealed meta has all of these digests: a reader gives the unpickler only what has been compared with them.

Promise: a payload that is there already is digested and not written; what is written is what was digested,
even if a thread changes the value meanwhile (then the save fails: else it would damage the checkpoints of
others that hold the same name). At most BATCH bytes of payloads wait to be looked up.
A target that shares contents gets those that it lacks, under the same names and digests. For any other one
(a folder as it is by default, a file that checkpoints travel in) they are put back into the pickle, whose
digest is then another one, and the meta is sealed again.
Not here: how long contents stay (the stores).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from blake3 import blake3

from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.checkpoint.values import pickles
from graflow_ckpt.checkpoint.values.digest import (
    CHUNK,
    Digest,
    DigestingSink,
    Hasher,
    Out,
    VerifyingSource,
    digest_of,
    fill,
)
from graflow_ckpt.core.errors import CheckpointCorrupt, GraflowError
from graflow_ckpt.core.protocols import CheckpointStore, Lease, Readable, Saving, Sink, Source
from graflow_ckpt.stores.around.encodings import KINDS, Encoding
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.names import is_content

BATCH: Final = 32 << 20
MOST: Final = 4096
"""Of one checkpoint: its meta lists them, and a listing of checkpoints reads it. The rest stays inline."""

log = logging.getLogger("graflow_ckpt.checkpoint")

_LIST: Final = "graflow_ckpt 2026 name of a content by its chunks"


@dataclass(frozen=True, slots=True)
class Content:
    """One payload that was left out of a pickle."""

    at: int
    name: str
    digest: Digest

    @property
    def plain(self) -> int:
        """The size in the pickle."""
        return self.digest.size if self.digest.plain is None else self.digest.plain

    def document(self) -> Document:
        found: Document = {"at": self.at, "size": self.digest.size, "name": self.name}
        if self.digest.plain is not None:
            found["plain"] = self.digest.plain
        return found if len(self.digest.chunks) == 1 else found | {"chunks": list(self.digest.chunks)}


def name_of(chunks: Sequence[str]) -> str:
    """Return the name of a content whose chunks have these digests."""
    if len(chunks) == 1:
        return chunks[0]
    return blake3("".join(chunks).encode(), derive_key_context=_LIST).hexdigest()


def contents_of(path: str, meta: Document) -> list[Content]:
    """Return what a meta says of its contents. It has to be sealed, or nothing of it is to be opened."""
    found, at = [], 0
    try:
        for entry in meta.get("contents", ()):
            chunks = tuple(entry.get("chunks", (entry["name"],)))
            content = Content(entry["at"], entry["name"], Digest(entry["size"], chunks, entry.get("plain")))
            if not (type(content.at) is type(content.digest.size) is int and content.digest.size > 0):
                raise ValueError("a size or a place is no number")
            if content.at < at or not is_content(content.name) or name_of(chunks) != content.name:
                raise ValueError(f"{content.name} is out of place, or not what its chunks are called")
            at = content.at
            found.append(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointCorrupt(
            f"Checkpoint {path} does not say which contents it holds: {error!r}.", path=path
        ) from error
    return found


# --- saving ----------------------------------------------------------------------------


class Depositor:
    """Takes large payloads of one save and stores those that are not there."""

    def __init__(
        self,
        store: CheckpointStore,
        path: str,
        lease: Lease | None,
        stage: str,
        allowed: Callable[[int], bool],
        encoding: Encoding | None,
    ) -> None:
        self._encoding = encoding
        self._contents = store.contents
        self._allowed = allowed  # gets the size of each
        self._place = (path, lease, stage)
        self._saving: Saving | None = None
        self._there: set[str] = set()  # held by this save
        self.found: list[Content] = []
        self._pending: list[tuple[int, memoryview]] = []
        self._waiting = 0

    def write(self, value: Any, sink: Sink) -> None:
        """Write the pickle of a value, and store all that was taken out of it, as safe as a part of the
        checkpoint; or once more, since a store may repeat its put."""
        self.found, self._pending, self._waiting = [], [], 0
        pickles.dump(value, sink, aside=self)
        self._store_pending()
        if self._saving is not None:
            self._saving.settle()

    def take(self, payload: memoryview, at: int, /) -> bool:
        if self._contents is None or not self._contents.shares:
            return False  # each checkpoint has its bytes for itself
        if len(self.found) + len(self._pending) >= MOST:
            return False
        if not self._allowed(payload.nbytes):
            return True  # the save will be refused: what it lacks does not matter
        self._pending.append((at, payload))
        self._waiting += payload.nbytes
        if self._waiting >= BATCH:
            self._store_pending()
        return True

    def listed(self) -> Document:
        """Return the contents for the meta."""
        return {"contents": [content.document() for content in self.found]} if self.found else {}

    def end(self) -> None:
        _end(self._saving, "save")

    def _store_pending(self) -> None:
        pending, self._pending, self._waiting = self._pending, [], 0
        if not pending or self._contents is None:
            return
        if self._saving is None:
            path, lease, stage = self._place
            self._saving = self._contents.saving(path, lease=lease, stage=stage)
        places, payloads = [at for at, _ in pending], [payload for _, payload in pending]
        while payloads:
            changed = self._store(places, payloads)
            # a thread writes to these while they are saved: what is saved is what they are in one moment
            places, payloads = [at for at, _ in changed], [memoryview(bytes(each)) for _, each in changed]

    def _store(self, places: list[int], payloads: list[memoryview]) -> list[tuple[int, memoryview]]:
        """Store each once; what was changed after it was digested comes back."""
        assert self._saving is not None
        if self._encoding is None:
            digests: Iterable[Digest] = map(Digest, [p.nbytes for p in payloads], _digests(payloads))
        else:
            digests = [_digest_encoded(self._encoding, payload) for payload in payloads]
        contents = [
            Content(at, name_of(digest.chunks), digest) for at, digest in zip(places, digests, strict=True)
        ]
        if new := list({content.name for content in contents} - self._there):
            self._there.update(self._saving.hold(new))
        changed = []
        for content, payload in zip(contents, payloads, strict=True):
            try:
                if content.name not in self._there:
                    pieces = _copies(content, payload, self._encoding)
                    self._saving.add(content.name, content.digest.size, pieces)
                    self._there.add(content.name)
            except _Changed:
                changed.append((content.at, payload))
            else:
                self.found.append(content)
        self.found.sort(key=lambda content: content.at)
        return changed


def _end(saving: Saving | None, what: str) -> None:
    try:
        if saving is not None:
            saving.end()
    except (GraflowError, OSError) as error:  # whether the checkpoint is there was decided before
        log.warning("contents of a %s stay until the next sweep: %s", what, error)


class _Changed(Exception):
    """A payload is not any more what was digested."""


def _cut(payload: memoryview) -> Iterator[memoryview]:
    for start in range(0, payload.nbytes, CHUNK):
        yield payload[start : start + CHUNK]


def _digests(payloads: Sequence[memoryview]) -> Iterator[tuple[str, ...]]:
    """Return the digests of the chunks of each: by this thread and a second one, alternately."""
    chunks = [chunk for payload in payloads for chunk in _cut(payload)]
    if len(chunks) < 4:
        results = [digest_of(chunk) for chunk in chunks]
    else:
        other, results = Hasher(), [""] * len(chunks)
        try:
            for chunk in chunks[1::2]:
                other.take(chunk)
            results[::2] = [digest_of(chunk) for chunk in chunks[::2]]
            results[1::2] = other.results(leave=0)
        finally:
            other.close()
    for chunk in chunks:
        chunk.release()
    at = 0
    for payload in payloads:
        count = -(-payload.nbytes // CHUNK)
        yield tuple(results[at : at + count])
        at += count


def _encoded(encoding: Encoding, payload: memoryview) -> Iterator[memoryview]:
    """Yield what is stored of a payload, in chunks: the same ones for the same bytes."""
    chunk = bytearray()
    for piece in encoding.content(payload):
        chunk += piece
        if len(chunk) >= CHUNK:
            yield memoryview(bytes(chunk[:CHUNK]))
            del chunk[:CHUNK]
    if chunk:
        yield memoryview(bytes(chunk))


def _digest_encoded(encoding: Encoding, payload: memoryview) -> Digest:
    found = [(chunk.nbytes, digest_of(chunk)) for chunk in _encoded(encoding, payload)]
    return Digest(sum(size for size, _ in found), tuple([digest for _, digest in found]), payload.nbytes)


def _copies(content: Content, payload: memoryview, encoding: Encoding | None) -> Iterator[bytes]:
    """Yield copies of the chunks that were digested."""
    chunks = _cut(payload) if encoding is None else _encoded(encoding, payload)
    for expected, chunk in zip_longest(content.digest.chunks, chunks):
        if expected is None or chunk is None:
            raise _Changed
        piece = bytes(chunk)
        chunk.release()
        if digest_of(piece) != expected:
            raise _Changed
        yield piece


# --- loading ---------------------------------------------------------------------------


class Whole:
    """The pickle as it was made: what is left of it, and the contents where they belong, verified.

    `distrust` gets a content that is damaged: no save is to hold it from now on.
    """

    def __init__(
        self,
        inline: Source,
        contents: Sequence[Content],
        open_content: Callable[[Content], Source],
        distrust: Callable[[Content], object],
    ) -> None:
        self.size = inline.size + sum(content.plain for content in contents)
        self._inline = inline
        self._left = list(reversed(contents))
        self._open = open_content
        self._distrust = distrust
        self._content: Source | None = None
        self._at = 0  # in what is left

    def readinto(self, buffer: memoryview, /) -> int:
        """Read up to where a content begins or ends: a large payload then goes to its place in one piece."""
        view = buffer.cast("B")
        while view.nbytes:
            if self._content is not None or (self._left and self._at == self._left[-1].at):
                if count := self._read_content(view, self._left[-1]):
                    return count
                continue
            until = self._left[-1].at if self._left else self._inline.size
            count = self._inline.readinto(view[: until - self._at])
            self._at += count
            if not count and self._left:
                raise CheckpointCorrupt("A content has its place behind the end of the values.", part="pkl")
            return count
        return 0

    def _read_content(self, view: memoryview, content: Content) -> int:
        try:
            self._content = self._content or self._open(content)
            count = self._content.readinto(view)
        except CheckpointCorrupt:
            with suppress(GraflowError, OSError):  # where no process may write, none saves
                self._distrust(content)
            raise
        if not count:
            self._content.close()
            self._content = None
            self._left.pop()
        return count

    def close(self) -> None:
        if self._content is not None:
            self._content.close()
            self._content = None
        self._inline.close()


def put_together(
    store: Readable, path: str, meta: Document, stage: str, inline: Source, encoding: Encoding | None = None
) -> Source:
    """Return the values of a checkpoint, whether it holds contents or not."""
    try:
        contents = contents_of(path, meta)
        place = store.contents
        if contents and place is None:
            raise CheckpointCorrupt(
                f"Checkpoint {path} shares {len(contents)} values with others that are not in its .pkl, and "
                "its store has no shared values: it was copied without them, or written into a folder with "
                "share=true, which this version does not read.",
                hint="Copy it from its own store: graflow-ckpt checkpoints copy --from URL --to FOLDER.",
                path=path,
            )
    except BaseException:
        inline.close()
        raise
    if not contents or place is None:
        return inline

    def open_content(content: Content) -> Source:
        source = place.open(path, content.name, stage)
        try:
            source = VerifyingSource(source, content.digest, f"content {content.name}")
            if encoding is None:
                return source
            return encoding.read_content(source, content.digest.plain, content.name, path)
        except BaseException:
            source.close()
            raise

    return Whole(inline, contents, open_content, lambda it: place.distrust(path, it.name, stage))


# --- on the way to another store --------------------------------------------------------


def shares(target: CheckpointStore) -> bool:
    """Return whether a store wants contents as they are elsewhere, and not whole pickles."""
    return target.contents is not None and target.contents.shares and not target.encoding


def alone(meta: Document, keyring: Keyring | None, opened: Mapping[str, Callable[[], Source]]) -> Document:
    """Return the meta of the same checkpoint as one plain pickle, with the parts given as they are opened;
    sealed, if there is a keyring."""
    parts = dict(meta["parts"])
    for name, source in opened.items():
        with DigestingSink(Out()) as digesting:
            pour(source, digesting)
            parts[name] = digesting.finish().document()
    made = {name: value for name, value in meta.items() if name not in ("contents", "encoding")}
    made |= {"parts": parts, "needs": [need for need in meta.get("needs", ()) if need not in KINDS]}
    return made if keyring is None else seal(made, keyring)


def pour(opened: Callable[[], Source], sink: Sink) -> None:
    """Write all of a source into a sink."""
    with closing(opened()) as source:
        for piece in _pieces(source):
            sink.write(piece)


class Bringing:
    """Brings the contents that a meta names from one place to another, for one put there."""

    def __init__(self, origin: Readable, path: str, meta: Document) -> None:
        self._origin, self._path = origin.contents, path
        self._stage = str(meta.get("stage", ""))
        self._contents = {content.name: content for content in contents_of(path, meta)}
        self._saving: Saving | None = None

    def bring(self, target: CheckpointStore, where: str, lease: Lease | None, stage: str) -> None:
        if not self._contents or target.contents is None:
            return
        saving = self._saving = self._saving or target.contents.saving(where, lease=lease, stage=stage)
        there = saving.hold(list(self._contents))
        for name, content in self._contents.items():
            if name not in there:
                saving.add(name, content.digest.size, self._read(content))
        saving.settle()

    def end(self) -> None:
        _end(self._saving, "copy")

    def _read(self, content: Content) -> Iterator[bytes]:
        if self._origin is None:
            raise CheckpointCorrupt(f"Content {content.name} is in another store.", path=self._path)
        opened = self._origin.open(self._path, content.name, self._stage)
        with closing(VerifyingSource(opened, content.digest, f"content {content.name}")) as source:
            for piece in _pieces(source):
                yield bytes(piece)


def _pieces(source: Source) -> Iterator[memoryview]:
    """Yield pieces, each in memory of its own: a sink may still be at the last one."""
    left = source.size
    while left:
        piece = memoryview(bytearray(min(CHUNK, left)))
        if fill(source, piece) < len(piece):
            raise CheckpointCorrupt("A part ends too early.")
        yield piece
        left -= len(piece)
