"""Sealing again: the meta of a checkpoint under another key; the other files stay as they are."""

from __future__ import annotations

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.resealing import put_sealed
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.errors import UnsafeCheckpoint
from graflow_ckpt.stores import open_store_of


def check_parts(path: str) -> Document:
    """That the other files are the ones of this meta, byte for byte; the meta."""
    store = open_store_of(path)
    unsafe = store.unsafe(path)
    if unsafe is not None:
        raise UnsafeCheckpoint(
            f"Checkpoint {path} is not sealed: {unsafe}.",
            hint="Anybody could change it before it is sealed. Take the permission away first (chmod o-w).",
            path=path,
        )
    return archive.described(store, path)


def reseal(path: str) -> str:
    """Seal it with this machine's key; the key's id."""
    store = open_store_of(path)
    meta = check_parts(path)
    keyring = Keyring.for_store(store)
    put_sealed(store, keyring, path, meta, None)
    return keyring.signing[0]
