"""The listing of checkpoints, as their unverified metadata describe them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from graflow_ckpt.checkpoint.model import CheckpointMetadata, parse
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.redaction import redacted, redacted_argv
from graflow_ckpt.interfaces.cli.manner import Document
from graflow_ckpt.stores import open_store

_UNREADABLE = "unreadable"
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint; `size` is that of its parts together."""

    metadata: CheckpointMetadata
    size: int | None

    def document(self) -> Document:
        found = asdict(self.metadata)
        found["user_metadata"] = redacted(found["user_metadata"])
        found["argv"] = redacted_argv([str(word) for word in found["argv"]])
        return {**found, "size": self.size}


def listing(store: str, limit: int | None = None, **wanted: str | None) -> list[Listed]:
    """Newest first; what cannot be read is in it, so that it is not overlooked.

    `wanted`: session, workflow, status; what cannot be read has no workflow, and the status "unreadable".
    """
    if wanted.get("status") == _UNREADABLE:  # none says so of itself
        rows = listing(store, session=wanted.get("session"), workflow=wanted.get("workflow"))
        return [row for row in rows if row.metadata.status == _UNREADABLE][:limit]
    found = open_store(store).newest(_ALL if limit is None else min(limit, _ALL), **wanted)
    return [_listed(path, raw) for path, raw in found]


def _listed(path: str, raw: bytes) -> Listed:
    try:
        document = parse(path, raw, ".meta.json")
        metadata = CheckpointMetadata.from_document(path, document)
    except CheckpointError:
        return Listed(
            CheckpointMetadata("", "", "", 0, "", {}, {}, path=path, status=_UNREADABLE, cause=""), None
        )
    return Listed(metadata, size_of(document))


def size_of(meta: Document) -> int | None:
    """All parts together, as a meta says."""
    try:
        return sum(int(part["size"]) for part in meta["parts"].values())
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
