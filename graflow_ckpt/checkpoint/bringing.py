"""A checkpoint that holds contents, on its way to another store: with them, or as one plain pickle.

A target that shares contents gets those that it lacks, under the same names and digests. For any other one
(a folder as it is by default, a file that checkpoints travel in) they are put back into the pickle, whose
digest is then another one, and the meta is sealed anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from graflow_ckpt.checkpoint.contents import Content, contents_of
from graflow_ckpt.checkpoint.digest import CHUNK, DigestingSink, VerifyingSource
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.seal import seal
from graflow_ckpt.core.errors import CheckpointCorrupt, GraflowError
from graflow_ckpt.core.protocols import Buffer, CheckpointStore, Lease, Readable, Saving, Sink, Source
from graflow_ckpt.stores.keys import Keyring

log = logging.getLogger("graflow_ckpt.checkpoint")


def shares(target: CheckpointStore) -> bool:
    """Whether a store wants contents, and not whole pickles."""
    return target.contents is not None and target.contents.shares


def alone(meta: Document, keyring: Keyring | None, whole: Callable[[], Source]) -> Document:
    """The meta of the same checkpoint as one plain pickle; sealed, if there is a keyring."""
    digesting = DigestingSink(_Nowhere())
    try:
        pour(whole, digesting)
    finally:
        digest = digesting.finish()
    parts = meta["parts"] | {"pkl": digest.document()}
    made = {name: value for name, value in meta.items() if name != "contents"} | {"parts": parts}
    return made if keyring is None else seal(made, keyring)


def pour(opened: Callable[[], Source], sink: Sink) -> None:
    """All of a source into a sink."""
    source = opened()
    try:
        for piece in _pieces(source):
            sink.write(piece)
    finally:
        source.close()


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
        if self._saving is None:
            return
        try:
            self._saving.end()
        except (GraflowError, OSError) as error:  # whether the checkpoint is there was decided before
            log.warning("contents of a copy stay until the next sweep: %s", error)

    def _read(self, content: Content) -> Iterator[bytes]:
        if self._origin is None:
            raise CheckpointCorrupt(f"Content {content.name} is in another store.", path=self._path)
        opened = self._origin.open(self._path, content.name, self._stage)
        source = VerifyingSource(opened, content.digest, f"content {content.name}")
        try:
            for piece in _pieces(source):
                yield bytes(piece)
        finally:
            source.close()


def _pieces(source: Source) -> Iterator[memoryview]:
    """Each in memory of its own: a sink may still be at the last one."""
    left = source.size
    while left:
        piece = memoryview(bytearray(min(CHUNK, left)))
        got = 0
        while got < len(piece):
            count = source.readinto(piece[got:])
            if not count:
                raise CheckpointCorrupt("A part ends too early.")
            got += count
        yield piece
        left -= got


class _Nowhere:
    """A sink that keeps nothing."""

    def write(self, data: Buffer, /) -> int:
        return len(data)
