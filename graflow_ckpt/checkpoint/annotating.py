"""Annotating: a user's metadata of a checkpoint that is there are changed, by whoever saw them last.

Promise: what was changed by somebody else since it was read is not written over (`MetadataChanged`): of two
who have read the same, one is refused. Seal and control facts are verified before, no value is opened, and
only the meta is written. Not while somebody runs the session.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graflow_ckpt.checkpoint.archive import find
from graflow_ckpt.checkpoint.model import CheckpointMetadata, check_metadata, parse
from graflow_ckpt.checkpoint.resealing import check_parts, put_sealed
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.errors import MetadataChanged, NotStorable
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.redaction import redacted
from graflow_ckpt.stores.names import META


def annotate(
    store: CheckpointStore,
    keyring: Keyring,
    read: CheckpointMetadata,
    changes: dict[str, Any],  # JSON, as users give it
) -> CheckpointMetadata:
    """The metadata as they were `read`, with these keys set to what is given here; all others stay."""
    changes = check_metadata(changes)
    for name in changes:
        if redacted({name: changes[name]}) != {name: changes[name]}:
            raise NotStorable(
                f"metadata[{name!r}] looks like a secret, and would be stored in clear.",
                hint="Give it when the checkpoint is taken: context.checkpoint(metadata=...).",
                path=f"metadata[{name!r}]",
            )
    lease = store.acquire(read.session_id)  # from here on nobody else writes what is the session's
    try:
        find(store, keyring, read.path)
        meta = parse(read.path, store.meta(read.path), f".{META}")
        if (meta["checkpoint_id"], meta["user_metadata"]) != (
            read.checkpoint_id,
            redacted(read.user_metadata),
        ):
            raise MetadataChanged(
                f"The metadata of checkpoint {read.path} were changed by somebody else meanwhile.",
                hint="Read them again (CheckpointManager.verify), and decide anew.",
                path=read.path,
                session=read.session_id,
            )
        meta["user_metadata"] |= changes
        put_sealed(store, keyring, read.path, meta, lease)
        check_parts(store, read.path, str(meta["stage"]))
        return replace(read, user_metadata={**read.user_metadata, **changes})
    finally:
        lease.release()
