"""Names in an object store: from an address to a bucket, from a path to the keys that have what it names.

    s3://bucket/prefix              the store, and what paths in it start with; gs:// and az:// likewise
    s3://bucket/prefix/NAME         a checkpoint
    s3://bucket/prefix?endpoint=http://host:9000&region=eu-1      with what the client has to know

    sessions/{id}                   the head of a session: owner, lines, segments, its own checkpoints
    names/{name}                    a checkpoint under any other name
    data/{id or @}/{epoch}-{nonce}/{n}      what the parts of one checkpoint consist of
    data/{id or @}/{epoch}-{nonce}/{content}/{n}      a content that a save has written
    journal/{id}/{epoch}-{after}-{claim}/{n}        one frame
    alive/{id}/{epoch}              touched by the owner as long as it lives
    alive/{id}/{epoch}-{after}-{claim}      a segment of the journal that was begun
    probes/{nonce}, clock           what is asked of the bucket itself

Promise: an address holds no secret (one that does is refused without being shown), and what is shown or
stored of it is scheme, bucket and prefix. So that it can be opened again, this process remembers the
options that it was given for each bucket. Nothing is asked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.stores.names import base_of, session_of

SCHEMES = {"s3": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az"}
"""As they may be written, and as they are shown."""

NAMED = "@"  # no session is called like that
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SECRET = re.compile(r"key|secret|token|password|sas|credential", re.IGNORECASE)
_QUERY = re.compile(r"\?\w+=")
_LONGEST = 900  # bytes of a name in a key: 1024 are allowed for the whole of it
_known: dict[tuple[str, str], Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is. `options`: what the client has to know beside the environment."""

    scheme: str
    bucket: str
    prefix: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def remember(self) -> None:
        """The options count wherever only the text is left."""
        if self.options:
            _known[self.scheme, self.bucket] = self.options


@dataclass(frozen=True, slots=True)
class Target:
    """A checkpoint by its name. `session`: the one whose own path this is."""

    base: str
    session: str | None

    @property
    def tag(self) -> str:
        return self.session or NAMED

    @property
    def key(self) -> str:
        """Of the record, if it is not in the head of a session."""
        return f"names/{encoded(self.base)}"


def place_of(where: str) -> Place:
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
    return Place(scheme, bucket, "/".join(folders), options or _known.get((scheme, bucket), {}))


def as_typed(store: str) -> str:
    """The address of a store with its options, as far as this process knows them."""
    place = place_of(store)
    return f"{place}?{urlencode(place.options, safe=':/')}" if place.options else store


def split(path: str) -> tuple[str, str]:
    """The store of a path, and the name in it."""
    rest, query = _divided(path)
    store, _, name = rest.rpartition("/")
    if store.endswith(":/"):  # a bucket alone
        store, name = rest, ""
    return f"{store}?{query}" if query else store, base_of(name)


def _divided(text: str) -> tuple[str, str]:
    """What comes before the options, and they. A `?` that begins none is one of a name or a pattern."""
    found = _QUERY.search(text)
    return (text[: found.start()], text[found.start() + 1 :]) if found else (text, "")


def target_of(base: str) -> Target:
    if not base or base in (".", "..") or len(encoded(base)) > _LONGEST:
        raise CheckpointError(
            f"{base!r} cannot be the name of a checkpoint.",
            hint="Give it a name that is not empty, `.` or `..`, and shorter.",
            path=base,
        )
    return Target(base, session_of(base))


def is_objects(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def encoded(name: str) -> str:
    """A name as a key has it. Not with `%`, which clients encode once more."""
    return quote(name, safe="", errors="surrogatepass").replace("%", "=")


def decoded(text: str) -> str:
    return unquote(text.replace("=", "%"), errors="surrogatepass")


# --- keys ------------------------------------------------------------------------------


def head_key(session: str) -> str:
    return f"sessions/{session}"


def data_key(tag: str, mark: str) -> str:
    """What the keys of one checkpoint's data are under."""
    return f"data/{tag}/{mark}"


def alive_key(session: str, epoch: int) -> str:
    return f"alive/{session}/{epoch}"


def segment_key(session: str, segment: str) -> str:
    return f"journal/{session}/{segment}"


def begun_key(session: str, segment: str) -> str:
    """Among what shows life, for that is what the next owner lists anyway."""
    return f"alive/{session}/{segment}"


def segment_name(epoch: int, after: int, claim: str) -> str:
    """Earlier versions have left the claim out."""
    return f"{epoch}-{after}-{claim}" if claim else f"{epoch}-{after}"
