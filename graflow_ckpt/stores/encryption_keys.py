"""The secrets that an encrypted store opens its checkpoints with: by id, the first one encrypts.

The keys that seal are enough: what encrypts is derived from the same secrets for that purpose alone, so that
there is nothing more to look after, and neither key tells anything about the other. Whoever has
a Fernet key already may give that (`GRAFLOW_CKPT_FERNET_KEY`, or as an argument): several, divided by commas
or white space, come before the others. It is taken as a secret of 32 bytes; tokens of Fernet are not written.
"""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Final

from blake3 import blake3

from graflow_ckpt.core.errors import CheckpointError, NoKey
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.keys import SIZE, Keyring

FERNET_VARIABLE: Final = "GRAFLOW_CKPT_FERNET_KEY"


def fernet_keys(text: str, origin: str = FERNET_VARIABLE) -> dict[str, bytes]:
    """Keys as `Fernet.generate_key()` writes them, by ids that are digests of them."""
    keys: dict[str, bytes] = {}
    for number, word in enumerate(re.split(r"[\s,]+", text.strip()), 1):
        try:
            secret = urlsafe_b64decode(word)
        except ValueError:
            secret = b""
        if len(secret) != SIZE:  # the message must not hold the word: it may be a secret
            raise CheckpointError(
                f"Key {number} of {origin} is no Fernet key: {SIZE} bytes in URL-safe base64.",
                hint="Fernet.generate_key() makes one.",
                origin=origin,
            )
        digest = blake3(secret, derive_key_context="graflow_ckpt 2026 fernet id").hexdigest(6)
        keys[f"fernet-{digest}"] = secret
    return keys


def of_environment(store: CheckpointStore, env: Mapping[str, str] = os.environ) -> Keyring:
    """What this environment has for a store: Fernet keys first, then those that seal."""
    text = env.get(FERNET_VARIABLE, "").strip()
    if not text:
        return Keyring.for_store(store, env)
    return with_fernet(text, _sealing(store, env))


def with_fernet(text: str, keyring: Keyring | None) -> Keyring:
    """Fernet keys, and after them the keys of a ring."""
    keys = fernet_keys(text)
    for key_id in keyring.ids if keyring is not None else ():
        secret = keyring.secret(key_id) if keyring is not None else None
        if secret is not None:
            keys.setdefault(key_id, secret)
    return Keyring(keys)


def _sealing(store: CheckpointStore, env: Mapping[str, str]) -> Keyring | None:
    try:
        return Keyring.for_store(store, env)
    except NoKey:
        return None  # whoever seals says so; to encrypt there is enough
