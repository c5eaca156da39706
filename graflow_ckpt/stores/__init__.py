"""Stores: where checkpoints live. `open_store` finds the one that a URL or a path asks for.

A new store is one file and one line in the table. Not here: anything that knows what a checkpoint
contains, and what may be wrapped around a store (prefixes.py).
"""

from __future__ import annotations

import logging
import os
from importlib import import_module

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.stores.drivers.objects import names as objects_names
from graflow_ckpt.stores.drivers.postgres import names as postgres_names
from graflow_ckpt.stores.drivers.redis import names as redis_names
from graflow_ckpt.stores.drivers.sqlite import names as sqlite_names
from graflow_ckpt.stores.names import without_scheme
from graflow_ckpt.stores.prefixes import (
    WRAPPERS,
    begins_like_one,
    divided,
    is_address,
    prefix_of,
    unwrapped,
)

log = logging.getLogger(__name__)

_POSTGRES = ("graflow_ckpt.stores.drivers.postgres.store", "PostgresStore")
_REDIS = ("graflow_ckpt.stores.drivers.redis.store", "RedisStore")
_OBJECTS = ("graflow_ckpt.stores.drivers.objects.store", "ObjectStore")
_STORES = {
    "file": ("graflow_ckpt.stores.files.store", "LocalStore"),
    "memory": ("graflow_ckpt.stores.drivers.memory.store", "MemoryStore"),
    "postgres": _POSTGRES,
    "postgresql": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "sqlite": ("graflow_ckpt.stores.drivers.sqlite.store", "SqliteStore"),
    **dict.fromkeys(objects_names.SCHEMES, _OBJECTS),
}


Place = str | os.PathLike[str] | CheckpointStore
"""An address, a folder, or a store that a program has made."""

CheckpointPath = str | os.PathLike[str]
"""The path of a checkpoint, as users give it."""

_made: dict[str, CheckpointStore] = {}


def open_store(where: str | os.PathLike[str]) -> CheckpointStore:
    """Return the store of a URL (`redis://host:6379/0`, `file:///srv/checkpoints`) or of a folder."""
    if made := _made.get(os.fspath(where)):
        return made
    layers, text = divided(os.fspath(where))
    if begins_like_one(text):
        raise _no_address(text)
    if text.startswith(("~/", "file://~/", "sqlite:///~/")) or text == "~":
        raise _of_a_shell(text)
    scheme = _scheme_of(text)
    if scheme not in _STORES:
        raise _unknown(scheme, masked(text))
    word, colon, rest = text.partition(":")
    if scheme == "file" and colon and word.lower() in _STORES and "://" not in text:
        raise _half_an_address(word.lower(), rest, text)
    word, plus, rest = text.partition("+")
    if scheme == "file" and plus and word.isalpha() and (rest.startswith("/") or is_address(rest)):
        raise _no_wrapper(word, text)  # encryptd+/srv/runs would be a folder in clear
    module, name = _STORES[scheme]
    store: CheckpointStore = getattr(import_module(module), name)(text)
    for layer in reversed(layers):
        module, name = WRAPPERS[layer.word]
        store = getattr(import_module(module), name).of(store, layer.argument)
    return store


def address_of(place: Place, workflow: str = "") -> str:
    """Return the address of a place; `${workflow.name}` in it stands for the name. A store that was made is
    what its address opens from now on in this process: with the keys and bounds that it was given."""
    if isinstance(place, str | os.PathLike):
        if not os.fspath(place).strip():  # of a variable that is not set, say
            raise arguments.refused("store", place, "an address, a path or a store")
        return os.fspath(place).replace("${workflow.name}", workflow)
    if not isinstance(getattr(place, "url", None), str):
        raise arguments.refused("store", place, "an address, a path or a store")
    _made[place.url] = place
    return place.url


def store_of(path: str) -> str:
    """Return the store that the path of a checkpoint leads to, as `open_store` takes it."""
    if prefix := prefix_of(path):
        return prefix + store_of(unwrapped(path))
    if redis_names.is_redis(path):
        return redis_names.split(path)[0] or "redis://"
    if sqlite_names.is_sqlite(path):
        return sqlite_names.split(path)[0] or "sqlite://"
    if postgres_names.is_postgres(path):
        return postgres_names.divided(path)[0]
    if objects_names.is_objects(path):
        return objects_names.split(path)[0]
    return os.path.dirname(path) or "."


def as_path(path: object) -> str:
    """Return the path of a checkpoint as a user has given it; refuse what is none."""
    if isinstance(path, str | os.PathLike) and os.fspath(path).strip():
        return os.fspath(path)
    raise arguments.refused("path", path, "the path of a checkpoint")


def as_typed(store: str) -> str:
    """Return a store's address with what has to follow that of a bucket: no other process knows it."""
    inner = unwrapped(store)
    return prefix_of(store) + objects_names.as_typed(inner) if objects_names.is_objects(inner) else store


def open_store_of(path: str, store: str | None = None) -> CheckpointStore:
    """Return the store to find a checkpoint in: `store`, if one was named."""
    return open_store(store or store_of(path))


def lies_in(store: CheckpointStore, path: str) -> bool:
    """Return True if that is the path of a checkpoint in the folder of a store, however it is written."""
    if os.path.dirname(path) == store.folder:
        return True
    if (taken := store.takes(path)) is None:
        return False
    folder = os.path.dirname(taken)
    return folder == store.folder or _real(folder) == _real(store.url)


def _real(where: str) -> str:
    return prefix_of(where) + os.path.realpath(without_scheme(unwrapped(where)))


def open_beside(own: CheckpointStore, path: str) -> CheckpointStore:
    """Return the store that a path leads to, not one of `own`. Log it, if that leaves an encrypted one."""
    place = open_store_of(path)
    if "encrypted+" in prefix_of(own.url) and "encrypted+" not in prefix_of(place.url):
        log.warning(
            "checkpoint %s is not encrypted: it is not in %s, but in %s", masked(path), own.url, place.url
        )
    return place


def home_of(said: str) -> str | None:
    """Return the store in which a session lives, as a checkpoint names it; None: it is not here."""
    if prefix_of(said):
        return None if home_of(unwrapped(said)) is None else said
    if sqlite_names.is_sqlite(said):
        return said if os.path.isfile(sqlite_names.file_of(said)) else None
    home = without_scheme(said)
    return home if "://" in home or os.path.isdir(home) else None


def keeps_journal(where: str) -> bool:
    """Return whether a record costs about as much as a sync there; in a bucket each is a request."""
    return backend_of(where) not in objects_names.SCHEMES


def backend_of(where: str) -> str:
    """Return the kind of a store, without the wrappers around it: `file`, `redis`, `sqlite`, `s3` …"""
    return _scheme_of(unwrapped(where)).partition("+")[0]


def _scheme_of(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if separator:
        return scheme.lower()
    memory = text.partition("?")[0].lower() == "memory:"  # it has no slashes: nothing would follow them
    return "memory" if memory else "file"


def folder_on_disk(store: CheckpointStore) -> str:
    """Return the folder in which a store that is not `shared` has its files."""
    url = unwrapped(store.url)
    if sqlite_names.is_sqlite(url):
        return os.path.dirname(sqlite_names.file_of(url))
    return url.removeprefix("file://")


def _no_address(text: str) -> CheckpointError:
    prefix = text.rpartition("+")[0]
    return CheckpointError(
        f"{text} begins with what is wrapped around a store, and no address of one follows.",
        hint=f"Write {prefix}+file:///FOLDER with the whole path of a folder, or {prefix}+SCHEME://….",
        store=text,
    )


def _of_a_shell(text: str) -> CheckpointError:
    """Return the error for `~`: else a folder named like a user's home would be made, and removed one day."""
    return CheckpointError(
        f"{text}: what ~ means only a shell knows.",
        hint=f"Write the whole path, as in {text.replace('~', os.path.expanduser('~'), 1)}.",
        store=text,
    )


def _half_an_address(word: str, rest: str, text: str) -> CheckpointError:
    """Return the error for `sqlite:runs.db`: it would be a folder of that name."""
    meant = {"file": f"file://{os.path.abspath(rest)}", "sqlite": f"sqlite:///{rest}"}
    known = meant.get(word, word + "://" + rest.lstrip("/"))
    return CheckpointError(
        f"{masked(text)} is no address, and was hardly meant as a folder.",
        hint=f"Write {masked(known)}, or ./{masked(text)} for a folder of that name.",
        store=masked(text),
    )


def _no_wrapper(word: str, text: str) -> CheckpointError:
    known = ", ".join(f"{name}+" for name in WRAPPERS)
    return CheckpointError(
        f"Nothing that is wrapped around a store is called {word}+.",
        hint=f"There is: {known}. Write ./{text} for a folder of that name.",
        store=text,
    )


def _unknown(scheme: str, where: str) -> CheckpointError:
    known = ", ".join(f"{scheme}://" for scheme in sorted(_STORES))
    before = f" Before it: {', '.join(f'{name}+' for name in WRAPPERS)}." if "+" in scheme else ""
    return CheckpointError(
        f"{scheme}:// is no place for checkpoints that this version knows.",
        hint=f"Give a folder, or one of: {known}.{before}",
        store=where,
        scheme=scheme,
    )
