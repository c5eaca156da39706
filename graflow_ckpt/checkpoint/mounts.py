"""Mounts: does the key live as long as the checkpoints that it seals?

In a container the home is often an overlay or in memory while the checkpoints go to a volume.
The key is gone with the container then, and the next one cannot verify what it finds. Answers
only where /proc/mounts is; elsewhere nothing is known and nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from graflow_ckpt.stores.keys import local_key_path, uses_local_key
from graflow_ckpt.stores.mounts import TABLE, file_system, kind_at, mounted

_PASSING: Final = frozenset({"tmpfs", "ramfs", "overlay", "aufs", "rootfs", "squashfs"})


def key_storage_warning(
    target: str | os.PathLike[str], env: Mapping[str, str] = os.environ, table: Path = TABLE
) -> str | None:
    """What to tell the user if the local key will be gone before the checkpoints at `target`."""
    if not uses_local_key(env):
        return None
    try:
        mounts = mounted(table.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return None
    key = local_key_path(env)
    key_on, target_on = kind_at(key, mounts), kind_at(Path(target), mounts)
    if key_on not in _PASSING or target_on is None or target_on in _PASSING:
        return None
    return (
        f"The key that seals checkpoints is in {key.parent} on {key_on}, which ends with this container or"
        f" boot; the checkpoints in {target} are on {target_on} and stay, but nobody could verify them then."
        " Set GRAFLOW_CKPT_KEY or GRAFLOW_CKPT_KEY_FILE to a key that stays (graflow-ckpt key new)."
    )


def passing_warning(
    target: str | os.PathLike[str], env: Mapping[str, str] = os.environ, table: Path = TABLE
) -> str | None:
    """Return what to say where there is no home, as in a container, and `target` ends with it."""
    kind = None if env.get("HOME") else file_system(target, table)
    if kind not in _PASSING:
        return None
    return (
        f"The checkpoints in {target} are on {kind}, which ends with this container or boot."
        " Name a folder of a volume: --store or GRAFLOW_CKPT_STORE."
    )
