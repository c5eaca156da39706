"""ExecutionContext of a session in Redis: the same names, and the tables are elsewhere.

Any process that knows the session's id can hold one. Its checkpoints are written to the store that
the context was made with, and hold no values: those stay in Redis, where a resume finds them.
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
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint import history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.model import CheckpointMetadata, Document, check_metadata
from graflow_ckpt.checkpoint.program.program import Program, current_tasks, describe, pack_code, summary_of
from graflow_ckpt.checkpoint.seals.cells import SealedCells
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.checkpoint.values.sharing import bundles
from graflow_ckpt.core import arguments
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import (
    CheckpointError,
    GraflowError,
    NoSession,
    ServerGone,
    SessionBusy,
    SessionError,
)
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.adopt import KEPT, Standing, standing_at
from graflow_ckpt.engine.attempt import from_cells
from graflow_ckpt.engine.context import Basis, ExecutionContext, SharedChannel, digest_of
from graflow_ckpt.engine.home import program_file
from graflow_ckpt.engine.reaping import owner_of
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_home import BACKEND, SharedHome
from graflow_ckpt.links.addresses import URL_VARIABLE
from graflow_ckpt.links.complaints import fact, readable, translated
from graflow_ckpt.links.processes import named
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.keys import CREATE, head_of, keys_of
from graflow_ckpt.sessions.redis.names import check_names, check_specs
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import parse_line, write_state
from graflow_ckpt.sessions.views import RedisTaskQueue
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring, uses_local_key
from graflow_ckpt.stores.places import path_at

if TYPE_CHECKING:
    from graflow_ckpt.engine.coroutines import Loop

log = logging.getLogger("graflow_ckpt.engine")


class SharedContext(ExecutionContext):
    """One session of one graph, in Redis."""

    def __init__(
        self,
        graph: TaskGraph,
        session_id: str | None,
        link: RedisLink,
        *,
        settings: Settings | None = None,
        store: str = "checkpoints",
        keyring: Keyring | None = None,
    ) -> None:
        super().__init__(graph, session_id, settings=settings, store=store)
        self.link = link
        self.keyring = keyring if keyring or uses_local_key() else Keyring.load(local=False)
        self.cells = SealedCells(self.session_id, self.keyring)
        self.tables = RedisSession(link, self.session_id, self.cells)
        self.place = store
        self._program: Program | None = None
        self._prefix = keys_of(self.session_id)
        self.limit: int | None = None  # max_steps of the next execution, instead of the session's
        self.attached = False  # the session was there before

    @classmethod
    def made(
        cls, graph: TaskGraph, start_node: str | None, session_id: str | None, max_steps: int | None,
        config: Mapping[str, Any] | None, settings: Settings, store: str,
    ) -> SharedContext:  # fmt: skip
        """Return a new session, or, under an id that Redis knows, that one."""
        if max_steps is not None:
            arguments.counted("max_steps", max_steps, least=0)
        context = cls(graph, session_id, link_of(config), settings=settings, store=store)
        cap = "" if settings.max_parallel is None else settings.max_parallel
        line = f"running|0|0|1|1|1|{'' if max_steps is None else max_steps}|{cap}|||"
        facts = {
            "workflow": settings.workflow, "epoch": "1", "created": repr(time.time()),
            "starts": json.dumps([start_node] if start_node else []), "ttl": str(KEPT), "kept": str(KEPT),
            "store": store,
        }  # fmt: skip
        pairs = [item for pair in facts.items() for item in pair]
        sender = context.tables
        reply = context.link.script(CREATE)([f"{context._prefix}c"], [line, *sender.begins(), *pairs])
        context.attached = reply == b"exists"
        if context.attached:
            sender.begin_anew()
            text = context.facts_of("inputs")["inputs"]
            with readable(context.session_id, context.link.address):
                context.home.note_inputs(dict(fact("inputs", text or "{}")))
        return context

    # --- facts -------------------------------------------------------------------------

    @property
    def _client(self) -> Any:  # a redis.Redis, whose types allow a coroutine
        return self.link.client

    def line(self) -> dict[str, str]:
        """Return its counters, as of now."""
        line = head_of(self._client, self.link.address, self.session_id)
        if line is None:
            raise NoSession(
                f"There is no session {self.session_id} at {self.link.address}.", session=self.session_id
            )
        return parse_line(self.session_id, line)

    def exists(self) -> bool:
        with translated(self.link.address):
            return bool(self._client.exists(f"{self._prefix}c"))

    def facts_of(self, *names: str) -> dict[str, str]:
        """Return what is kept in addition to its tables; "" for what is not there."""
        with translated(self.link.address):
            found: list[bytes | None] = self._client.hmget(f"{self._prefix}h", names)
        with readable(self.session_id, self.link.address):
            return {name: (value or b"").decode() for name, value in zip(names, found, strict=True)}

    @property
    def state(self) -> SessionState:
        """All that is known of its tasks, as of now: a copy, without values."""
        return self.tables.state

    @property
    def steps(self) -> int:
        return int(self.line()["steps"])

    @property
    def status(self) -> str:
        return self.line()["status"]

    @property
    def max_steps(self) -> int | None:
        text = self.line()["max_steps"]
        return int(text) if text else None

    @property
    def channel(self) -> SharedChannel:
        return SharedChannel(self, self.tables)

    @property
    def task_queue(self) -> RedisTaskQueue:
        return RedisTaskQueue(self.tables, self.to_cell, from_cells)

    @property
    def goes_on(self) -> bool:
        """True if what is set now is an input of a session that a process has started before."""
        if not self.attached or self.found is not None or self.started:
            return False
        return int(self.line()["key"]) > 1

    @property
    def last_checkpoint_path(self) -> str | None:
        return self.facts_of("cut_path")["cut_path"] or None

    # --- the program -------------------------------------------------------------------

    def program(self) -> Program:
        """Return what a checkpoint keeps of it; made once the graph has been compiled."""
        if self._program is None:
            facts = describe(self.graph, current_tasks(self.graph))
            facts["summary"] = summary_of(self.graph)
            self._program = Program(
                facts,
                pack_code(self.graph),
                program_file(),
                (),
                self.settings.workflow,
                settings=self.settings.document(),
            )
        return self._program

    def cuts_at(self) -> SharedHome:
        """Return the home that the checkpoints of this session go to."""
        if not self.graph.routes:
            self.graph.compile(self.state.starts or self.graph.roots())
            check_names(self.graph)
        return SharedHome(self.link, self.session_id, self.cells, self.place, None, self.program())

    def known_program(self) -> Document | None:
        """Return the tasks as the last run described them, or the checkpoint that this continues from."""
        with translated(self.link.address):
            raw = self._client.get(f"{self._prefix}program")
        if raw is not None:
            with readable(self.session_id, self.link.address):
                known: Document = dict(fact("its program", raw))
            return known
        return self.found.facts["graph"] if self.found is not None else None

    def note_program(self) -> None:
        """Compare others with this one from now on."""
        text = json.dumps(self.program().facts, separators=(",", ":"))
        with translated(self.link.address):
            self._client.set(f"{self._prefix}program", text, ex=KEPT)

    def owners(self) -> list[str]:
        """Return the owners that work on it now, as far as is known."""
        with translated(self.link.address):
            seconds, micros = self._client.time()
            now = seconds * 1000 + micros // 1000
            tokens = self._client.zrangebyscore(f"{self._prefix}tok", now, "+inf")
            found = self._client.hmget(f"{self._prefix}own", tokens) if tokens else []
        return [named(owner_of(record)) for record in found if record is not None]

    # --- changes -----------------------------------------------------------------------

    def mark_task_completed(self, task_id: str) -> None:
        raise SessionError(
            f"Session {self.session_id} is in Redis: only who holds a task can say that it has completed.",
            hint="Run it, or write its result into the channel before its successors need it.",
            session=self.session_id,
        )

    def get_checkpoint_state(self) -> Document:
        facts = capture(self.state).facts
        facts["backend"] = dict(BACKEND)
        return facts

    def checkpoint(
        self, path: str | None = None, metadata: dict[str, Any] | None = None, storage: str | None = None,
        *, portable: bool = False,
    ) -> tuple[str, CheckpointMetadata]:  # fmt: skip
        """Write a checkpoint now; a portable one takes queue and values along."""
        if self.line()["key"] == "1":
            self.schedule_start()
        home = self.cuts_at()
        if storage is not None:
            path = path_at(storage, home.store, home.own_path(self.steps), path)
        saved = home.cut("request", check_metadata(metadata), path=path, portable=portable)
        self.note_checkpoint(saved)
        return saved.path, saved

    def note_checkpoint(self, metadata: CheckpointMetadata) -> None:
        super().note_checkpoint(metadata)
        self.checkpoint_metadata["backend"] = dict(BACKEND)

    def schedule_start(self, starts: tuple[str, ...] = ()) -> None:
        """Commit the start of a session that has never run; of two that try one wins."""
        self.graph.compile(starts or self.state.starts or self.graph.roots())
        check_names(self.graph)
        self.note_start()
        ops = [self.graph.routes[name].enqueue() for name in self.graph.starts]
        self.tables.commit([*ops], mode="B")

    def note_start(self) -> None:
        """Note what a later run has to know: the starts, the inputs, and how to treat attempts in doubt."""
        names = self.tables.names()
        values = self.tables.read_all(names) if names else []
        inputs = {n: digest_of(found[0]) for n, (found, _) in zip(names, values, strict=True) if found}
        routes = self.graph.routes.items()
        asks = {name: o for name, route in routes if (o := route.options.on_interrupted) != "rerun"}
        mapping = {"starts": self.graph.starts, "inputs": inputs, "io": asks}
        with translated(self.link.address):
            self._client.hset(f"{self._prefix}h", mapping={n: json.dumps(v) for n, v in mapping.items()})

    # --- resuming ----------------------------------------------------------------------

    def continues(self, found: Found) -> None:
        """Note that the session was there before: a checkpoint of it shows it, or it was made of one."""
        self.attached, self.basis = True, Basis(found)

    def execute(self, max_steps: int | None = None) -> Any:
        """Run, or continue, from here."""
        self.limit = max_steps
        return self.taking_part().run(None)

    def taking_part(self, loop: Loop | None = None) -> Any:
        """Return what runs the session from here, beside other workers."""
        from graflow_ckpt.engine.taking_part import TakingPart

        return TakingPart(self, loop)


def link_of(config: Mapping[str, Any] | None) -> RedisLink:
    """Return the server that `config={"redis_client": …}` or `{"redis_url": …}` names."""
    config = config or {}
    where = config.get("redis_client", config.get("redis_url")) or os.environ.get(URL_VARIABLE, "").strip()
    if not where:
        raise SessionError(
            "queue_backend='redis' needs a server.",
            hint='config={"redis_client": redis.Redis(...)} or {"redis_url": "redis://…"}, '
            f"or set {URL_VARIABLE}.",
        )
    return open_link(where)


# --- attaching ---------------------------------------------------------------------------


def attach(found: Found, graph: TaskGraph, store: str) -> SharedContext:
    """Return the live session that a checkpoint was taken of, which has continued since.

    Its queue and values are where they were; the checkpoint says only which session and which server. It
    is looked for at the address that the checkpoint has, then at the one in the environment, which may be
    another name of the same server.
    """
    context = _looked_for(found, graph, store)
    _check_history(found, context)
    context.continues(found)
    context.checkpoint_metadata.update(found.metadata.user_metadata)
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
    """Return what to say of the cuts that have everything in them."""
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
    """Check that what the checkpoint shows has happened to the session that is there."""
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


def moved(path: str, session: str | None, redis_url: str | None, store: str | None) -> SharedContext:
    """Rewind the session of a checkpoint in Redis, or, under an id that is given, make another one."""
    standing = standing_at(path, store)
    return adopt_into(standing, session, Destination(open_link(_where(standing, redis_url))))


def new_id(session: str | None) -> str:
    """Return an id for a session that is to be made."""
    return check_session_id(session or uuid.uuid4().hex[:12])


def adopt_into(standing: Standing, session: str | None, to: Destination) -> SharedContext:
    """Return a session at a server, set to that checkpoint.

    None: its own, as it was then; later checkpoints do not count any more, and it is SessionBusy while
    a worker runs it. Of another id: a new one, with idempotency keys of its own.
    """
    carried, state = standing.carried, standing.state
    settings = Settings(workflow=carried["workflow"]).with_stored(standing.found.meta.get("settings"))
    settings = replace(settings, max_parallel=state.cap)
    context = SharedContext(
        standing.graph,
        session or standing.session,
        to.link,
        settings=settings,
        store=carried["store"],
        keyring=to.keyring,
    )
    context.continues(standing.found)
    if session is not None:
        state.belong_to(session, 0)
        begins = standing.found.meta["checkpoint_id"]
        _write(standing, context, "create", {"parent": begins, "origin": begins, **to.facts}, to.post)
        return context
    try:
        _write(standing, context, "rewind", {**_numbers(standing, context), **to.facts}, to.post)
    except SessionBusy as error:
        owner = ", ".join(context.owners()) or "somebody"
        raise type(error)(
            f"Session {context.session_id} is not put back: {owner} works on it.",
            hint=error.hint,
            **{**error.ids, "owner": owner},
        ) from error
    try:
        context.cuts_at().cut("rewind", None)  # a resume that looks for the newest one finds it
    except (GraflowError, OSError) as error:
        log.error("checkpoint failed: %s", error, extra={"session": context.session_id})
    return context


def _numbers(standing: Standing, context: SharedContext) -> dict[str, str]:
    """Return how far the session has counted, here or in its store: numbers never decrease."""
    cold = context.facts_of("cuts", "paths") if context.exists() else {}
    highest = history.highest_sequence(context.home.store, context.session_id)
    return {
        "cuts": str(max(int(cold.get("cuts") or 0), highest, int(standing.found.meta["sequence"]))),
        "paths": str(max(int(cold.get("paths") or 0), highest)),
        "rewound": str(standing.state.sequence),
    }


def _where(standing: Standing, redis_url: str | None) -> str:
    place = standing.found.facts.get("redis")
    where = redis_url or (place["address"] if place else os.environ.get(URL_VARIABLE, "").strip())
    if not where:
        raise CheckpointError(
            f"Checkpoint {standing.found.path} is of a session in memory: say into which Redis it is to go.",
            hint=f"redis_url=, or {URL_VARIABLE}.",
            path=standing.found.path,
        )
    return str(where)


def _write(
    standing: Standing,
    context: SharedContext,
    verb: str,
    more: Mapping[str, str | bytes],
    post: Post | None,
) -> None:
    state = standing.state
    facts: dict[str, str | bytes] = {**standing.carried, **more}
    if cap := facts.pop("cap", ""):
        state.run_at_once(int(cap))
    standing.graph.compile(state.starts or standing.graph.roots())
    check_specs(standing.graph, state)
    for key in sorted(state.claimed, key=state.claimed.__getitem__, reverse=True):
        apply(state, [("release", key, state.specs[key].crashes)], 0.0)
    flags = str(facts.pop("flags", ""))
    facts |= {
        "created": repr(time.time()), "starts": json.dumps(state.starts),
        "cut": standing.found.meta["checkpoint_id"], "cut_steps": str(state.steps),
        "cut_of": str(state.sequence),
    }  # fmt: skip
    write_state(context.link, state, context.cells, facts, verb=verb, flags=flags, share=bundles)
    if post is not None:
        context.tables.posts_by(partial(post, state.session))
    context.tables.commit([("claim", 0)])  # it may have ended; or a worker has to be asked for
