"""The errors of a server or its client library, in our words: one error class per thing to do.

Also the one door to redis-py, which says what to install where it is missing.
Promise: a complaint that may pass (not reachable, lost, starting) is a
`ServerGone`, and nothing else is; the server's own text is kept, it never holds a password.
Not here: NOSCRIPT, which is answered where scripts are sent, and whether to try again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, Final

from graflow_ckpt.core.errors import (
    GraflowError,
    KeyTaken,
    SchemaUnsupported,
    ServerError,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    ServerRefuses,
    SessionDamaged,
    not_installed,
)
from graflow_ckpt.links.addresses import no_cluster

try:
    import redis
    from redis import exceptions as theirs
except ModuleNotFoundError as missing:
    raise not_installed(missing, "A Redis server cannot be used", "fleet") from missing

hiredis: Any
try:
    import hiredis
except ModuleNotFoundError:
    hiredis = None  # the half of redis-py that is written in C; it also does without, more slowly

__all__ = ["hiredis", "redis", "theirs"]

SILENT: dict[str, Any] = {}
"""So that redis-py does not read its own version from the disk at each connect, and tell it to the server."""

if (
    "driver_info" in signature(redis.connection.AbstractConnection.__init__).parameters
):  # from redis-py 7.1 on
    SILENT["driver_info"] = None


BROKEN: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What bytes that mean nothing raise when they are taken apart."""

Key = bytes | str

_REFUSED = "Check user and password of the address, and what the server's ACL allows that user."
_PASSING = "It may pass: try again in a moment."
# Redis before 7 wraps what a script's command complains of: "ERR Error running script …: -OOM command not …"
_CODE = re.compile(r"(?:^|: -|\s-)([A-Z]{3,})\b")

_FELL = re.compile(r"user_script: ?\d+")
_SESSION = re.compile(r"graflow:\{([^}]*)\}:")

_BY_CLASS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    ((theirs.AuthenticationError, theirs.AuthorizationError, theirs.NoPermissionError), "NOAUTH"),
    (theirs.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (theirs.ReadOnlyError, "READONLY"),
    (theirs.OutOfMemoryError, "OOM"),
    (theirs.BusyLoadingError, "LOADING"),
    (theirs.MasterDownError, "MASTERDOWN"),  # in redis-py a kind of ClusterDownError
    ((theirs.AskError, theirs.ClusterDownError, theirs.ClusterCrossSlotError), "MOVED"),
    ((redis.ConnectionError, redis.TimeoutError), "GONE"),
)
_IN_A_PIPELINE = " of pipeline caused error: "
_IN_A_SCRIPT = "ACL failure in script"
_OF_A_CLUSTER = ("MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT")
_KNOWN: Mapping[str, tuple[type[ServerError], str, str]] = {
    **dict.fromkeys(("NOAUTH", "WRONGPASS", "NOPERM", "DENIED"), (ServerRefuses, "refuses", _REFUSED)),
    "READONLY": (
        ServerReadOnly,
        "is a replica that takes no writes",
        "Name its master, or the sentinels (redis+sentinel://host:26379/service).",
    ),
    "OOM": (
        ServerFull,
        "has used the memory that it may use",
        "Raise its maxmemory or remove what is not needed; nothing was changed.",
    ),
    "MISCONF": (
        ServerFull,
        "cannot write to its disk and takes no changes",
        "Look at its disk and its log; nothing was changed.",
    ),
    "GONE": (ServerGone, "cannot be reached, or was lost", _PASSING),
    "LOADING": (ServerGone, "is loading its data", _PASSING),
    "BUSY": (ServerGone, "is busy with a script", _PASSING),
    "MASTERDOWN": (ServerGone, "has lost its master", _PASSING),
    "NOREPLICAS": (ServerGone, "has fewer replicas than it wants for a write", _PASSING),
}
"""What a complaint of that kind is, what the server does, and what to do about it."""


def in_our_words(
    error: Exception, address: str, keys: Sequence[Key] = ()
) -> ServerError | SchemaUnsupported | SessionDamaged:
    """Return the error to raise instead of one of redis-py; `keys`: of the script that was called."""
    text, code = str(error).rstrip("."), code_of(error)
    if code == "FORMAT":
        return unknown_format(text.rpartition("FORMAT ")[2], address)
    if code in _OF_A_CLUSTER:  # one that may not say at the door what it is
        refused = no_cluster(address)
        return ServerRefuses(f"{refused.message} It answers: {text}.", hint=refused.hint, address=address)
    if isinstance(error, redis.sentinel.MasterNotFoundError):  # whose text shows the clients' options
        none = f"{address} is watched by no sentinel that answers and knows its master."
        return ServerGone(none, hint=_PASSING, address=address)
    if (known := _KNOWN.get(code)) is not None:
        kind, what, hint = known
        return kind(f"{address} {what}: {text}.", hint=hint, address=address)
    if isinstance(error, redis.InvalidResponse):
        return ServerError(
            f"What answers at {address} does not speak the protocol of Redis.",
            hint="Check host and port, and whether it wants TLS (rediss://).",
            address=address,
        )
    if _FELL.search(text) and "killed" not in text and (session := _session_of(keys)):
        return damaged(session, address, text)  # a script cannot read what is there
    return ServerError(f"{address} answers with an error: {text}.", address=address, code=code, text=text)


def damaged(session: str, address: str, error: object) -> SessionDamaged:
    """Return the error for a session whose tables hold something that no version has written."""
    where = f" at {address}" if address else ""
    return SessionDamaged(
        f"Session {session}{where} cannot be read: {error}.".replace("..", "."),
        hint=f"Its tables were changed by something else. Delete it: graflow-ckpt sessions purge {session}.",
        session=session,
    )


@contextmanager
def readable(session: str, address: str = "") -> Iterator[None]:
    """Translate errors where bytes of a session are parsed inside. Errors of our own pass."""
    try:
        yield
    except BROKEN as error:
        if isinstance(error, GraflowError):
            raise
        raise damaged(session, address, error) from error


FREE: Final = 4 << 20
"""Bytes of JSON that are read as they are: the worst, lists in lists, take fifty times their size."""

_TIMES: Final = 24
_TAKES: Final = ((b"[", 96), (b"{", 240), (b",", 40))  # an object's first pair is in its 240


def fact(name: str, text: str | bytes) -> Any:
    """Return the value of JSON that is in Redis; ValueError if it takes more memory than its bytes justify.

    Lists of texts, which versions write, take 15 times their size; 24 times is what a plain value may take.
    """
    if len(text) > FREE:
        raw = text.encode() if isinstance(text, str) else text
        cost = sum(raw.count(sign) * size for sign, size in _TAKES)
        if cost > 50 * FREE + _TIMES * len(raw):
            raise ValueError(f"{name} has {len(raw) / 1e6:.1f} MB of JSON with too many small values")
    return json.loads(text)


def _session_of(keys: Sequence[Key]) -> str:
    key = next(iter(keys), "")
    found = _SESSION.match(key if isinstance(key, str) else key.decode(errors="replace"))
    return found[1] if found else ""


def unknown_format(said: str, address: str) -> SchemaUnsupported:
    """Return the error of a session's format, as its scripts name it: number and key."""
    number, _, key = said.partition(" ")
    session = key.partition("{")[2].partition("}")[0]
    return SchemaUnsupported(
        f"Session {session} at {address} has format {number}, which this graflow-ckpt does not know.",
        hint="Upgrade graflow-ckpt here, or leave it to the version that made it; nothing was changed.",
        session=session,
        version=number,
    )


def code_of(error: Exception) -> str:
    """Return the word that a complaint begins with, also where the library has removed it."""
    for kinds, code in _BY_CLASS:
        if isinstance(error, kinds):
            return code
    if _IN_A_SCRIPT in str(error):
        return "NOPERM"
    text = str(error).rpartition(_IN_A_PIPELINE)[2]  # redis-py puts the command before what the server said
    codes = _CODE.findall(text)
    return codes[-1] if codes else ""


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Translate errors of the client library that are raised inside."""
    try:
        yield
    except redis.RedisError as error:
        raise in_our_words(error, address) from error


def taken(address: str, kinds: Mapping[Any, str], ask: Callable[[Key], bytes | str]) -> KeyTaken:
    """Return the error that names what else is under keys. `kinds`: what each should hold; "" if unknown."""
    found = {_text(key): (_text(ask(key)), wanted) for key, wanted in kinds.items()}
    wrong = {key: kind for key, (kind, wanted) in found.items() if kind not in (wanted, "none")}
    known = {key: f", not a {wanted}" if wanted else "" for key, (_, wanted) in found.items()}
    listed = ", ".join(f"{key} is a {kind}{known[key]}" for key, kind in wrong.items())
    return KeyTaken(
        f"At {address} something else is kept under a key that is needed here: {listed}.",
        hint="Use another database (the number at the end of the address), or remove what is there (DEL).",
        address=address,
        keys=wrong,
    )


def _text(value: Key) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
