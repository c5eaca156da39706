"""Whether what an encrypted store has can be opened here. A key is not made for that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from graflow_ckpt.checkpoint.keys import local_key_path, uses_local_key
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.interfaces.cli.findings import Finding
from graflow_ckpt.interfaces.cli.words import counted
from graflow_ckpt.stores.prefixes import prefix_of


def encryption(place: CheckpointStore) -> Iterator[Finding]:
    """Nothing, if the store is not encrypted. Reads all metadata, no value."""
    if "encrypted+" not in prefix_of(place.url):
        return
    from graflow_ckpt.stores.encrypted import keys_by_path, within

    if not place.shared and uses_local_key() and not os.path.exists(local_key_path()):
        yield Finding("encryption", "ok", "with the key that the first save makes")
        return
    try:
        found, keys = within(place), Counter(keys_by_path(place).values())
        ids = found.keyring.ids if found is not None else ("",)
    except GraflowError as error:
        yield Finding("encryption", "bad", str(error))
        return
    here = f"what is new, with key {ids[0]}"
    if older := sum(count for key_id, count in keys.items() if key_id in ids[1:]):
        here += f"; {counted(older, 'checkpoint')} with older ones (graflow-ckpt key reseal)"
    yield Finding("encryption", "ok", here)
    for key_id, count in sorted(keys.items()):
        if key_id not in ids:
            what = f"encrypted with key {key_id}, which is not here" if key_id else "not encrypted at all"
            yield Finding("encryption", "warning", f"{counted(count, 'checkpoint')}: {what}")
