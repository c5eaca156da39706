"""The clients of this process: two for each bucket, which all stores in it share, whatever their prefix.

Promise: one that was made with other settings or credentials in the environment is not used. What is small
is given up after fifteen seconds of silence; what is large may take its time on a slow line, as long as the
server answers something small meanwhile (`attended`). A child that was
forked after any was used is told so: its threads are not in the child, and a call would never end.
Not here: what is asked (objects_bucket.py).

What the client library says, in our words: who is gone, who refuses, what is not there.
Promise: nothing that is shown holds a secret. A condition that was not met, and an object that is not there,
go on as they are: they are answers.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from graflow_ckpt.core.errors import BadAddress, CheckpointError, ServerError, ServerGone, ServerRefuses
from graflow_ckpt.stores.objects_library import AzureStore, GCSStore, S3Store, theirs
from graflow_ckpt.stores.objects_names import Place

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


def no_bucket(address: str) -> ServerError:
    return ServerError(
        f"{address} cannot be used: there is no such bucket.",
        hint="Make it, or check the name and the endpoint.",
        address=address,
    )


def _in_our_words(address: str, error: Exception) -> ServerError:
    if _NO_BUCKET.search(str(error)):
        return no_bucket(address)
    text = shown(str(error))
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if isinstance(error, (theirs.PermissionDeniedError, theirs.UnauthenticatedError)):
        return ServerRefuses(
            f"{address} refuses: {text}.",
            hint="Check the credentials in the environment, and what they allow in that bucket.",
            address=address,
        )
    if status == 0 or (status >= 500 and status != 501) or status in (408, 429):
        return ServerGone(
            f"{address} cannot be reached, or was lost: {text}.",
            hint="It may pass: try again in a moment.",
            address=address,
            status=status,
        )
    return ServerError(f"{address} answers with an error: {text}.", address=address, status=status)


def shown(text: str) -> str:
    """What the library says, in one line and without queries, which may hold signatures."""
    text = text.partition("\n\nDebug source")[0]
    text = re.sub(r"(https?://)[^\s/@]*@", r"\1", re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", text))
    return " ".join(text.split())[:500].rstrip(". ")


SMALL = 256 << 10  # bytes
WATCH = 15.0  # seconds after which one asks whether a server is there that is at something large
QUICK = {"read_timeout": timedelta(seconds=15), "timeout": timedelta(seconds=60)}
PATIENT = {"read_timeout": timedelta(minutes=2), "timeout": timedelta(minutes=10)}
_CLASSES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_CLIENT = {
    "allow_http": True,  # whoever names an endpoint with http:// means it
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


def client_for(place: Place, size: int) -> Any:
    """For requests that move so many bytes, in the bucket and not below its prefix."""
    global _used_by
    if _used_by not in (0, os.getpid()):
        raise CheckpointError(
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
    """What a large request comes to; what a small one raises ends the waiting, and the other may go on."""
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


def _made(place: Place, timeouts: Mapping[str, timedelta]) -> Any:
    options: dict[str, Any] = dict(place.options)  # Any: each class has its own
    if place.scheme == "s3":
        options["conditional_put"] = "etag"
    try:
        return _CLASSES[place.scheme](
            place.bucket, client_options={**_CLIENT, **timeouts}, retry_config=_RETRIES, **options
        )
    except (theirs.BaseError, ValueError, TypeError) as error:
        raise BadAddress(
            f"{place} cannot be opened: {shown(str(error))}.",
            hint="Check what follows the ? of its address, and the settings in the environment.",
            address=str(place),
        ) from error
