"""Sealing again: the meta of a checkpoint under another key; the other files stay as they are."""

from __future__ import annotations

import json

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.seal import Keyring, seal
from graflow_ckpt.core.errors import UnsafeCheckpoint
from graflow_ckpt.core.protocols import Sink
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
    sealed = seal({name: value for name, value in meta.items() if name not in ("seal", "key_id")}, keyring)

    def write(sink: Sink) -> None:
        sink.write(json.dumps(sealed, separators=(",", ":")).encode())

    store.put(path, [("meta.json", write)], lease=None, stage=str(meta["stage"]))
    return keyring.signing[0]
