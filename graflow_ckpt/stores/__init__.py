"""Stores: where checkpoints live. `open_store` finds the one that a URL or a path asks for.

A new store is one file and one line in the table. Not here: anything that knows what a checkpoint
contains.
"""

from __future__ import annotations

import os
from importlib import import_module

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.stores import objects_names, redis_names

_REDIS = ("graflow_ckpt.stores.redis", "RedisStore")
_OBJECTS = ("graflow_ckpt.stores.objects", "ObjectStore")
_STORES = {
    "file": ("graflow_ckpt.stores.local", "LocalStore"),
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    **dict.fromkeys(objects_names.SCHEMES, _OBJECTS),
}
_TO_COME = {
    "sqlite": "sql",
    "postgres": "sql",
    "postgresql": "sql",
}


def open_store(where: str | os.PathLike[str]) -> CheckpointStore:
    """The store of a URL (`redis://host:6379/0`, `file:///srv/checkpoints`) or of a folder."""
    text = os.fspath(where)
    scheme, separator, _ = text.partition("://")
    scheme = scheme.lower() if separator else "file"
    if scheme not in _STORES:
        raise _unknown(scheme, masked(text))
    module, name = _STORES[scheme]
    store: CheckpointStore = getattr(import_module(module), name)(text)
    return store


def store_of(path: str) -> str:
    """The store that the path of a checkpoint leads to, as `open_store` takes it."""
    if redis_names.is_redis(path):
        return redis_names.split(path)[0] or "redis://"
    if objects_names.is_objects(path):
        return objects_names.split(path)[0]
    return os.path.dirname(path) or "."


def open_store_of(path: str, store: str | None = None) -> CheckpointStore:
    """The store to find a checkpoint in; `store` says which, if somebody has named one."""
    return open_store(store or store_of(path))


def home_of(said: str) -> str | None:
    """The store in which a session lives, as a checkpoint says that may lie elsewhere; None: not here."""
    home = said.removeprefix("file://")
    return home if "://" in home or os.path.isdir(home) else None


def _unknown(scheme: str, where: str) -> CheckpointError:
    known = ", ".join(f"{scheme}://" for scheme in sorted(_STORES))
    if scheme in _TO_COME:
        return CheckpointError(
            f"Checkpoints cannot be kept at {scheme}:// yet: that store will come with the extra "
            f"graflow-ckpt[{_TO_COME[scheme]}].",
            hint=f"Give a folder, or one of: {known}.",
            store=where,
            scheme=scheme,
        )
    return CheckpointError(
        f"{scheme}:// is no place for checkpoints that this version knows.",
        hint=f"Give a folder, or one of: {known}.",
        store=where,
        scheme=scheme,
    )
