"""Adopt: a session is set to a checkpoint, as the first of a new epoch.

    epoch 1    1 ─── 2 ─── 3        `adopt` of 2 into the same session, a rewind: its state is written again
    epoch 2          └──── 4 ─── 5  as the first checkpoint of epoch 2, and what came after it counts no more

An epoch begins either with an adopted checkpoint or by continuing the one before. A session is at the
newest good checkpoint of its newest line of such epochs, plus the journal of that line after it. A plain
resume continues, and copies nothing. Into another session `adopt` is a fork: its `origin` is that checkpoint.

    what stands      a checkpoint that holds all of its session, with or without the journal after it
    into a store     `adopt`: one checkpoint, whose `parent` is what it continues
    into Redis       `adopt_into` (shared_context.py): tables and epoch change in one script, and not while
                     tokens live

Promise: a process that is killed meanwhile has adopted all of it or nothing.
Not here: another store, to which a session is copied as it is (checkpoint/care/copying.py), and which line
counts (checkpoint/history.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.snapshot import capture, restore
from graflow_ckpt.core.errors import CheckpointError, SessionExists
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.home import Home
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.stores import CheckpointPath, as_path, home_of, open_store_of
from graflow_ckpt.stores.around.keys import Keyring

KEPT = 30 * 24 * 3600
"""Seconds for which a session in Redis that has failed or stopped can be continued."""


class Standing(NamedTuple):
    """A checkpoint with everything that a session needs."""

    found: Found
    graph: TaskGraph
    state: SessionState
    store: str  # in which the session's checkpoints are

    @property
    def session(self) -> str:
        return str(self.found.meta["session_id"])

    @property
    def settings(self) -> Settings:
        """Return what the session is run with unless a program says otherwise."""
        settings = Settings(workflow=self.carried["workflow"]).with_stored(self.found.meta.get("settings"))
        return replace(settings, max_parallel=self.state.cap)

    @property
    def carried(self) -> dict[str, str]:
        """Return what is known of the checkpoint's session in addition to its tables."""
        known: dict[str, str] = dict(self.found.facts.get("redis", {}).get("session", {}))
        store = known.get("store", "")
        if "://" not in store and not os.path.isabs(store):  # relative to its maker's working directory
            known["store"] = self.store
        workflow = self.found.meta.get("workflow", "workflow")
        return {"workflow": workflow, "ttl": str(KEPT), "kept": str(KEPT)} | known


def standing_at(path: CheckpointPath, store: str | None = None) -> Standing:
    """Verify a checkpoint and open it; refused if its values are not in it."""
    path = as_path(path)
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
    return Standing(found, context.graph_from_code(), restore(found.facts, context.payload), home)


def adopt(
    standing: Standing, session: str | None, store: CheckpointStore, *, take_over: bool = False
) -> CheckpointMetadata:
    """Write what stands there as the first checkpoint of a session's next epoch; nothing is run.

    None: its own session, which is left alone if it stands there already. SessionExists if a session of
    another id has checkpoints.
    """
    found, graph, state = standing.found, standing.graph, standing.state
    home = Home(store, check_session_id(standing.session if session is None else session))
    home.program.writes(home.program.written.adopting(found.meta))
    lease = home.open(take_over=take_over)
    try:
        if session is None and home.lineage.ends_at(found, home.keyring):
            return found.metadata
        if session is not None and any(store.list(session)):
            raise SessionExists(
                f"Session {session} exists already in {store.url}.", hint="Give another id.", session=session
            )
        home.continue_from(found)
        home.lineage.adopt(found, lease)
        state.belong_to(home.session, state.epoch)
        graph.compile(state.starts or graph.roots())
        cause, user = ("rewind", None) if session is None else ("fork", dict(found.meta["user_metadata"]))
        return home.cut(graph, capture(state), cause, user)
    finally:
        home.close()
