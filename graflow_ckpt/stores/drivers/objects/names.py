"""Names in an object store: from an address to a bucket, from a path to the name there.

    s3://bucket/prefix              the store, and what paths in it start with; gs:// and az:// likewise
    s3://bucket/prefix/NAME         a checkpoint
    s3://bucket/prefix?endpoint=http://host:9000&region=eu-1      with what the client has to know

    probes/{nonce}, clock           what is asked of the bucket itself, beside the keys of stores/driver.py

Promise: an address holds no secret (one that does is refused without being shown), and what is shown or
stored of it is scheme, bucket and prefix. So that it can be opened again, this process remembers the
options that it was given for each bucket. Nothing is asked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from graflow_ckpt.core.errors import BadAddress
from graflow_ckpt.stores.names import base_of

SCHEMES = {"s3": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az"}
"""As they may be written, and as they are shown."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SECRET = re.compile(r"key|secret|token|password|sas|credential", re.IGNORECASE)
_QUERY = re.compile(r"\?\w+=")
_known: dict[tuple[str, str], Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """The place of a store. `options`: what the client has to know beside the environment."""

    scheme: str
    bucket: str
    prefix: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def remember(self) -> None:
        """Remember the options: only the text may be left later."""
        if self.options:
            _known[self.scheme, self.bucket] = self.options


def place_of(where: str) -> BucketAddress:
    """Read the address of a store; what cannot be one is refused without showing what it holds."""
    scheme, _, rest = where.partition("://")
    scheme = SCHEMES.get(scheme.lower(), "")
    rest, query = _divided(rest)
    bucket, _, prefix = rest.partition("/")
    folders = [folder for folder in prefix.split("/") if folder]
    if not scheme or not _BUCKET.match(bucket) or "." in folders or ".." in folders:
        raise BadAddress(
            "That is not the address of a bucket.",
            hint="It is written s3://BUCKET/PREFIX (or gs://, az://); who we are there is taken from the "
            "environment, never from the address.",
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    if secret := next((name for name in options if _SECRET.search(name)), None):
        raise BadAddress(
            f"The address of {scheme}://{bucket} holds a secret ({secret}).",
            hint="Addresses are stored and shown: set it in the environment (AWS_…, AZURE_… or GOOGLE_…).",
            address=f"{scheme}://{bucket}",
        )
    return BucketAddress(scheme, bucket, "/".join(folders), options or _known.get((scheme, bucket), {}))


def as_typed(store: str) -> str:
    """Return the address of a store with its options, as far as this process knows them."""
    place = place_of(store)
    return f"{place}?{urlencode(place.options, safe=':/')}" if place.options else store


def split(path: str) -> tuple[str, str]:
    """Return the store of a path, and the name in it."""
    rest, query = _divided(path)
    store, _, name = rest.rpartition("/")
    if store.endswith(":/"):  # a bucket alone
        store, name = rest, ""
    return f"{store}?{query}" if query else store, base_of(name)


def _divided(text: str) -> tuple[str, str]:
    """Return what is before the options, and the options. A `?` that begins none is of a name or pattern."""
    found = _QUERY.search(text)
    return (text[: found.start()], text[found.start() + 1 :]) if found else (text, "")


def is_objects(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES
