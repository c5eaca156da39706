"""Attaching: from a checkpoint of a session in Redis to the session itself, which has gone on there.

Its queue and values are where they were; the checkpoint says only which session and which server. It
is looked for at the address that the checkpoint has, then at the one in the environment, which may be
another name of the same server.
"""

from __future__ import annotations

import os
from typing import Any

from graflow_ckpt.checkpoint import history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.core.errors import CheckpointError, GraflowError, NoSession, ServerGone
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_context import SharedContext
from graflow_ckpt.links.addresses import URL_VARIABLE
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.keys import Keyring


def attach(found: Found, graph: TaskGraph, store: str) -> SharedContext:
    """The live session that a checkpoint was taken of."""
    context = _looked_for(found, graph, store)
    _check_history(found, context)
    context.attached, context.found = True, found
    context.checkpoint_metadata = dict(found.metadata.user_metadata)
    return context


def _looked_for(found: Found, graph: TaskGraph, store: str) -> SharedContext:
    session = found.facts["session_id"]
    settings = Settings(workflow=found.meta.get("workflow", "workflow")).with_stored(
        found.meta.get("settings")
    )
    own = found.facts["redis"]["address"]
    named = os.environ.get(URL_VARIABLE, "").strip()
    away: ServerGone | None = None
    asked: list[str] = []
    for where in dict.fromkeys(filter(None, (own, named))):
        try:
            context = SharedContext(graph, session, open_link(where), settings=settings, store=store)
            if context.exists():
                return context
            asked.append(context.link.address)
        except ServerGone as error:
            away = away or error
    if away is not None:
        raise away
    raise NoSession(
        f"There is no session {session} at {' or '.join(dict.fromkeys(asked))}.",
        hint=f"Its queue and values were there and are not in the checkpoint {found.path}. "
        + _newest_portable(open_store(store), session),
        session=session,
    )


def _newest_portable(store: CheckpointStore, session: str) -> str:
    """What to say of the cuts that have everything in them."""
    try:
        for path, found in history.newest(store, Keyring.for_store(store), session):
            if isinstance(found, Found) and found.facts.get("redis", {}).get("portable", True):
                return (
                    f"The newest one that has them is {path} (step {found.facts['steps']}): "
                    "ExecutionContext.rewind(path) brings the session back, fork(path) makes another of it."
                )
    except GraflowError as error:
        return f"Its other checkpoints cannot be looked at: {error.message}"
    return "None of its checkpoints has them: context.checkpoint(portable=True) makes one that does."


def _check_history(found: Found, context: SharedContext) -> None:
    """What the checkpoint shows has to have happened to the session that is there."""
    line, cold = context.line(), context.facts_of("epoch", "cuts", "rewound")
    session, live, cut = context.session_id, int(line["sequence"]), int(found.facts["transition"])
    ids: dict[str, Any] = {"session": session, "live": live, "cut": cut, "path": found.path}
    epoch, number, behind = (int(cold[name] or 0) for name in ("epoch", "cuts", "rewound"))
    if int(found.meta["epoch"]) < epoch:
        if cut > behind:
            raise CheckpointError(
                f"Checkpoint {found.path} shows transition {cut} of session {session}, which was taken back "
                f"to transition {behind} since, and is at {live} now.",
                hint="Resume from a later one, or from this one in a session of its own, if it is portable: "
                "ExecutionContext.fork(path).",
                **ids,
            )
    elif live < cut or number < int(found.meta["sequence"]):
        raise CheckpointError(
            f"Session {session} at {context.link.address} is at transition {live}, and the checkpoint "
            f"{found.path} at {cut}: Redis has lost commits.",
            hint="Restore Redis from a newer copy, or go on from a portable checkpoint (rewind or fork).",
            **ids,
        )
