"""Keys, as the layers above the stores know them. They are in stores/keys.py, so that a store that
encrypts has them, too."""

from __future__ import annotations

from graflow_ckpt.stores.keys import (
    SIZE,
    Keyring,
    key_file,
    local_key_path,
    new_key,
    put_first,
    uses_local_key,
)

__all__ = ["SIZE", "Keyring", "key_file", "local_key_path", "new_key", "put_first", "uses_local_key"]
