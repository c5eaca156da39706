"""Stores whose new checkpoints are encoded: what is done to the bytes is in encodings.py.

    Encrypted(store, keyring)          keyring: None, and the keys of the environment are taken
    Compressed(store)
    encrypted+postgresql://host/db     compressed+encrypted+s3://bucket/runs       the same, by an address
    EncryptedCheckpointStore(db_path, encryption_key)     in SQLite, with a Fernet key

Promise: around a store that encrypts nothing is saved in the clear, and what is not encrypted is refused
there by name. What is read says itself how it is encoded: with the keys, it is read by the address without
the word, too. The order of the words makes no difference: what is compressed and encrypted is
compressed first. Not here: an older trio that was put back (history.py looks at epochs and sequences), and
keys that were lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from graflow_ckpt.core.errors import NoKey
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around.encodings import AEAD, KINDS, NEEDED, ZSTD
from graflow_ckpt.stores.around.keys import Keyring, fernet_keys
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore


class Encoded(Wrapper):
    """The same store; what is above asks it how to encode. It is passed on as it comes."""

    kind: ClassVar[str]
    reads_shared = shares = True

    def __init__(self, inner: CheckpointStore) -> None:
        NEEDED[self.kind]()  # before anything is done
        super().__init__(inner)

    @property
    def encoding(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if kind == self.kind or kind in self.inner.encoding)


class Compressed(Encoded):
    """Parts take less room, where that pays."""

    word, kind = "compressed", ZSTD


class Encrypted(Encoded):
    """A reader of the place reads neither values nor metadata. `fernet`: keys of that kind, before those
    of the ring. What is given comes before the keys of the environment."""

    word, kind = "encrypted", AEAD

    def __init__(
        self, inner: CheckpointStore, keyring: Keyring | None = None, *, fernet: str | bytes = ""
    ) -> None:
        super().__init__(inner)
        text = fernet.decode("ascii", "replace") if isinstance(fernet, bytes) else fernet
        self._keys = {
            **(fernet_keys(text) if text else {}),
            **(keyring.opening if keyring is not None else {}),
        }

    @property
    def keys(self) -> Mapping[str, bytes]:
        return self._keys or self.inner.keys


class EncryptedCheckpointStore(Encrypted):
    """A database of one file, encrypted with a key of `Fernet.generate_key()`."""

    def __init__(self, db_path: str | os.PathLike[str], encryption_key: str | bytes) -> None:
        if not encryption_key:
            raise NoKey("An encrypted store needs a key.", hint="Fernet.generate_key() makes one; keep it.")
        super().__init__(SqliteStore(db_path), fernet=encryption_key)
