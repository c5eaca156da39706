"""CheckpointManager: checkpoints under the names that users know, used through the class.

Where a checkpoint is kept follows from its path. Every method also takes `store=`.

Promise of `update_metadata`: what another process has changed since it was read is not written over
(`MetadataChanged`): of two that have read the same, one is refused. Seal and control facts are verified
before, no value is opened, and only the meta is written. Not while another process runs the session.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.care.pruning import Pruned, sweep
from graflow_ckpt.checkpoint.care.resealing import check_parts, put_sealed
from graflow_ckpt.checkpoint.model import CheckpointMetadata, check_metadata, parse
from graflow_ckpt.checkpoint.retention import DEFAULT, Cut, KeepLast, OfAll, Retention
from graflow_ckpt.checkpoint.seals import Keyring
from graflow_ckpt.core import arguments, errors
from graflow_ckpt.core.redaction import redacted
from graflow_ckpt.stores import CheckpointPath, as_path, home_of, open_store, open_store_of
from graflow_ckpt.stores.around.encodings import Metas
from graflow_ckpt.stores.names import META

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext  # named in signatures only: it is above


log = logging.getLogger("graflow_ckpt.checkpoint")


def load(checkpoint_path: CheckpointPath, *, store: str | None = None) -> ExecutionContext:
    """Return a checkpoint to look into, wherever its values are; seal and digests are verified.

    Of a .pkl that is a plain pickle `pickle.load` gives the same. To continue from it: `CheckpointManager`.
    """
    path = as_path(checkpoint_path)
    place = open_store_of(path, store)
    context: ExecutionContext = archive.load(place, Keyring.for_store(place), path)[1]
    return context


class CheckpointManager:
    """Create, resume, list and clean up checkpoints."""

    @classmethod
    def create_checkpoint(
        cls,
        context: ExecutionContext,
        path: CheckpointPath | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[str, CheckpointMetadata]:
        """Write a checkpoint of a session now."""
        return context.checkpoint(path, metadata)

    @classmethod
    def resume_from_checkpoint(
        cls, checkpoint_path: CheckpointPath, *, store: str | None = None
    ) -> tuple[ExecutionContext, CheckpointMetadata]:
        """Return the session as it was at that checkpoint, and no other; `execute` continues from it."""
        path = as_path(checkpoint_path)
        place = open_store_of(path, store)
        keyring = Keyring.for_store(place)
        context: ExecutionContext
        try:
            found, context = archive.load(place, keyring, path)
        except errors.CheckpointCorrupt as error:
            error.hint = f"{error.hint} {history.beside_damaged(place, keyring, path)}".strip()
            raise
        return context.resumed(found, home_of(found.metadata.home) or place.url), found.metadata

    @classmethod
    def list_checkpoints(
        cls, session_id: str | None = None, path_pattern: str | None = None, *, store: str = "checkpoints"
    ) -> list[CheckpointMetadata]:
        """Return the checkpoints of a session, or those that a pattern matches, newest first."""
        if session_id is not None and any(mark in session_id for mark in ("*", "/")):
            session_id, path_pattern = None, session_id
        place = open_store_of(path_pattern) if path_pattern and "://" in path_pattern else open_store(store)
        found, metas = [], Metas(place)
        for path, raw in place.list(session_id, path_pattern):
            metas.ready(raw)
            try:
                meta = metas.revealed(path, parse(path, raw, ".meta.json"))[0]
                found.append(CheckpointMetadata.from_document(path, meta))
            except errors.CheckpointError as error:
                log.warning("%s", error)
        last: dict[str, str] = {}  # sessions by their last cut; within one the clock says nothing
        for metadata in found:
            last[metadata.session_id] = max(last.get(metadata.session_id, ""), metadata.created_at)
        key = attrgetter("session_id", "epoch", "sequence")
        return sorted(found, key=lambda m: (last[m.session_id], *key(m)), reverse=True)

    @classmethod
    def get_latest(cls, session_id: str, *, store: str = "checkpoints") -> str:
        """Return the path of a session's newest good checkpoint."""
        place = open_store(store)
        found = history.newest_good(place, Keyring.for_store(place), session_id)
        if found is None:
            raise errors.CheckpointNotFound(f"Session {session_id} has no checkpoint.", session=session_id)
        return found.path

    @classmethod
    def cleanup_old_checkpoints(
        cls, keep_last_n: int = 5, session_id: str | None = None, *, store: str = "checkpoints"
    ) -> int:
        """Delete all but the newest of each session; return how many were deleted.

        Spared: the newest good one of each session, and what `prune` spares.
        """
        retention = OfAll(KeepLast(max(1, keep_last_n)))
        return len(cls.prune(retention, session_id=session_id, store=store).cuts)

    @classmethod
    def prune(
        cls,
        retention: Retention = DEFAULT,
        *,
        session_id: str | None = None,
        workflow: str | None = None,
        store: str = "checkpoints",
        dry_run: bool = False,
    ) -> Pruned:
        """Delete what a retention does not keep, also of what tasks have asked for; `dry_run`: only say what.

        Never: the newest good one of a session that can continue, paused ones, those that another session
        was forked from, and those of a session that is running: `.spared` of what is returned.
        """
        place = open_store(store)

        def among(cut: Cut) -> bool:
            return session_id in (None, cut.session) and workflow in (None, cut.workflow)

        return sweep(place, retention, among=among, dry_run=dry_run)

    @classmethod
    def update_metadata(
        cls, metadata: CheckpointMetadata, changes: dict[str, Any], *, store: str | None = None
    ) -> CheckpointMetadata:
        """Set keys of a checkpoint's user metadata; `metadata` as `verify` or a list gave them.

        MetadataChanged, and nothing is written, if another process has changed them since.
        """
        arguments.kind("metadata", metadata, CheckpointMetadata, "what `verify` or a list gave")
        place = open_store_of(metadata.path, store)
        path, session = metadata.path, metadata.session_id
        changes = check_metadata(changes)
        for name, value in changes.items():
            if redacted({name: value}) != {name: value}:
                raise errors.NotStorable(
                    f"metadata[{name!r}] looks like a secret, and would be stored in clear.",
                    hint="Give it when the checkpoint is taken: context.checkpoint(metadata=...).",
                    path=f"metadata[{name!r}]",
                )
        lease = place.acquire(session)  # from here on no other process writes what is the session's
        try:
            raw, keyring = place.meta(path), Keyring.for_store(place)
            meta = archive.find(place, keyring, path, raw).meta
            read = (metadata.checkpoint_id, redacted(metadata.user_metadata))
            if (meta["checkpoint_id"], meta["user_metadata"]) != read:
                raise errors.MetadataChanged(
                    f"The metadata of checkpoint {path} were changed by another process meanwhile.",
                    hint="Read them again (CheckpointManager.verify), and decide anew.",
                    path=path,
                    session=session,
                )
            user = {"user_metadata": meta["user_metadata"] | changes}
            put_sealed(place, keyring, path, parse(path, raw, f".{META}"), lease, user)
            check_parts(place, path, str(meta["stage"]))
        finally:
            lease.release()
        return replace(metadata, user_metadata={**metadata.user_metadata, **changes})

    @classmethod
    def verify(cls, checkpoint_path: CheckpointPath, *, store: str | None = None) -> CheckpointMetadata:
        """Check seal and digests of all three files; opens no pickle."""
        path = as_path(checkpoint_path)
        place = open_store_of(path, store)
        return archive.check(place, Keyring.for_store(place), path)[0].metadata
