"""A bucket: what is asked of S3, GCS and Azure, in one vocabulary, and what may go wrong with them.

Promise: `create` and `swap` do what they say or nothing, also where several do it at once: the bucket
itself compares. A bucket that does not is refused by `verify`, before anything is written into it.
Whether a write whose reply was lost has been carried out is not known here: callers look.

No two writes of different meaning may have the same bytes where `swap` is used: the tag of an object is
a digest of its bytes on S3, and what was written back and forth would look untouched.

There are two clients for each bucket in this process, which all stores in it share, whatever their prefix.
One that was made with other settings or credentials in the environment is not used. What is small fails
after fifteen seconds of silence; what is large may take its time on a slow line, as long as the server
answers something small meanwhile (`attended`). A child that was forked after any was used is refused: its
threads are not in the child, and a call would never end.

What the client library says is said in our words: what is gone, what refuses, what is not there. Nothing
that is shown holds a secret. A condition that was not met, and an object that is not there, are passed on:
they are answers. This is the one door to obstore: without the package, the error names what to
install.
Not here: what the objects mean.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.driver import Entry, Stored, Tag
from graflow_ckpt.stores.drivers.objects.names import BucketAddress
from graflow_ckpt.stores.lease import ServerWait

try:
    import obstore
    from obstore import exceptions as theirs
    from obstore.store import AzureStore, GCSStore, S3Store
except ModuleNotFoundError as missing:
    raise errors.not_installed(missing, "An object store cannot be used", "objects") from missing

_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_STATUS = re.compile(r"status code: (\d{3})")


@contextmanager
def translated(address: str) -> Iterator[None]:
    try:
        yield
    except (theirs.AlreadyExistsError, theirs.PreconditionError):
        raise
    except FileNotFoundError as error:
        if _NO_BUCKET.search(str(error)):
            raise no_bucket(address) from error
        raise
    except theirs.BaseError as error:
        raise _in_our_words(address, error) from error


def no_bucket(address: str) -> errors.ServerError:
    return errors.ServerError(
        f"{address} cannot be used: there is no such bucket.",
        hint="Make it, or check the name and the endpoint.",
        address=address,
    )


def _in_our_words(address: str, error: Exception) -> errors.ServerError:
    if _NO_BUCKET.search(str(error)):
        return no_bucket(address)
    text = shown(str(error))
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if isinstance(error, (theirs.PermissionDeniedError, theirs.UnauthenticatedError)):
        return errors.ServerRefuses(
            f"{address} refuses: {text}.",
            hint="Check the credentials in the environment, and what they allow in that bucket.",
            address=address,
        )
    if status == 0 or (status >= 500 and status != 501) or status in (408, 429):
        return errors.ServerGone(
            f"{address} cannot be reached, or was lost: {text}.",
            hint="It may pass: try again in a moment.",
            address=address,
            status=status,
        )
    return errors.ServerError(f"{address} answers with an error: {text}.", address=address, status=status)


def shown(text: str) -> str:
    """Return what the library says, in one line and without queries, which may hold signatures."""
    text = text.partition("\n\nDebug source")[0]
    text = re.sub(r"(https?://)[^\s/@]*@", r"\1", re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", text))
    return " ".join(text.split())[:500].rstrip(". ")


SMALL = 256 << 10  # bytes
WATCH = 15.0  # seconds after which a server that is busy with something large is asked if it is there
QUICK = {"read_timeout": timedelta(seconds=15), "timeout": timedelta(seconds=60)}
PATIENT = {"read_timeout": timedelta(minutes=2), "timeout": timedelta(minutes=10)}
_CLASSES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_CLIENT = {
    "allow_http": True,  # an endpoint that is named with http:// is meant so
    "connect_timeout": timedelta(seconds=5),
}
_RETRIES: Any = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=5),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1)},
}
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_")
_KEPT = 16

_T = TypeVar("_T")

_used_by = 0  # the process whose threads answer for every client
_clients: OrderedDict[tuple[object, ...], Any] = OrderedDict()  # Any: the three classes have no common one
_mutex = threading.Lock()


def client_for(place: BucketAddress, size: int) -> Any:
    """Return the client for requests that move so many bytes, in the bucket and not below its prefix."""
    global _used_by
    if _used_by not in (0, os.getpid()):
        raise errors.CheckpointError(
            f"{place} cannot be used: an object store was in use when this process was forked.",
            hint="Start processes with spawn or forkserver, or fork before a bucket is used.",
            store=str(place),
        )
    large = size > SMALL
    settings = ((name, value) for name, value in os.environ.items() if name.startswith(_SETTINGS))
    key = place.scheme, place.bucket, large, tuple(sorted(place.options.items())), tuple(sorted(settings))
    with _mutex:
        if key not in _clients:
            _used_by = os.getpid()
            _clients[key] = _made(place, PATIENT if large else QUICK)
            if len(_clients) > _KEPT:
                _clients.popitem(last=False)
        return _clients[key]


def attended(large: Callable[[], _T], small: Callable[[], object]) -> _T:
    """Return what a large request returns. An error of a small one ends the wait; the large may continue."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(large())
        except BaseException as error:  # noqa: BLE001  it is raised where it was asked for
            done.set_exception(error)

    threading.Thread(target=run, name="large", daemon=True).start()
    while not wait([done], WATCH).done:
        small()
    return done.result()


def _made(place: BucketAddress, timeouts: Mapping[str, timedelta]) -> Any:
    options: dict[str, Any] = dict(place.options)  # Any: each class has its own
    if place.scheme == "s3":
        options["conditional_put"] = "etag"
    try:
        return _CLASSES[place.scheme](
            place.bucket, client_options={**_CLIENT, **timeouts}, retry_config=_RETRIES, **options
        )
    except (theirs.BaseError, ValueError, TypeError) as error:
        raise errors.BadAddress(
            f"{place} cannot be opened: {shown(str(error))}.",
            hint="Check what follows the ? of its address, and the settings in the environment.",
            address=str(place),
        ) from error


_honouring: set[tuple[object, ...]] = set()  # buckets that have shown that they honour conditional puts


class Bucket:
    """One bucket, below one prefix. Connects at the first use."""

    def __init__(self, place: BucketAddress) -> None:
        self.address = str(place)
        self._place = place
        self._clients: dict[bool, Any] = {}  # the three classes have no common one
        self._process = 0
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._which = place.scheme, place.bucket, tuple(sorted(place.options.items()))
        self._answered = False

    # --- reading -----------------------------------------------------------------------

    def get(self, key: str) -> Stored | None:
        def ask() -> Stored:
            found = obstore.get(self._it, self._prefix + key)
            return Stored(bytes(found.bytes()), _tag(found.meta), found.meta["last_modified"].timestamp())

        return self._found(ask)

    def get_range(self, key: str, start: int, length: int) -> Buffer | None:
        """Return a piece of an object that is at least that long."""

        def ask() -> Buffer:
            return memoryview(
                obstore.get_range(self._for(length), self._prefix + key, start=start, length=length)
            )

        return self._found(lambda: self._attended(ask, length))

    def list(self, prefix: str) -> Iterator[Entry]:
        """Yield all that is under a prefix, ordered by key."""
        patience, last = self._patience(), None
        while True:
            try:
                for page in self._pages(prefix, last):
                    for meta in page:
                        last = meta["path"]
                        key, at = last.removeprefix(self._prefix), meta["last_modified"].timestamp()
                        yield Entry(key, meta["size"], at)
                return
            except errors.ServerGone:
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

    def put(self, key: str, data: Buffer) -> Tag:
        """Overwrite; again, if the server was lost for a moment: twice is as good as once."""
        return patiently(lambda: self._put(key, data, "overwrite"), self._patience())

    def create(self, key: str, data: Buffer) -> Tag | None:
        """Write what is not there. None: something is, or another writer was active. Look."""
        try:
            return self._put(key, data, "create")
        except (theirs.AlreadyExistsError, theirs.PreconditionError):
            return None

    def swap(self, key: str, data: Buffer, tag: Tag | None) -> Tag | None:
        """Replace what has that tag (nothing, if there is none). None: something else is there. Look."""
        if tag is None:
            return self.create(key, data)
        try:
            return self._put(key, data, json.loads(tag))
        except (theirs.AlreadyExistsError, theirs.PreconditionError):
            return None

    def delete(self, keys: Sequence[str]) -> None:
        """Delete; what is not there is no error."""
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
        except errors.ServerError as error:
            if error.ids.get("status") not in (400, 405, 501):
                raise
            kept = False
        self.delete([key])
        if not kept:
            raise errors.ServerTooOld(
                f"{self.address} does not honour conditional writes (If-None-Match, If-Match).",
                hint="Without them two processes could own one session and overwrite each other. Use a "
                "service that has them (S3, GCS, Azure, MinIO), or another store.",
                address=self.address,
            )
        _honouring.add(self._which)

    def now(self) -> float:
        """Return what its clock says."""
        self.put("clock", b"")
        if (found := self.get("clock")) is None:
            raise errors.ServerError(f"{self.address} loses what is written into it.", address=self.address)
        return found.at

    # --- within ------------------------------------------------------------------------

    @property
    def _it(self) -> Any:
        return self._for(0)

    def _found(self, ask: Callable[[], _T]) -> _T | None:
        """Return what is there; ask again, if the server was lost for a moment."""

        def once() -> _T | None:
            with suppress(FileNotFoundError), translated(self.address):
                return ask()
            return None

        found = patiently(once, self._patience())
        self._answered = True
        return found

    def _patience(self) -> ServerWait:
        """Return how long to wait for a server that was there. One that never was is not waited for."""
        return ServerWait(None if self._answered or self._which in _honouring else 0.0)

    def _for(self, size: int) -> Any:
        """Return the client for requests that move so many bytes."""
        large = size > SMALL
        if self._process != os.getpid() or large not in self._clients:
            self._clients[large] = client_for(self._place, size)
            self._process = os.getpid()
        return self._clients[large]

    def _attended(self, ask: Callable[[], _T], size: int) -> _T:
        return attended(ask, self._be_there) if size > SMALL else ask()

    def _be_there(self) -> None:
        """Raise what is wrong, if it does not answer something small. That nothing is there is an answer."""
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


def patiently(ask: Callable[[], _T], patience: ServerWait) -> _T:
    """Return what it returns; ask again while the server is gone."""
    while True:
        try:
            return ask()
        except errors.ServerGone:
            if patience.over():
                raise


def _tag(said: Mapping[str, Any]) -> Tag:
    """Return one state of an object, as the bucket distinguishes it from others."""
    return json.dumps({name: said[name] for name in ("e_tag", "version") if said.get(name) is not None})
