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
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from graflow_ckpt.core.errors import (
    BadAddress,
    CheckpointError,
    ServerError,
    ServerGone,
    ServerRefuses,
    ServerTooOld,
)
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.objects_library import AzureStore, GCSStore, S3Store, obstore, theirs
from graflow_ckpt.stores.objects_names import Place

PATIENCE = 5.0  # seconds within which a server that was lost must be back
_PAUSE = 0.1
_CLASSES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_CLIENT = {
    "allow_http": True,  # whoever names an endpoint with http:// means it
    "connect_timeout": timedelta(seconds=5),
}
_SMALL = 256 << 10  # bytes; what is larger may take its time on a slow line
_QUICK = {"read_timeout": timedelta(seconds=15), "timeout": timedelta(seconds=60)}
_PATIENT = {"read_timeout": timedelta(minutes=2), "timeout": timedelta(minutes=10)}
_RETRIES: Any = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=PATIENCE),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1)},
}
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_honouring: set[tuple[object, ...]] = set()  # buckets that have shown that they do
_used_by = 0  # the process whose threads answer for every client
_STATUS = re.compile(r"status code: (\d{3})")

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
        self._mutex = threading.Lock()

    # --- reading -----------------------------------------------------------------------

    def get(self, key: str) -> Found | None:
        try:
            with self._translated():
                found = obstore.get(self._it, key)
                meta = found.meta
                return Found(bytes(found.bytes()), _tag(meta), meta["last_modified"])
        except FileNotFoundError:
            return None

    def get_range(self, key: str, start: int, length: int) -> Buffer | None:
        """A piece of an object that is at least that long."""
        try:
            with self._translated():
                return memoryview(obstore.get_range(self._for(length), key, start=start, length=length))
        except FileNotFoundError:
            return None

    def written_at(self, key: str) -> datetime | None:
        try:
            with self._translated():
                at: datetime = obstore.head(self._it, key)["last_modified"]
                return at
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[Entry]:
        """All that is under a prefix, ordered by key."""
        with self._translated():
            stream = iter(obstore.list(self._it, prefix, chunk_size=1000))
        while True:
            with self._translated():
                page = next(stream, None)
            if page is None:
                return
            for meta in page:
                yield Entry(meta["path"], meta["last_modified"], meta["size"])

    # --- writing -----------------------------------------------------------------------

    def put(self, key: str, data: Buffer) -> None:
        """Whatever was there; again, if the server was lost for a moment: twice is as good as once."""
        patience = Patience()
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
            with self._translated():
                obstore.delete(self._it, list(keys))
        except FileNotFoundError:
            if len(keys) > 1:  # some services stop at the first that is missing
                for key in keys:
                    self.delete([key])

    # --- the bucket itself -------------------------------------------------------------

    def verify(self, *, again: bool = False) -> None:
        """Refuse a bucket that writes in spite of a condition: two owners would not notice each other.

        It is asked once for each bucket in this process, unless it is to be asked again.
        """
        place = self._place
        which = place.scheme, place.bucket, tuple(sorted(place.options.items()))
        if which in _honouring and not again:
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
        _honouring.add(which)

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

    def _for(self, size: int) -> Any:
        """The client for requests that move so many bytes."""
        global _used_by
        if _used_by not in (0, os.getpid()):  # its threads are not in the child, and a call would never end
            raise CheckpointError(
                f"{self.address} cannot be used: an object store was in use when this process was forked.",
                hint="Start processes with spawn or forkserver, or fork before a bucket is used.",
                store=self.address,
            )
        large = size > _SMALL
        with self._mutex:
            if large not in self._clients:
                _used_by = os.getpid()
                self._clients[large] = self._open(_PATIENT if large else _QUICK)
        return self._clients[large]

    def _open(self, timeouts: Mapping[str, timedelta]) -> Any:
        place = self._place
        options: dict[str, Any] = dict(place.options)
        if place.scheme == "s3":
            options["conditional_put"] = "etag"
        try:
            return _CLASSES[place.scheme](
                place.bucket,
                prefix=place.prefix or None,
                client_options={**_CLIENT, **timeouts},
                retry_config=_RETRIES,
                **options,
            )
        except (theirs.BaseError, ValueError, TypeError) as error:
            raise BadAddress(
                f"{self.address} cannot be opened: {shown(str(error))}.",
                hint="Check what follows the ? of its address, and the settings in the environment.",
                address=self.address,
            ) from error

    def _put(self, key: str, data: Buffer, mode: Any) -> Tag:
        try:
            with self._translated():
                return _tag(obstore.put(self._for(len(data)), key, data, mode=mode, use_multipart=False))
        except FileNotFoundError as error:
            if mode in ("overwrite", "create"):
                raise self._no_bucket() from error
            raise theirs.PreconditionError(str(error)) from error  # gone, where one was to be replaced

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (theirs.AlreadyExistsError, theirs.PreconditionError):
            raise
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise self._no_bucket() from error
            raise
        except theirs.BaseError as error:
            raise self._in_our_words(error) from error

    def _no_bucket(self) -> ServerError:
        return ServerError(
            f"{self.address} cannot be used: there is no such bucket.",
            hint="Make it, or check the name and the endpoint.",
            address=self.address,
        )

    def _in_our_words(self, error: Exception) -> ServerError:
        if _NO_BUCKET.search(str(error)):
            return self._no_bucket()
        text = shown(str(error))
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
        if isinstance(error, (theirs.PermissionDeniedError, theirs.UnauthenticatedError)):
            return ServerRefuses(
                f"{self.address} refuses: {text}.",
                hint="Check the credentials in the environment, and what they allow in that bucket.",
                address=self.address,
            )
        if status == 0 or (status >= 500 and status != 501) or status in (408, 429):
            return ServerGone(
                f"{self.address} cannot be reached, or was lost: {text}.",
                hint="It may pass: try again in a moment.",
                address=self.address,
                status=status,
            )
        return ServerError(
            f"{self.address} answers with an error: {text}.", address=self.address, status=status
        )


class Patience:
    """Says whether it is worth asking again a server that is gone, and waits a little if so."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PATIENCE

    def over(self) -> bool:
        if time.monotonic() > self._until:
            return True
        time.sleep(_PAUSE)
        return False


def shown(text: str) -> str:
    """What the library says, in one line and without queries, which may hold signatures."""
    text = text.partition("\n\nDebug source")[0]
    text = re.sub(r"(https?://)[^\s/@]*@", r"\1", re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", text))
    return " ".join(text.split())[:500].rstrip(". ")


def _tag(said: Mapping[str, Any]) -> Tag:
    return {name: said[name] for name in ("e_tag", "version") if said.get(name) is not None}
