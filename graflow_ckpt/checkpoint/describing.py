"""Describing: what is known of a cut before it is written, as metadata."""

from __future__ import annotations

import platform
import uuid
from typing import Any

from graflow_ckpt.checkpoint.model import CheckpointMetadata, now_iso
from graflow_ckpt.checkpoint.program import Program
from graflow_ckpt.checkpoint.snapshot import BACKEND, Snapshot


def metadata_of(
    snapshot: Snapshot, program: Program, *, path: str, sequence: int, cause: str, user: dict[str, Any] | None
) -> CheckpointMetadata:
    """The metadata of a cut that is about to be written."""
    facts = snapshot.facts
    return CheckpointMetadata(
        checkpoint_id=f"chk_{uuid.uuid4().hex}",
        session_id=facts["session_id"],
        created_at=now_iso(),
        steps=facts["steps"],
        start_node=facts["start_node"],
        backend=dict(BACKEND),
        user_metadata=dict(user or {}),
        path=path,
        workflow=program.workflow,
        sequence=sequence,
        epoch=facts["epoch"],
        status=facts["status"],
        cause=cause,
        python=platform.python_version(),
        library=library_version(),
        argv=list(program.argv),
        file=program.file,
        cwd=program.cwd,
        program=program.defined or None,
        transition=facts["transition"],
        graph=program.facts.get("digest", ""),
        inputs=dict(program.inputs or {}),
        options=dict(program.options or {}),
        settings=program.settings,
        run=facts.get("run"),
    )


def library_version() -> str:
    from graflow_ckpt import __version__

    return __version__
