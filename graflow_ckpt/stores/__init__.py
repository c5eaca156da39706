"""Stores: where checkpoints live. `open_store` finds the one that a URL or a path asks for.

A new store is one file and one line in the table. Not here: anything that knows what a checkpoint
contains.
"""

from __future__ import annotations

import os
from importlib import import_module

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import CheckpointStore

_STORES = {
    "file": ("graflow_ckpt.stores.local", "LocalStore"),
}
_TO_COME = {
    "redis": "fleet",
    "rediss": "fleet",
    "sqlite": "sql",
    "postgres": "sql",
    "postgresql": "sql",
    "s3": "objects",
    "gs": "objects",
    "gcs": "objects",
    "az": "objects",
    "azure": "objects",
}


def open_store(where: str | os.PathLike[str]) -> CheckpointStore:
    """The store of a URL (`file:///srv/checkpoints`) or of a folder (`checkpoints`)."""
    scheme, place = _split(os.fspath(where))
    if scheme not in _STORES:
        raise _unknown(scheme, os.fspath(where))
    module, name = _STORES[scheme]
    store: CheckpointStore = getattr(import_module(module), name)(place)
    return store


def _split(where: str) -> tuple[str, str]:
    scheme, separator, place = where.partition("://")
    return (scheme.lower(), place) if separator else ("file", where)


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
