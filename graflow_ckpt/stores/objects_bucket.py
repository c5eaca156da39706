"""A bucket: what is asked of S3, GCS and Azure, in one vocabulary, and what may go wrong with them.

Promise: `create` and `swap` do what they say or nothing, also where several do it at once: the bucket
itself compares. A bucket that does not is refused by `verify`, before anything is written into it.
Whether a write whose reply was lost has been carried out is not known here: callers look.

No two writes of different meaning may have the same bytes where `swap` is used: the tag of an object is
a digest of its bytes on S3, and what was written back and forth would look untouched.
Not here: what the objects mean.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from graflow_ckpt.core.errors import ServerError, ServerGone, ServerTooOld
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.objects_clients import SMALL, attended, client_for, no_bucket, translated
from graflow_ckpt.stores.objects_library import obstore, theirs
from graflow_ckpt.stores.objects_names import Place

PATIENCE = 5.0  # seconds within which a server that was lost must be back
_PAUSE = 0.1
_honouring: set[tuple[object, ...]] = set()  # buckets that have shown that they do

_T = TypeVar("_T")

Tag = dict[str, str]
"""One state of an object, as the bucket tells it from others."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object with its tag, and when the bucket's clock says that it was written."""

    data: bytes
    tag: Tag
    at: datetime


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as it is listed."""

    key: str
    at: datetime
    size: int


class Bucket:
    """One bucket, below one prefix. Connects at the first use."""

    def __init__(self, place: Place) -> None:
        self.address = str(place)
        self._place = place
        self._clients: dict[bool, Any] = {}  # the three classes have no common one
        self._process = 0
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._which = place.scheme, place.bucket, tuple(sorted(place.options.items()))
        self._answered = False

    # --- reading -----------------------------------------------------------------------

    def get(self, key: str) -> Found | None:
        def ask() -> Found:
            found = obstore.get(self._it, self._prefix + key)
            meta = found.meta
            return Found(bytes(found.bytes()), _tag(meta), meta["last_modified"])

        return self._found(ask)

    def get_range(self, key: str, start: int, length: int) -> Buffer | None:
        """A piece of an object that is at least that long."""

        def ask() -> Buffer:
            return memoryview(
                obstore.get_range(self._for(length), self._prefix + key, start=start, length=length)
            )

        return self._found(lambda: self._attended(ask, length))

    def written_at(self, key: str) -> datetime | None:
        def ask() -> datetime:
            at: datetime = obstore.head(self._it, self._prefix + key)["last_modified"]
            return at

        return self._found(ask)

    def list(self, prefix: str) -> Iterator[Entry]:
        """All that is under a prefix, ordered by key."""
        patience, last = self._patience(), None
        while True:
            try:
                for page in self._pages(prefix, last):
                    for meta in page:
                        last = meta["path"]
                        yield Entry(last.removeprefix(self._prefix), meta["last_modified"], meta["size"])
                return
            except ServerGone:
                if patience.over():
                    raise

    def _pages(self, prefix: str, after: str | None) -> Iterator[Sequence[Any]]:
        with translated(self.address):
            stream = iter(obstore.list(self._it, self._prefix + prefix, offset=after, chunk_size=1000))
        while True:
            with translated(self.address):
                page = next(stream, None)
            self._answered = True
            if page is None:
                return
            yield page

    # --- writing -----------------------------------------------------------------------

    def put(self, key: str, data: Buffer) -> None:
        """Whatever was there; again, if the server was lost for a moment: twice is as good as once."""
        patience = self._patience()
        while True:
            try:
                self._put(key, data, "overwrite")
                return
            except ServerGone:
                if patience.over():
                    raise

    def create(self, key: str, data: Buffer) -> Tag | None:
        """None: there is something already, or another writer was at it. Look."""
        try:
            return self._put(key, data, "create")
        except (theirs.AlreadyExistsError, theirs.PreconditionError):
            return None

    def swap(self, key: str, data: Buffer, tag: Tag | None) -> Tag | None:
        """In place of what has that tag (nothing, if there is none). None: something else is there. Look."""
        if tag is None:
            return self.create(key, data)
        try:
            return self._put(key, data, tag)
        except (theirs.AlreadyExistsError, theirs.PreconditionError):
            return None

    def delete(self, keys: Sequence[str]) -> None:
        """What is not there is no trouble."""
        if not keys:
            return
        try:
            with translated(self.address):
                obstore.delete(self._it, [self._prefix + key for key in keys])
        except FileNotFoundError:
            if len(keys) > 1:  # some services stop at the first that is missing
                for key in keys:
                    self.delete([key])

    # --- the bucket itself -------------------------------------------------------------

    def verify(self, *, again: bool = False) -> None:
        """Refuse a bucket that writes in spite of a condition: two owners would not notice each other.

        It is asked once for each bucket in this process, unless it is to be asked again.
        """
        if self._which in _honouring and not again:
            return
        key = f"probes/{uuid.uuid4().hex}"
        try:
            first = self.create(key, b"1")
            kept = first is not None and self.create(key, b"2") is None
            second = self.swap(key, b"3", first) if kept else None
            kept = second is not None and self.swap(key, b"4", first) is None
        except ServerError as error:
            if error.ids.get("status") not in (400, 405, 501):
                raise
            kept = False
        self.delete([key])
        if not kept:
            raise ServerTooOld(
                f"{self.address} does not honour conditional writes (If-None-Match, If-Match).",
                hint="Without them two processes could own one session and overwrite each other. Use a "
                "service that has them (S3, GCS, Azure, MinIO), or another store.",
                address=self.address,
            )
        _honouring.add(self._which)

    def now(self) -> datetime:
        """What its clock says."""
        self.put("clock", b"")
        at = self.written_at("clock")
        if at is None:
            raise ServerError(f"{self.address} loses what is written into it.", address=self.address)
        return at

    # --- within ------------------------------------------------------------------------

    @property
    def _it(self) -> Any:
        return self._for(0)

    def _found(self, ask: Callable[[], _T]) -> _T | None:
        """What is there; asked again, if the server was lost for a moment."""
        patience = self._patience()
        while True:
            try:
                with translated(self.address):
                    found = ask()
                self._answered = True
                return found
            except FileNotFoundError:
                self._answered = True
                return None
            except ServerGone:
                if patience.over():
                    raise

    def _patience(self) -> Patience:
        """With a server that was there. One that never was is not waited for."""
        return Patience(PATIENCE if self._answered or self._which in _honouring else 0.0)

    def _for(self, size: int) -> Any:
        """The client for requests that move so many bytes."""
        large = size > SMALL
        if self._process != os.getpid() or large not in self._clients:
            self._clients[large] = client_for(self._place, size)
            self._process = os.getpid()
        return self._clients[large]

    def _attended(self, ask: Callable[[], _T], size: int) -> _T:
        return attended(ask, self._be_there) if size > SMALL else ask()

    def _be_there(self) -> None:
        """Raises what is wrong, if it does not answer something small. That nothing is there is an answer."""
        with suppress(FileNotFoundError):
            obstore.head(self._it, self._prefix + "clock")

    def _put(self, key: str, data: Buffer, mode: Any) -> Tag:
        def ask() -> Mapping[str, Any]:
            found: Mapping[str, Any] = obstore.put(
                self._for(len(data)), self._prefix + key, data, mode=mode, use_multipart=False
            )
            return found

        try:
            with translated(self.address):
                said = self._attended(ask, len(data))
            self._answered = True
            return _tag(said)
        except FileNotFoundError as error:
            if mode in ("overwrite", "create"):
                raise no_bucket(self.address) from error
            raise theirs.PreconditionError(str(error)) from error  # gone, where one was to be replaced


class Patience:
    """Says whether it is worth asking again a server that is gone, and waits a little if so."""

    def __init__(self, seconds: float | None = None) -> None:
        self._until = time.monotonic() + (PATIENCE if seconds is None else seconds)

    def over(self) -> bool:
        if time.monotonic() > self._until:
            return True
        time.sleep(_PAUSE)
        return False


def _tag(said: Mapping[str, Any]) -> Tag:
    return {name: said[name] for name in ("e_tag", "version") if said.get(name) is not None}
