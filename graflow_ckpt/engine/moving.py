"""Moving: a session goes from a checkpoint that holds all of it into Redis, under its own id or another.

    rewind   the session in Redis becomes what it was; refused while somebody works on it
    fork     a new session that begins as the old one was; its idempotency keys are new

Attaching to the live session is what a resume does by itself: see shared_context.py. Who is to work on it
then, and how workers get its program, is not asked here: what a session knew of that goes along.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.sharing import bundles
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import CheckpointError, GraflowError, SessionBusy
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_context import KEPT, SharedContext
from graflow_ckpt.links.addresses import URL_VARIABLE
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.names import check_specs
from graflow_ckpt.sessions.tables import write_state
from graflow_ckpt.stores import home_of, open_store_of
from graflow_ckpt.stores.keys import Keyring

log = logging.getLogger("graflow_ckpt.engine")


Post = Callable[[str, str, str], None]
"""Has somebody given a token of a session who listens on a queue: session, token, queue."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a session goes, and what is to be known of it there besides."""

    link: RedisLink
    facts: Mapping[str, str | bytes] = field(default_factory=dict)
    keyring: Keyring | None = None  # else that of the environment
    post: Post | None = None  # without it a token waits until somebody looks


class Opened(NamedTuple):
    """A checkpoint with everything that a session needs."""

    found: Found
    graph: TaskGraph
    state: SessionState
    store: str  # in which the session's checkpoints are

    @property
    def carried(self) -> dict[str, str]:
        """What its session was known to be beside its tables."""
        known: dict[str, str] = dict(self.found.facts.get("redis", {}).get("session", {}))
        store = known.get("store", "")
        if "://" not in store and not os.path.isabs(store):  # a folder, as its maker saw it from where he was
            known["store"] = self.store
        workflow = self.found.meta.get("workflow", "workflow")
        return {"workflow": workflow, "ttl": str(KEPT), "kept": str(KEPT)} | known


def rewind(path: str, *, redis_url: str | None = None, store: str | None = None) -> SharedContext:
    """Put a session in Redis back to a portable checkpoint of it."""
    opened = opening(path, store)
    return rewound(opened, Destination(open_link(_where(opened, redis_url))))


def fork(
    path: str, session_id: str | None = None, *, redis_url: str | None = None, store: str | None = None
) -> SharedContext:
    """A new session in Redis that begins where a checkpoint was taken: a portable one, or one of memory."""
    opened = opening(path, store)
    return forked(opened, Destination(open_link(_where(opened, redis_url))), session_id)


def opening(path: str, store: str | None = None) -> Opened:
    """Verify and open it; refused if its values are not in it."""
    place = open_store_of(path, store)
    context: Any  # the ExecutionContext that the checkpoint's pickle makes
    found, context = archive.load(place, Keyring.for_store(place), path)
    if not found.facts.get("redis", {}).get("portable", True):
        raise CheckpointError(
            f"Checkpoint {path} holds no values: those of session {found.facts['session_id']} are in Redis.",
            hint="Going back needs a portable checkpoint: context.checkpoint(portable=True). "
            "Going on with the live session: CheckpointManager.resume_from_checkpoint(path).",
            path=path,
        )
    home = home_of(found.metadata.home) or place.url
    return Opened(found, context.graph_from_code(), restore(found.facts, context.payload), home)


def rewound(opened: Opened, to: Destination) -> SharedContext:
    """The session of that checkpoint at a server, as it was then; later checkpoints do not count any more."""
    context = _context(opened, to, opened.state.session)
    cold = context.facts_of("cuts", "paths") if context.exists() else {}
    metas = (raw for _, raw in context.home.store.list(context.session_id))
    highest = max((history.order_of(raw)[1] for raw in metas), default=0)
    numbers = {
        "cuts": str(max(int(cold.get("cuts") or 0), highest, int(opened.found.meta["sequence"]))),
        "paths": str(max(int(cold.get("paths") or 0), highest)),
        "rewound": str(opened.state.sequence),
    }
    try:
        _write(opened, context, "rewind", {**numbers, **to.facts}, to.post)
    except SessionBusy as error:
        error.ids["owner"] = owner = ", ".join(context.owners()) or "somebody"
        error.message = f"Session {context.session_id} is not put back: {owner} works on it."
        raise
    try:
        context.cuts_at().cut("rewind", None)  # a resume that looks for the newest one finds it
    except (GraflowError, OSError) as error:
        log.error("checkpoint failed: %s", error, extra={"session": context.session_id})
    return context


def forked(opened: Opened, to: Destination, session_id: str | None = None) -> SharedContext:
    """Another session that begins like the one of that checkpoint."""
    context = _context(opened, to, check_session_id(session_id or uuid.uuid4().hex[:12]))
    opened.state.session = context.session_id
    opened.state.epoch = 0
    begins = opened.found.meta["checkpoint_id"]
    _write(opened, context, "create", {"parent": begins, "origin": begins, **to.facts}, to.post)
    return context


def _where(opened: Opened, redis_url: str | None) -> str:
    place = opened.found.facts.get("redis")
    where = redis_url or (place["address"] if place else os.environ.get(URL_VARIABLE, "").strip())
    if not where:
        raise CheckpointError(
            f"Checkpoint {opened.found.path} is of a session in memory: say into which Redis it is to go.",
            hint=f"redis_url=, or {URL_VARIABLE}.",
            path=opened.found.path,
        )
    return str(where)


def _context(opened: Opened, to: Destination, session: str) -> SharedContext:
    carried = opened.carried
    settings = Settings(workflow=carried["workflow"]).with_stored(opened.found.meta.get("settings"))
    settings = replace(settings, max_parallel=opened.state.cap)
    context = SharedContext(
        opened.graph, session, to.link, settings=settings, store=carried["store"], keyring=to.keyring
    )
    context.attached, context.found = True, opened.found
    return context


def _write(
    opened: Opened,
    context: SharedContext,
    verb: str,
    more: Mapping[str, str | bytes],
    post: Post | None,
) -> None:
    state = opened.state
    facts: dict[str, str | bytes] = {**opened.carried, **more}
    if cap := facts.pop("cap", ""):
        state.cap = int(cap)
    opened.graph.compile(state.starts or opened.graph.roots())
    check_specs(opened.graph, state)
    for key in sorted(state.claimed, key=state.claimed.__getitem__, reverse=True):
        apply(state, [("release", key, state.specs[key].crashes)], 0.0)
    flags = str(facts.pop("flags", ""))
    facts |= {
        "created": repr(time.time()), "starts": json.dumps(state.starts),
        "cut": opened.found.meta["checkpoint_id"], "cut_steps": str(state.steps),
        "cut_of": str(state.sequence),
    }  # fmt: skip
    write_state(context.link, state, context.cells, facts, verb=verb, flags=flags, share=bundles)
    if post is not None:
        context.tables.on_emitted = partial(post, state.session)
    context.tables.commit([("claim", 0)])  # it may have ended; or somebody has to be asked for
