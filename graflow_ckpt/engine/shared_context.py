"""The way of a session into Redis: made there, attached to where it is, or adopted from a checkpoint.

What comes of it is a `SharedPlace`, by which an ExecutionContext reaches the session. Its checkpoints are
written to the store that it was made with, and hold no values: those stay in Redis, where resume finds them.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from graflow_ckpt.checkpoint import history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core import arguments, errors
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.engine.adopt import KEPT, Standing
from graflow_ckpt.engine.resuming import Basis, Written, check_workflow, is_finished, next_run
from graflow_ckpt.engine.shared import SharedExecution
from graflow_ckpt.engine.shared_home import SharedHome, numbers, record, write
from graflow_ckpt.links.addresses import URL_VARIABLE
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.facts import RedisFacts
from graflow_ckpt.sessions.redis.names import check_specs
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring, uses_local_key

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext


class SharedPlace(NamedTuple):
    """A session at a server, as a context uses it."""

    session: RedisSession
    home: SharedHome
    executed_by: type[SharedExecution] = SharedExecution


def place_at(
    link: RedisLink, session: str, store: CheckpointStore, keyring: Keyring | None = None
) -> SharedPlace:
    """Return the way to a session; `keyring`: else that of the environment."""
    cells = SealedCells(session, keyring if keyring or uses_local_key() else Keyring.load(local=False))
    home = SharedHome(link, session, cells, store, None, Written(cwd=None, argv=()))
    return SharedPlace(RedisSession(link, session, cells), home)


def made(
    context: ExecutionContext, start_node: str | None, max_steps: int | None,
    config: Mapping[str, Any] | None, store: str,
) -> ExecutionContext:  # fmt: skip
    """Return the context with a new session, or, under an id that Redis knows, that one."""
    if max_steps is not None:
        arguments.counted("max_steps", max_steps, least=0)
    place = place_at(link_of(config), context.session_id, context.home.store)
    context.move_to(*place)
    settings = context.settings
    cap = "" if settings.max_parallel is None else settings.max_parallel
    line = f"running|0|0|1|1|1|{'' if max_steps is None else max_steps}|{cap}|||"
    facts = {
        "workflow": settings.workflow, "epoch": "1", "store": store,
        "starts": json.dumps([start_node] if start_node else []), "ttl": str(KEPT), "kept": str(KEPT),
    }  # fmt: skip
    if not place.session.create(line, facts):
        context.is_there()
        if settings.on_finished == "again" and is_finished(former := place.home.follow()):
            check_workflow(context, former, place.home.facts.get("workflow"))
            state = next_run(former, place.home.store, max_steps)  # it is in Redis once it is executed
            state.start_at((start_node,) if start_node else ())
            state.run_at_once(settings.max_parallel)
            context.stand_on(Basis(again=True), state)
    return context


def link_of(config: Mapping[str, Any] | None) -> RedisLink:
    """Return the server that `config={"redis_client": …}` or `{"redis_url": …}` names."""
    config = config or {}
    where = config.get("redis_client", config.get("redis_url")) or os.environ.get(URL_VARIABLE, "").strip()
    if not where:
        raise errors.SessionError(
            "queue_backend='redis' needs a server.",
            hint='config={"redis_client": redis.Redis(...)} or {"redis_url": "redis://…"}, '
            f"or set {URL_VARIABLE}.",
        )
    return open_link(where)


# --- attaching ---------------------------------------------------------------------------


def attach(context: ExecutionContext, found: Found) -> ExecutionContext:
    """Return the context with the live session that a checkpoint was taken of, which has continued since.

    Its queue and values are where they were; the checkpoint says only which session and which server.
    """
    place = _looked_for(found, context.home.store)
    _check_history(found, place.home.facts)
    context.move_to(*place)
    context.is_there(found)
    context.checkpoint_metadata.update(found.metadata.user_metadata)
    return context


def _looked_for(found: Found, store: CheckpointStore) -> SharedPlace:
    """Look at the address that the checkpoint has, then at the one in the environment.

    That may be another name of the same server.
    """
    session = found.facts["session_id"]
    own = found.facts["redis"]["address"]
    named = os.environ.get(URL_VARIABLE, "").strip()
    away: errors.ServerGone | None = None
    asked: list[str] = []
    for where in dict.fromkeys(filter(None, (own, named))):
        try:
            place = place_at(open_link(where), session, store)
            if place.home.facts.exists():
                return place
            asked.append(place.home.facts.link.address)
        except errors.ServerGone as error:
            away = away or error
    if away is not None:
        raise away
    raise errors.NoSession(
        f"There is no session {session} at {' or '.join(dict.fromkeys(asked))}.",
        hint=f"Its queue and values were there and are not in the checkpoint {found.path}. "
        + _newest_portable(store, session),
        session=session,
    )


def _newest_portable(store: CheckpointStore, session: str) -> str:
    """Return what to say of the cuts that have everything in them."""
    try:
        for found in history.good(store, Keyring.for_store(store), session):
            if found.facts.get("redis", {}).get("portable", True):
                return (
                    f"The newest one that has them is {found.path} (step {found.facts['steps']}): "
                    "ExecutionContext.rewind(path) brings the session back, fork(path) makes another of it."
                )
    except errors.GraflowError as error:
        return f"Its other checkpoints cannot be looked at: {error.message}"
    return "None of its checkpoints has them: context.checkpoint(portable=True) makes one that does."


def _check_history(found: Found, facts: RedisFacts) -> None:
    """Check that what the checkpoint shows has happened to the session that is there."""
    cold = facts.known("epoch", "cuts", "rewound")
    epoch, number, behind = (int(cold.get(name) or 0) for name in ("epoch", "cuts", "rewound"))
    session, live, cut = facts.session, int(facts.line()["sequence"]), int(found.facts["transition"])
    ids: dict[str, Any] = {"session": session, "live": live, "cut": cut, "path": found.path}
    if int(found.meta["epoch"]) < epoch:
        if cut > behind:
            raise errors.CheckpointError(
                f"Checkpoint {found.path} shows transition {cut} of session {session}, which was taken back "
                f"to transition {behind} since, and is at {live} now.",
                hint="Resume from a later one, or from this one in a session of its own, if it is portable: "
                "ExecutionContext.fork(path).",
                **ids,
            )
    elif live < cut or number < int(found.meta["sequence"]):
        raise errors.CheckpointError(
            f"Session {session} at {facts.link.address} is at transition {live}, and the checkpoint "
            f"{found.path} at {cut}: Redis has lost commits.",
            hint="Restore Redis from a newer copy, or go on from a portable checkpoint (rewind or fork).",
            **ids,
        )


# --- into Redis ----------------------------------------------------------------------------

# A session goes from a checkpoint that holds all of it into Redis, under its own id or another. Which worker
# takes it then, and how workers get its program, is not decided here: what a session knew of that goes along.

Post = Callable[[str, str, str], None]
"""Gives a token of a session to a worker that listens on a queue: session, token, queue."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The server that a session goes to, and what else has to be known of it there."""

    link: RedisLink
    facts: Mapping[str, str | bytes] = field(default_factory=dict)
    keyring: Keyring | None = None  # else that of the environment
    post: Post | None = None  # without it a token waits until a worker looks
    listed: Sequence[str] = ()  # on these lists, from when it is there


def new_id(session: str | None) -> str:
    """Return an id for a session that is to be made."""
    return check_session_id(uuid.uuid4().hex[:12] if session is None else session)


def adopt_into(standing: Standing, session: str | None, to: Destination) -> SharedPlace:
    """Set a session at a server to that checkpoint.

    None: its own, as it was then; later checkpoints do not count any more, and it is SessionBusy while
    a worker runs it. Of another id: a new one, with idempotency keys of its own.
    """
    own = session or standing.session
    place = place_at(to.link, own, open_store(standing.carried["store"]), to.keyring)
    if session is not None:
        standing.state.belong_to(session, 0)
        begins = standing.found.meta["checkpoint_id"]
        _write(standing, place, "create", {"parent": begins, "origin": begins}, to)
        return place
    home = place.home
    try:
        least = int(standing.found.meta["sequence"])
        rewound = {**numbers(home, least), "rewound": str(standing.state.sequence)}
        _write(standing, place, "rewind", rewound, to)
    except errors.SessionBusy as error:
        owner = ", ".join(home.facts.workers()) or "another process"
        raise type(error)(
            f"Session {own} is not put back: {owner} works on it.",
            hint=error.hint,
            **{**error.ids, "owner": owner},
        ) from error
    record(home, "rewind", standing.graph, standing.settings)
    return place


def destination(standing: Standing, redis_url: str | None) -> Destination:
    """Return the server that is named, or else the one of the checkpoint, or of the environment."""
    origin = standing.found.facts.get("redis")
    where = redis_url or (origin["address"] if origin else os.environ.get(URL_VARIABLE, "").strip())
    if not where:
        raise errors.CheckpointError(
            f"Checkpoint {standing.found.path} is of a session in memory: say into which Redis it is to go.",
            hint=f"redis_url=, or {URL_VARIABLE}.",
            path=standing.found.path,
        )
    return Destination(open_link(str(where)))


def _write(
    standing: Standing, place: SharedPlace, verb: str, more: Mapping[str, str], to: Destination
) -> None:
    state = standing.state
    facts: dict[str, str | bytes] = {**standing.carried, **more, **to.facts}
    if cap := facts.pop("cap", ""):
        state.run_at_once(int(cap))
    standing.graph.compile(state.starts or standing.graph.roots())
    check_specs(standing.graph, state)
    for key in sorted(state.claimed, key=state.claimed.__getitem__, reverse=True):
        apply(state, [("release", key, state.specs[key].crashes)], 0.0)
    flags = str(facts.pop("flags", ""))
    facts |= {"cut": standing.found.meta["checkpoint_id"], "cut_of": str(state.sequence)}
    post = partial(to.post, state.session) if to.post is not None else None
    write(place.home, state, facts, verb, post, flags=flags, listed=to.listed)
