"""Mounts: the kind of file system that a path is on.

Answers only where /proc/mounts is; elsewhere nothing is known. Not here: what follows from it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

TABLE: Final = Path("/proc/mounts")
_NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs",
    "gfs2", "ocfs2", "orangefs", "fuse.sshfs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse",
    "fuse.juicefs", "fuse.mount-s3",
})  # fmt: skip


def file_system(target: str | os.PathLike[str], table: Path = TABLE) -> str | None:
    """Return the kind of file system that `target` is on, or will be made on; None: not known."""
    try:
        mounts = mounted(table.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return None
    return kind_at(Path(target), mounts)


def network_file_system(target: str | os.PathLike[str], table: Path = TABLE) -> str | None:
    """Return the same, if other hosts can write there, too; else None."""
    kind = file_system(target, table)
    return kind if kind in _NETWORK else None


def mounted(table: str) -> dict[str, str]:
    """Return what is mounted, by its place; the last one of several at one place hides the others."""
    found: dict[str, str] = {}
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) >= 3:
            # Spaces, tabs and newlines of a name are octal.
            found[re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])] = fields[2]
    return found


def kind_at(path: Path, mounts: dict[str, str]) -> str | None:
    """Return the kind of the deepest mount above `path`."""
    here = os.path.realpath(path)  # of what does not exist yet, as far as it does
    while here not in mounts and here != os.path.dirname(here):
        here = os.path.dirname(here)
    return mounts.get(here)
