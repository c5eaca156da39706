"""What the client library says, in our words: who is gone, who refuses, what is not there.

Promise: nothing that is shown holds a secret. A condition that was not met, and an object that is not there,
go on as they are: they are answers.
Not here: what is done about it (objects_bucket.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from graflow_ckpt.core.errors import ServerError, ServerGone, ServerRefuses
from graflow_ckpt.stores.objects_library import theirs

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
