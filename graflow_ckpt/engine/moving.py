"""Moving: a session goes from a portable checkpoint into Redis, under its own id or another.

    rewind   the session in Redis becomes what it was; refused while somebody works on it
    fork     a new session that begins as the old one was

Attaching to the live session is what a resume does by itself: see shared_context.py.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_context import KEPT, SharedContext
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.tables import write_state
from graflow_ckpt.stores import open_store_of


def rewind(path: str, *, redis_url: str | None = None, store: str | None = None) -> SharedContext:
    """Put a session in Redis back to a portable checkpoint of it."""
    found, context, state = _opened(path, store)
    link = open_link(redis_url or found.facts["redis"]["address"])
    return _written(link, found, context, state, "rewind")


def fork(
    path: str, session_id: str | None = None, *, redis_url: str | None = None, store: str | None = None
) -> SharedContext:
    """A new session in Redis that begins where a checkpoint was taken: a portable one, or one of memory."""
    found, context, state = _opened(path, store)
    place = found.facts.get("redis")
    where = redis_url or (place["address"] if place else os.environ.get("GRAFLOW_CKPT_REDIS_URL"))
    if not where:
        raise CheckpointError(
            f"Checkpoint {path} is of a session in memory: say into which Redis it is to go.",
            hint="redis_url=, or GRAFLOW_CKPT_REDIS_URL.",
            path=path,
        )
    state.session = check_session_id(session_id or uuid.uuid4().hex[:12])
    state.epoch = 0
    return _written(open_link(where), found, context, state, "create")


# Any: the ExecutionContext that the checkpoint's pickle makes.
def _opened(path: str, store: str | None) -> tuple[Found, Any, SessionState]:
    place = open_store_of(path, store)
    found, context = archive.load(place, Keyring.for_store(place), path)
    redis = found.facts.get("redis")
    if redis is not None and not redis["portable"]:
        raise CheckpointError(
            f"Checkpoint {path} holds no values: those of session {found.facts['session_id']} are in Redis.",
            hint="Going back needs a portable checkpoint: context.checkpoint(portable=True). "
            "Going on with the live session: CheckpointManager.resume_from_checkpoint(path).",
            path=path,
        )
    return found, context, restore(found.facts, context.payload)


def _written(link: RedisLink, found: Found, context: Any, state: SessionState, verb: str) -> SharedContext:
    workflow = found.meta.get("workflow", "workflow")
    apply(
        state,
        [("release", key, state.specs[key].crashes) for key in sorted(state.claimed, reverse=True)],
        0.0,
    )
    shared = SharedContext(
        context.graph_from_code(), state.session, link, settings=Settings(workflow=workflow),
        store=found.metadata.home.removeprefix("file://") or "checkpoints",
    )  # fmt: skip
    facts = {
        "workflow": workflow, "created": repr(time.time()), "ttl": str(KEPT), "kept": str(KEPT),
        "starts": json.dumps(state.starts), "parent": found.meta["checkpoint_id"],
        "cut": found.meta["checkpoint_id"], "cuts": str(found.meta["sequence"]), "store": shared.place,
    }  # fmt: skip
    write_state(link, state, SealedCells(state.session, shared.keyring), facts, verb=verb)
    shared.attached = True
    return shared
